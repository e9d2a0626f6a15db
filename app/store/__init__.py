"""What the service remembers: SQLAlchemy tables, their migrations and repositories."""
