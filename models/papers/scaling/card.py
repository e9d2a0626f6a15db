"""Cards of scaling models, and the store that opens their artifacts.

Per campaign (measurements of one GPU by one source) up to two artifacts below
``<gpu>/scaling/``: ``physical-<counters>1-<campaign>`` (``model.json``), and trees correcting its
power, ``catboost-<counters>_power1-<campaign>``. Trees of another physical model than the one
at hand are refused: their card names its checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from wattcast.features.errors import ClockError, ModelError, SchemaError
from wattcast.features.ptx import ir
from wattcast.models.cards import ScaleWidth, ScalingCard
from wattcast.models.clocks import ClockPair, CodeModel
from wattcast.models.papers.scaling.physical import PhysicalScaling, ScalingParameters
from wattcast.models.papers.scaling.residual import CorrectedScaling
from wattcast.models.papers.scaling.use import NAMES, UNITS, CounterKind
from wattcast.models.store import (
    PACKAGED_ARTIFACTS,
    PARAMETERS_NAME,
    Artifact,
    ArtifactStore,
    TreeModel,
)

# PTX instructions as the tokens of Guerreiro et al.: numbers for what an instruction is and how far
# back its nearest operand was written (their nine digits: ``studies.papers.guerreiro.sequence``).
#
#     tokens(body.instructions) -> (Token(opcode=54, space=6, type=12, ...), ...)
#     token.name -> "ld.param.u64"
#
# J. Guerreiro et al., GPU Static Modeling Using PTX and Deep Structured Learning, IEEE Access 2019,
# section III-B, and the tables of their tool (github.com/hpc-ulisboa/gpuPTXModel,
# ``assembly_info``, BSD-3-Clause). Models were fitted on what that tool printed, so its habits are
# kept: guarded instructions and returns are not coded, commas count as operands, an address with an
# offset is no register, and producer 2 is a load of a parameter (its authors meant shared memory).

TOKEN_TABLES = ("opcodes", "spaces", "types")
OPCODES, SPACES, TYPES = (tuple(NAMES.tokens[each].split()) for each in TOKEN_TABLES)
"""In the order of ``ptx_isa.txt``, ``ptx_state_spaces.txt`` and ``ptx_instruction_types.txt``;
spaces and types count from 1, and 0 is none."""

REMEMBERED = 9
"""Operands written last among which a producer is looked for (their ``buffer_max_size``)."""

FIELDS = ("opcode", "space", "type", "operands", "distance", "producer")


class Token(NamedTuple):
    """One instruction. ``distance``: operands written since its nearest one was, 0 for none
    remembered; ``producer``: that was computed (0), loaded (1) or loaded from a parameter (2)."""

    opcode: int
    space: int
    type: int
    operands: int
    distance: int = 0
    producer: int = 0

    @property
    def name(self) -> str:
        """Opcode, state space and type, such as ``ld.global.f32``."""
        space = SPACES[self.space - 1 : self.space] if self.space else ()
        kind = TYPES[self.type - 1 : self.type] if self.type else ()
        return ".".join((OPCODES[self.opcode], *space, *kind))


def named(opcode: str, operands: int = 0) -> Token | None:
    """The token of a dotted opcode, without dependence; ``None`` where the tables have none."""
    first, *rest = opcode.split(".")
    if first not in OPCODES:
        return None
    space = next((SPACES.index(part) + 1 for part in rest[:-1] if part in SPACES), 0)
    kind = TYPES.index(rest[-1]) + 1 if rest and rest[-1] in TYPES else 0
    return Token(OPCODES.index(first), space, kind, operands)


def tokens(instructions: Iterable[ir.Instruction]) -> tuple[Token | None, ...]:
    """The token of each instruction, in order; ``None`` for those that are not coded."""
    written: list[tuple[str, int]] = []
    return tuple(_token(each, written) for each in instructions)


def _token(instruction: ir.Instruction, written: list[tuple[str, int]]) -> Token | None:
    if instruction.predicate is not None or instruction.base in ("ret", "exit"):
        return None
    texts = [tuple(_texts(operand)) for operand in instruction.operands]
    found = named(instruction.opcode, max(1, sum(map(len, texts))))
    if found is None:
        return None
    made: tuple[str, ...] = ()
    read, producer = texts, 0
    if instruction.base != "st":
        read, made = texts[1:], texts[0][:1] if texts else ()
    if instruction.base == "ld":
        made, producer = texts[0], 2 if found.space == SPACES.index("param") + 1 else 1
    names = {text for operand in read for text in operand}
    near = next((at for at, (name, _) in enumerate(written) if name in names), None)
    if near is not None:
        found = found._replace(distance=near + 1, producer=written[near][1])
    for each in made:
        written.insert(0, (each, producer))
    del written[REMEMBERED:]
    return found


def _texts(operand: ir.Operand) -> Iterator[str]:
    """What an operand is called, a text for each part that a comma parts from the next."""
    match operand:
        case ir.Vector(elements) | ir.Group(elements):
            for each in elements:
                yield from _texts(each)
        case ir.Pair(first, second):
            yield "|".join((*_texts(first), *_texts(second)))
        case ir.Address(base, 0, ()) if base is not None:
            yield base.name
        case ir.Register(name) | ir.Special(name) | ir.Symbol(name, 0):
            yield name
        case ir.Immediate(_, text):
            yield text
        case _:
            yield repr(operand)


# --- feature schemas of the scaling models: names of their inputs, by kind of counters --------
# They lie here and not among ``features/schemas``, which make vectors of PTX: these inputs come
# from hardware counters, or from the physical scaling model itself. ``<kind>1`` names the physical
# model's inputs, ``<kind>_power1`` those of the trees that correct it.


Quantity = Literal["time", "power"]

TOKEN_SCHEMAS: Mapping[CodeModel, str] = MappingProxyType(
    {"sequence": "token_fields1", "tokens": "token_work1"}
)

RISING = ("core_speed",)
"""First inputs of the trees of power, with which a prediction may only rise: the logarithm of the
core clock over the nominal one."""


def physical_schema(kind: CounterKind) -> str:
    """Schema id of the physical model's inputs."""
    return f"{kind}1"


def trees_schema(kind: CounterKind) -> str:
    """Schema id of the inputs of the trees that correct power."""
    return f"{kind}_power1"


_USES = {kind: tuple(f"use_{unit}" for unit in units) for kind, units in UNITS.items()}
SCHEMAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {physical_schema(kind): (*uses, "use_dram", "time_seconds") for kind, uses in _USES.items()}
    | {
        trees_schema(kind): (*RISING, "memory_speed", "use_dram", *uses)
        for kind, uses in _USES.items()
    }
    | {
        "token_fields1": (*FIELDS, "log2_repeats"),
        "token_work1": ("core_cycles", "global_bytes", "global_requests"),
    }
)
"""Schema id -> names of its inputs."""


def schema_hash(schema_id: str) -> str:
    """sha256 of a schema's input names. Raises SchemaError for an unknown one."""
    if schema_id not in SCHEMAS:
        raise SchemaError(f"unknown schema {schema_id!r}; known: {', '.join(SCHEMAS)}")
    return hashlib.sha256("\n".join(SCHEMAS[schema_id]).encode()).hexdigest()


# --- cards of scaling models, and the store that opens their artifacts ------------------------


TARGET = "scaling"
PHYSICAL = "physical"
TREES = "catboost"


def scaling_store(roots: Sequence[Path] = (PACKAGED_ARTIFACTS,)) -> ArtifactStore[ScalingCard]:
    """The store of scaling artifacts."""
    return ArtifactStore(roots, kind=ScalingCard, hash_of_schema=schema_hash)


UNSCORED_ONE_IN_TEN = 1.2
"""The largest of the cards that have it (``python -m studies clocks``): V100 by nvprof."""


@dataclass(frozen=True, eq=False)
class Served:
    """A campaign's models as they answer: the physical one, and trees where they correct it.

    ``cards``: the physical model's first, then that of each quantity in ``corrected``.
    """

    scaling: CorrectedScaling | PhysicalScaling
    physical: PhysicalScaling
    cards: tuple[ScalingCard, ...]
    corrected: tuple[Quantity, ...]

    def width(self, quantity: Quantity) -> ScaleWidth | None:
        """Interval of a quantity's scale, by the card of what answers it."""
        at = self.corrected.index(quantity) + 1 if quantity in self.corrected else 0
        intervals = self.cards[at].intervals
        return intervals.time if quantity == "time" else intervals.power

    @property
    def one_in_ten(self) -> float:
        """What energy scales exceed in one kernel of ten; as on the worst board where nobody
        measured both times and powers."""
        return self.cards[-1].intervals.energy_one_in_ten or UNSCORED_ONE_IN_TEN

    @property
    def counted_units(self) -> tuple[str, ...]:
        """Units whose counters the campaign had; the others are 0 in all its rows."""
        facts = {one.name: one for one in self.cards[0].features}
        units = UNITS[self.physical.parameters.counters]
        return tuple(unit for unit in units if facts[f"use_{unit}"].maximum > 0)


def served(store: ArtifactStore[ScalingCard], gpu: str, campaign: str) -> Served:
    """The models of a campaign.

    Raises ModelError where there is no physical model, or trees correct another one.
    """
    cards = store.list()
    base = _physical_artifact(store, cards, gpu, campaign)
    physical = PhysicalScaling(base.parameters(ScalingParameters))
    wanted = (gpu, trees_schema(physical.parameters.counters), campaign)
    if not any((one.gpu, one.feature_schema.id, one.source) == wanted for one in cards):
        return Served(physical, physical, (base.card,), ())
    trees = store.find(gpu, TARGET, TREES, wanted[1], source=campaign)
    if trees.card.corrects_sha256 != base.card.files[PARAMETERS_NAME]:
        raise ModelError(
            f"the power trees of {gpu} by {campaign} correct another physical model", gpu=gpu
        )
    scaling = CorrectedScaling(physical, TreeModel(trees))
    return Served(scaling, physical, (base.card, trees.card), ("power",))


def campaign_for(
    store: ArtifactStore[ScalingCard], gpu: str, kind: CounterKind, clocks: ClockPair
) -> str:
    """The campaign whose models answer for counters of a kind, taken at ``clocks``.

    Of those that take these counters and clocks, one that measured power before one that did not,
    then the one of most clock pairs. Raises ModelError where none does, naming what there is.
    """
    cards = [card for card in store.list() if card.family == PHYSICAL]
    mine = [card for card in cards if card.gpu == gpu]
    if not mine:
        known = sorted({card.gpu for card in cards})
        raise ModelError(
            f"no frequency model of {gpu} from counters; there are some of {', '.join(known)}",
            gpu=gpu,
            known=known,
        )
    fit = [card for card in mine if card.feature_schema.id == physical_schema(kind)]
    if not fit:
        kinds = sorted({card.feature_schema.id.removesuffix("1") for card in mine})
        raise ModelError(
            f"the frequency models of {gpu} take {' or '.join(kinds)} counters, not {kind}", gpu=gpu
        )
    refused: list[ClockError] = []
    answering: list[tuple[bool, int, str]] = []
    for card in fit:
        physical = served(store, gpu, card.source).physical
        try:
            physical.parameters.extrapolates(clocks)
        except ClockError as error:
            refused.append(error)
            continue
        answering.append((physical.parameters.power is not None, card.training.pairs, card.source))
    if not answering:
        raise refused[0]
    return max(answering)[-1]


def _physical_artifact(
    store: ArtifactStore[ScalingCard], cards: Sequence[ScalingCard], gpu: str, campaign: str
) -> Artifact[ScalingCard]:
    mine = [card for card in cards if (card.gpu, card.family) == (gpu, PHYSICAL)]
    schemas = [card.feature_schema.id for card in mine if card.source == campaign]
    if not schemas:
        known = sorted({card.source for card in mine})
        raise ModelError(
            f"no frequency model of {gpu} by {campaign!r}; there are {', '.join(known) or 'none'}",
            gpu=gpu,
            known=known,
        )
    return store.find(gpu, TARGET, PHYSICAL, schemas[-1], source=campaign)
