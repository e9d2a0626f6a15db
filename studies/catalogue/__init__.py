"""Well-known kernels with published figures (``python -m studies catalogue``)."""
