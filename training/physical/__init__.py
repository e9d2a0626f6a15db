"""The physical power model: rows, fitting, transfer to other GPUs, artifacts."""
