"""Tables. Changing one takes a new Alembic migration beside it; a test compares the two."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import DateTime, ForeignKey, Integer, LargeBinary, MetaData, String, Text, Uuid
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Base of all tables; constraints have predictable names, so migrations can address them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class PtxRow(Base):
    """PTX texts, each stored once: zlib-compressed UTF-8 under its SHA-256."""

    __tablename__ = "ptx"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    size: Mapped[int] = mapped_column(Integer)
    """Bytes before compression."""
    compressed: Mapped[bytes] = mapped_column(LargeBinary)
    created: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class PredictionRow(Base):
    """One answered prediction. JSON columns hold JSON text exactly as it was answered."""

    __tablename__ = "predictions"

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    created: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)
    request_sha256: Mapped[str] = mapped_column(String(64), index=True)
    """Hash of the request without its PTX text, together with the PTX's hash."""
    ptx_sha256: Mapped[str] = mapped_column(ForeignKey("ptx.sha256"))
    gpu: Mapped[str] = mapped_column(String(64))
    kernel: Mapped[str] = mapped_column(Text)
    """Mangled name."""
    request: Mapped[str] = mapped_column(Text)
    """The request without its PTX text, JSON."""
    result: Mapped[str] = mapped_column(Text)
    """The answer, JSON."""
    vectors: Mapped[str] = mapped_column(Text)
    """Model inputs by feature schema, JSON: ``{"alavani2023": [1.0, null, ...]}``."""
    models: Mapped[str] = mapped_column(Text)
    """The artifacts that answered, JSON (``ModelReference``), or ``null``."""
