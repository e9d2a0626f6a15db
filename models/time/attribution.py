"""How much of a predicted time each resource accounts for.

The default model combines the seconds ``R_i`` that each resource would need alone by a p-norm
``T``, which is homogeneous of degree one: by Euler's theorem ``T = sum_i R_i dT/dR_i``, and

    R_i dT/dR_i = T (R_i / T)^p.

So each share is what T would lose first if the resource got a little faster, and the shares sum
to T without a rest. Where the chain of waiting is longer than that, it accounts for all.
"""

from __future__ import annotations

from collections.abc import Mapping

from wattcast.models.time.bottleneck import CONSTANTS, Constants, combined_seconds

LATENCY = "latency"


def resource_shares(
    resources: Mapping[str, float], constants: Constants = CONSTANTS
) -> dict[str, float]:
    """Seconds of ``combined_seconds(resources)`` by resource; they sum to it.

    Resources that account for nothing are left out.
    """
    total = combined_seconds(resources, constants)
    if total <= 0.0:
        return {}
    used = {name: part for name, part in resources.items() if part > 0.0 and name != LATENCY}
    busy = combined_seconds(used, constants)
    if busy < total:
        return {LATENCY: total}
    weights = {name: (part / busy) ** constants.overlap_norm for name, part in used.items()}
    whole = sum(weights.values())
    return {name: total * weight / whole for name, weight in weights.items()}
