"""``python -m studies NAME ...``: run a study. Without a name: what studies there are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import wattcast  # noqa: F401  # before any numeric library: it quiets their spinning threads
from wattcast.features.errors import MissingExtraError, WattcastError

STUDIES = {
    "accuracy": ("accuracy", "docs/accuracy.md, from the cards of the shipped models"),
    "held-out": ("held_out", "power of rows left out beside measured ones, for docs/accuracy.md"),
    "reference": (
        "pages.reference",
        "docs/reference, from the code: commands, calls, settings",
    ),
    "examples": ("pages.examples", "the examples of the page, solved again, into app/demo"),
    "measuring-kernels": ("measuring_kernels", "PTX of the kernels that are measured, out of CUDA"),
    "machine-code": ("machine_code", "instructions as counted beside what ptxas makes of them"),
    "tables": ("data.tables", "every published table read and counted, those of studies too"),
    "end-to-end": ("end_to_end", "public programs asked as users ask, beside measured times"),
    "catalogue": ("catalogue.study", "well-known kernels beside published figures"),
    "triton": ("triton", "Triton kernels with lists of configurations, beside published figures"),
    "counters": ("counters", "tuning spaces asked as users ask, beside hardware counters"),
    "code-alone": (
        "code_alone",
        "public programs asked with code and launch alone (--sources FOLDER)",
    ),
    "volta": ("volta", "kernels with counters of a Volta asked as users ask (--ptx FOLDER)"),
    "operators": ("operators", "library operators: errors of their models, and fitting them"),
    "language-models": ("language_models", "sums of operators beside measured rows"),
    "judge": ("judge", "pairs of variants: signs, probabilities, and the spread of their ratios"),
    "tuning": ("tuning", "measurements that wattcast tune needs, beside Kernel Tuner's strategies"),
    "widths": ("widths", "intervals of times on boards never calibrated, from both of these"),
    "advice": ("advice.study", "promises of advice beside kernels changed by hand"),
    "budget": ("budget.study", "counts under the default budget beside a run to completion"),
    "bottleneck": ("bottleneck_errors", "the default time model beside measured times"),
    "queueing": ("papers.wang_chu.errors", "Wang and Chu's model over core and memory clocks"),
    "work": (
        "fitting.work.tables",
        "time from measured work: fits the shipped model",
    ),
    "applications": (
        "papers.guerreiro.applications",
        "clocks chosen from counters or code, applications left out",
    ),
    "sequence": (
        "papers.guerreiro.sequence",
        "scaling from code: fits the shipped model",
    ),
    "abe": ("papers.abe_figures", "Abe et al.'s regression on the frequency campaigns"),
    "clocks": (
        "fitting.scaling.command",
        "scaling over clocks: fits the shipped models",
    ),
    "power": ("fitting.trees.holds", "what the power models must hold on published rows"),
    "physical": ("fitting.physical.tables", "the physical power model with programs left out"),
    "unknown-kernels": (
        "traces.unknown_kernels",
        "power of kernels without code, kernel families left out",
    ),
    "library-kernels": (
        "traces.library_kernels",
        "power of libraries' products of which a trace tells only the time",
    ),
    "trace-totals": (
        "traces.trace_totals",
        "how sure the sum over an application is: random mixes of kernels left out",
    ),
    "train": ("fitting.trees.train", "fits the shipped boosted models on published rows"),
    "extra-trees": ("fitting.trees.pooled", "fits the shipped extra trees on rows of several GPUs"),
    "activity": (
        "fitting.physical.served_activity",
        "activity tables made anew as the service answers, errors of power on them",
    ),
    "fit-physical": ("fitting.physical.artifacts", "fits the shipped physical power models"),
    "products": (
        "fitting.physical.products",
        "energies of code on Hopper and Blackwell, from measured operators",
    ),
    "fit-all": (
        "fitting.fit_all",
        "every shipped model anew, boosted and physical",
    ),
    "thesis": (
        "papers.thesis.command",
        "the thesis, part by part (docs/study.md)",
    ),
    "intervals": ("intervals", "what intervals hold on kernels that taught them nothing"),
    "boards": ("boards_left_out", "what retraining is worth on boards nobody measured"),
}
"""Module and purpose of every study; its ``main(arguments)`` gives the exit status."""


def main(arguments: Sequence[str]) -> int:
    """Run the study that the first argument names; the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m studies NAME [ARGUMENT ...]\n")
        for name, (_, purpose) in STUDIES.items():
            print(f"  {name:<12} {purpose}")
        return 0
    name, *rest = arguments
    if name not in STUDIES:
        print(f"error: no study is called {name!r}: {', '.join(STUDIES)}", file=sys.stderr)
        return 2
    try:
        status: int = import_module(f"studies.{STUDIES[name][0]}").main(rest)
    except ModuleNotFoundError as error:
        if (missing := MissingExtraError.of(error)) is None:
            raise
        print(f"error: {missing}", file=sys.stderr)
        return 1
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
