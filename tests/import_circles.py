"""No import circle at run time: a contract that ``lint-imports`` checks (pyproject.toml).

Imports under ``if TYPE_CHECKING:`` are left out: they run in no program.
"""

from __future__ import annotations

from collections.abc import Iterable

import grimp
import networkx as nx
from importlinter import Contract, ContractCheck, fields, output


def circles(imports: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Modules that import each other, directly or round about; ``imports`` are (from, to)."""
    graph = nx.DiGraph((a, b) for a, b in imports if a != b)
    return sorted(
        sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1
    )


def runtime_imports(package: str) -> list[tuple[str, str]]:
    """Every import between modules of an installed package that runs."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    return [
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    ]


class NoCircles(Contract):
    """``packages`` must be free of circles among their modules."""

    type_name = "no_circles"
    packages = fields.SetField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Whether there is none."""
        packages = tuple(f"{package}." for package in self.packages)
        found = circles(
            (a, b)
            for root in {package.partition(".")[0] for package in self.packages}
            for a, b in runtime_imports(root)
            if a.startswith(packages) and b.startswith(packages)
        )
        return ContractCheck(kept=not found, metadata={"circles": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Each circle on a line."""
        for circle in check.metadata["circles"]:
            output.print_error(f"- {' <-> '.join(circle)}")
