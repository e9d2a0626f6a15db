from collections.abc import Mapping

PHYSICAL = "physical"

ONBOARD = "onboard"
"""Source of the models that ``wattcast onboard`` fits to the board at hand."""

POWER_FAMILIES: Mapping[str, str] = {
    "xgboost": "boosted trees on a published feature schema",
    "catboost": "the same by CatBoost",
    "average": "the mean of both",
    "extratrees": "extremely randomised trees on the rows of several GPUs",
    PHYSICAL: "idle power and energy per event times its rate: any GPU, any clocks",
}
"""Every family of power models: what HTTP, command line, page and docs offer."""

BOOSTED_FAMILIES = tuple(name for name in POWER_FAMILIES if name != PHYSICAL)
