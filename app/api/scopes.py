"""Which scope a call needs. What no rule names needs the strictest: a new route cannot be open
because somebody forgot it.

    public   liveness, readiness, kinds of problems, documentation of the API
    read     looking, and predicting (which changes nothing but the record of answers)
    write    measurements
    train    everything else that changes something: jobs, models
"""

from __future__ import annotations

from wattcast.app.store.keys import Scope

PUBLIC = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json", "/problems"})
"""Paths anyone may look at: they tell nothing of what is stored."""

PUBLIC_BELOW = ("/docs/", "/problems/", "/static/")

LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})

PREDICTING = frozenset(
    {"/predict", "/predict/batch", "/features", "/analyze", "/dvfs", "/sweep", "/cost", "/compare"}
)
"""Calls that take a body and change nothing."""

UPLOADING = frozenset({"/measurements", "/measurements/check", "/retrain"})
"""Calls that take files: their bodies may be larger, and multipart."""


def scope_needed(method: str, path: str) -> Scope | None:
    """The scope that a call needs; ``None`` for a public one."""
    if method in LOOKING:
        return None if path in PUBLIC or path.startswith(PUBLIC_BELOW) else "read"
    if method == "POST" and path in PREDICTING:
        return "read"
    if path == "/measurements" or path.startswith("/measurements/"):
        return "write"
    return "train"
