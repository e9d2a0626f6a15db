"""``python -m studies NAME ...``: run a study. Without a name: what studies there are."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import wattcast  # noqa: F401  # before any numeric library: it quiets their spinning threads
from wattcast.features.errors import MissingExtraError, WattcastError

STUDIES = {
    "accuracy": "accuracy",
    "held-out": "held_out",
    "reference": "pages.reference",
    "examples": "pages.examples",
    "measuring-kernels": "measuring_kernels",
    "machine-code": "machine_code",
    "end-to-end": "end_to_end",
    "catalogue": "catalogue.study",
    "triton": "triton",
    "counters": "counters",
    "code-alone": "code_alone",
    "volta": "volta",
    "operators": "operators",
    "language-models": "language_models",
    "judge": "judge",
    "tuning": "tuning",
    "widths": "widths",
    "advice": "advice.study",
    "budget": "budget.study",
    "bottleneck": "bottleneck_errors",
    "queueing": "papers.wang_chu.errors",
    "work": "fitting.work.tables",
    "applications": "papers.guerreiro.applications",
    "sequence": "papers.guerreiro.sequence",
    "abe": "papers.abe",
    "clocks": "fitting.scaling.command",
    "power": "fitting.trees.holds",
    "physical": "fitting.physical.tables",
    "unknown-kernels": "traces.unknown_kernels",
    "library-kernels": "traces.library_kernels",
    "trace-totals": "traces.trace_totals",
    "train": "fitting.trees.train",
    "extra-trees": "fitting.trees.pooled",
    "activity": "fitting.physical.served_activity",
    "fit-physical": "fitting.physical.artifacts",
    "products": "fitting.physical.products",
    "fit-all": "fitting.fit_all",
    "thesis": "papers.thesis.command",
    "intervals": "intervals",
    "boards": "boards_left_out",
}
"""Module of every study; its ``main(arguments)`` gives the exit status."""


def purpose(module: str) -> str:
    """What a study is for: the first sentence of its text."""
    path = Path(__file__).parent / f"{module.replace('.', '/')}.py"
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    said = re.sub(r"^``[^`]*``: ", "", " ".join(said.split("\n\n")[0].split()))
    return re.split(r"[.:](?: |$)", said)[0]


def main(arguments: Sequence[str]) -> int:
    """Run the study that the first argument names; the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m studies NAME [ARGUMENT ...]\n")
        for name, module in STUDIES.items():
            print(f"  {name:<17} {purpose(module)}")
        return 0
    name, *rest = arguments
    if name not in STUDIES:
        print(f"error: no study is called {name!r}: {', '.join(STUDIES)}", file=sys.stderr)
        return 2
    try:
        status: int = import_module(f"studies.{STUDIES[name]}").main(rest)
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
