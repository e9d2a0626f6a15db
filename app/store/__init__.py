"""What the service remembers: SQLAlchemy tables, their migrations and repositories."""

HEAD = "0005"
"""Newest migration; a test compares it with the migrations folder.

Known here so that a start on an up-to-date database needs not import Alembic.
"""
