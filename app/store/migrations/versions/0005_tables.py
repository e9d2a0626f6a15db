"""The tables of ``app/store/tables.py`` as they are before 1.0: an empty database gets them as a
whole, and the first change of one is the first migration after this."""

revision = "0005"
down_revision = None
