"""Alembic migrations, run at start (``wattcast.app.store.database.migrate``)."""
