"""Which use case answers a request: HTTP, command line, Python and agents ask through here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from wattcast.predictor import Predictor, messages

A = TypeVar("A")

USE_CASES: Mapping[str, str] = {
    "PredictRequest": "predict.predict",
    "BatchRequest": "batch.predict_many",
    "AnalyzeRequest": "analyze.analyze",
    "FeaturesRequest": "analyze.features",
    "SweepRequest": "sweep.sweep",
    "DvfsRequest": "dvfs.dvfs",
    "CountedRequest": "counted.dvfs_from_counters",
    "TraceDvfsRequest": "application.dvfs_of_sent_trace",
    "CompareRequest": "compare.compare",
    "JudgeRequest": "compare.judge",
    "RankRequest": "rank.rank_variants",
    "TuningsRequest": "tunings.tunings",
    "CostRequest": "cost.cost",
    "FleetRequest": "fleet.fleet",
    "LanguageModelRequest": "language_model.language_model",
    "LanguageModelDvfsRequest": "dvfs.dvfs_of_language_model",
    "OperatorRequest": "operators.predict_operator",
    "OperatorBatchRequest": "operators.predict_operators",
    "OperatorSweepRequest": "operators.sweep_operator",
    "OperatorDvfsRequest": "dvfs.dvfs_of_operator",
    "OperatorCompareRequest": "compare.compare",
}
"""Functions of this package by the class of their request. Each is loaded when it is asked: all of
them take a tenth of the time to import everything."""


def answer(predictor: Predictor, request: messages.Asks[A]) -> A:
    """The answer to a request. Raises what its use case raises."""
    module, _, name = USE_CASES[type(request).__name__].partition(".")
    found: A = getattr(import_module(f"wattcast.predictor.{module}"), name)(predictor, request)
    return found
