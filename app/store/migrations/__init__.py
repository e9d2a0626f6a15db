"""Alembic migrations, run at start (``app.store.database.migrate``)."""
