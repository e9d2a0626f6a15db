"""What tells the blocks of a grid apart: comparisons and addresses made of their numbers."""

from __future__ import annotations

from dataclasses import dataclass

from wattcast.features.attached import attached
from wattcast.features.integers import COMPARISONS
from wattcast.features.symbolic.scheme import Scheme
from wattcast.features.values import Node

_TRANSPARENT = frozenset({
    "add", "sub", "mul", "shl", "sext", "zext", "trunc", "neg", "select", "join", "exit", "phi",
    "const", "special", "param", "symbol", "unknown",
})  # fmt: skip
_LOGIC = frozenset({"and", "or", "xor"})


@dataclass(frozen=True, slots=True)
class Relevant:
    """Nodes that tell blocks apart: compared ones, and addresses. ``irregular``: others do."""

    compared: tuple[Node, ...]
    addresses: tuple[Node, ...]
    irregular: bool


@attached
def relevant_nodes(scheme: Scheme) -> Relevant:
    """Found once for each kernel."""
    depends = _depending(scheme)
    decisions: list[Node] = [e.condition for e in scheme.endings if e.condition is not None]
    decisions += [guard for guards in scheme.guards for _, guard, _ in guards]
    addresses = [access.address for found in scheme.accesses for access in found]
    compared: list[Node] = []
    irregular = False
    seen: set[Node] = set()
    stack = [*decisions, *addresses]
    while stack:
        node = stack.pop()
        if node in seen or node not in depends:
            continue
        seen.add(node)
        stack.extend(node.args)
        if node.op == "phi":
            phi = scheme.phis[node]
            stack.append(phi.start)
            if phi.step is None or phi.step in depends:
                irregular = True
        elif node.op in COMPARISONS or node.op in ("min.s", "max.s", "min.u", "max.u"):
            compared.append(node)
        elif node.op == "mul":
            irregular |= all(arg in depends for arg in node.args)
        elif node.op not in _TRANSPARENT and not (node.bits == 1 and node.op in _LOGIC):
            irregular = True
    return Relevant(
        tuple(compared),
        tuple(dict.fromkeys(address for address in addresses if address in depends)),
        irregular,
    )


def _depending(scheme: Scheme) -> set[Node]:
    """Nodes made of ``ctaid``."""
    found: set[Node] = set()
    for _ in range(4):  # phis depend on nodes made later
        before = len(found)
        for node in scheme.graph.nodes:
            if node in found:
                continue
            if node.op == "special":
                if str(node.value).startswith("ctaid"):
                    found.add(node)
            elif any(arg in found for arg in node.args):
                found.add(node)
            elif node.op == "phi":
                phi = scheme.phis[node]
                if phi.start in found or (phi.latch is not None and phi.latch in found):
                    found.add(node)
        if len(found) == before:
            break
    return found
