"""LIME beside SHAP on a fixed sample of launches: their signs, and LIME over seeds.

docs/explain.md tells the figures of ``python -m benchmarks explain``, which looks at more.
"""

from __future__ import annotations

from benchmarks.explain import agreement


def test_lime_and_shap_agree_in_sign() -> None:
    found = agreement("tesla-m60", "catboost", kernels=6, seeds=3)
    assert found.launches >= 10
    assert found.sign_share >= 0.8
    assert found.selection >= 0.6
