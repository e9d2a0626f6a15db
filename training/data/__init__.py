"""The published tables: found, checked, cleaned, and read as rows."""
