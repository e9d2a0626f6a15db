"""A decoder-only language model as its ``config.json`` describes it, and the operators it runs.

    decoder_of(config)            the fields of a Hugging Face config -> Decoder
    Decoder.forward(...)          one pass over new tokens -> operators with how often each runs

A pass is what an inference engine launches: fused projections (query, key and value in one product,
gate and up in another), attention with a cache, grouped expert products, norms and activations as
streams. What a config says that this does not know is refused by the field's name, never ignored.
Sources: the fields are those of the ``transformers`` configuration classes; the products of a layer
are those of Vaswani et al. 2017 (multi-head attention), Ainslie et al. 2023 (grouped queries),
Shazeer 2020 (gated units), Jiang et al. 2024 (experts), DeepSeek-AI 2024 (latent attention).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from wattcast.features.errors import ModelConfigError

T = TypeVar("T")

NOT_GATED = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "phi", "starcoder2",
             "bloom", "falcon", "mpt", "codegen", "nemotron", "persimmon", "arcee",
             "apertus")  # fmt: skip
"""Families whose feed-forward part has two products; all others have a gate beside them."""

TIED = ("gpt2", "gpt_bigcode", "gemma", "falcon", "starcoder2", "opt", "mpt", "bloom", "cohere",
        "smollm3", "minicpm", "ernie4_5")  # fmt: skip
"""Families whose output product takes the weights of the embedding unless a config says else."""

DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "qwen3": {"head_dim": 128},
    "gemma3": {"head_dim": 256, "vocab_size": 262_208, "num_attention_heads": 8,
               "num_key_value_heads": 4, "sliding_window_pattern": 6},
}  # fmt: skip
"""What published configs leave out: defaults of the ``transformers`` configuration classes."""

_UNLIKE = {
    "it is or has an encoder": "is_encoder_decoder type_vocab_size global_attn_every_n_layers",
    "it holds state-space layers": "ssm_cfg mamba_d_state ssm_state_size",
    "it holds linear attention":
        "linear_num_value_heads layernorm_linear_attention_alpha linear_attn_config",
    "it mixes kinds of layers": "attn_layer_period lru_width conv_L_cache",
    "it holds cross attention": "cross_attention_layers",
    "its attention is in chunks": "attention_chunk_size",
    "its layers differ one by one": "block_configs num_key_value_heads_per_layer",
    "its layers have embeddings of their own": "hidden_size_per_layer_input",
    "its experts stand beside a dense part": "parallel_attn_mlp_res",
    "its attention is sparse": "use_mla_indexer index_topk dense_attention_every_n_layers",
}  # fmt: skip
UNLIKE = {name: why for why, names in _UNLIKE.items() for name in names.split()}
"""Fields that say of a model, where they are set, that it is no decoder of the usual layers."""

MOST = {"layers": 1_000, "experts": 4_096, "size": 1 << 24, "head_size": 512}
"""Bounds on what a config may ask for: several times the largest published models; heads: twice
those of FlashAttention (its README: all sizes up to 256; kernels pad to multiples of 8)."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture-of-experts part: ``top_k`` of ``experts`` for each token, beside a shared one."""

    experts: int
    top_k: int
    inner: int
    shared_inner: int = 0


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2): what is cached is ``rank + rope`` numbers."""

    query_rank: int
    rank: int
    plain: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class Layer:
    """What tells layers of one model apart. ``window``: tokens seen, 0 for all."""

    window: int
    inner: int
    experts: Experts | None


@dataclass(frozen=True, slots=True)
class Part:
    """One operator of a pass: the request of ``POST /predict`` and how often it runs."""

    role: str
    operator: Mapping[str, Any]
    count: int

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for operators that are the same."""
        return tuple(self.operator.items())


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder. Sizes are counts of numbers; ``layers`` are kinds of layers with their count."""

    family: str
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int
    gated: bool
    tied: bool
    norms: int
    latent: Latent | None
    layers: tuple[tuple[Layer, int], ...]

    @property
    def query_size(self) -> int:
        """Numbers of all queries of a token."""
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Numbers of all keys of a token, as many as of all values."""
        return self.kv_heads * self.head_size

    @property
    def cached_numbers(self) -> int:
        """Numbers that one token leaves in the cache of one layer."""
        return self.latent.rank + self.latent.rope if self.latent else 2 * self.kv_size

    def cached_tokens(self, tokens: int) -> int:
        """Tokens in the caches of all layers together, once a sequence holds ``tokens``."""
        return sum(count * min(tokens, layer.window or tokens) for layer, count in self.layers)

    def _attention_products(self) -> Iterator[tuple[str, int, int, int]]:
        """Role, n, k and the share of n (1) or k (2) that tensor parallelism splits (0: none)."""
        if self.latent is None:
            yield "qkv_projection", self.query_size + 2 * self.kv_size, self.hidden, 1
            yield "output_projection", self.hidden, self.query_size, 2
            return
        latent = self.latent
        queries = self.heads * (latent.plain + latent.rope)
        if latent.query_rank:
            down = latent.query_rank + latent.rank + latent.rope
            yield "latent_down_projection", down, self.hidden, 0
            yield "query_up_projection", queries, latent.query_rank, 1
        else:
            yield "query_projection", queries, self.hidden, 1
            yield "latent_down_projection", latent.rank + latent.rope, self.hidden, 0
        yield "latent_up_projection", self.heads * (latent.plain + latent.value), latent.rank, 1
        yield "output_projection", self.hidden, self.heads * latent.value, 2

    def _dense_products(self, inner: int, prefix: str = "") -> Iterator[tuple[str, int, int, int]]:
        yield f"{prefix}up_projection", (2 if self.gated else 1) * inner, self.hidden, 1
        yield f"{prefix}down_projection", self.hidden, inner, 2

    def parameters(self) -> int:
        """Numbers of all weights (biases and norms left out: below a thousandth)."""
        total = self.vocabulary * self.hidden * (1 if self.tied else 2)
        for layer, count in self.layers:
            own = sum(n * k for _, n, k, _ in self._attention_products())
            own += sum(n * k for _, n, k, _ in self._dense_products(layer.inner))
            if (moe := layer.experts) is not None:
                own += moe.experts * (
                    self.hidden + (3 if self.gated else 2) * self.hidden * moe.inner
                )
                own += sum(n * k for _, n, k, _ in self._dense_products(moe.shared_inner))
            total += count * own
        return total

    def forward(
        self,
        batch: int,
        new: int,
        cached: int,
        *,
        dtype: str,
        kv_dtype: str,
        tensor_parallel: int = 1,
        all_logits: bool = False,
    ) -> list[Part]:
        """Operators of one pass over ``new`` tokens of ``batch`` sequences with ``cached`` tokens
        each in the cache, on one of ``tensor_parallel`` GPUs.

        ``all_logits``: products with the vocabulary for every token (training), not for the last.
        """
        tokens, parts = batch * new, list[Part]()
        bytes_each = 2  # activations are 16 bits wide in every engine, whatever the products are

        def product(role: str, n: int, k: int, split: int, count: int, rows: int = tokens) -> None:
            n = -(-n // tensor_parallel) if split == 1 else n
            k = -(-k // tensor_parallel) if split == 2 else k
            if n and k:
                parts.append(
                    Part(role, {"name": "gemm", "m": rows, "n": n, "k": k, "dtype": dtype}, count)
                )

        def stream(name: str, role: str, read: int, written: int, count: int) -> None:
            given = {
                "name": name, "read_bytes": bytes_each * read, "write_bytes": bytes_each * written
            }  # fmt: skip
            parts.append(Part(role, given, count))

        wide = tokens * self.hidden
        stream("embedding", "embedding", wide, wide, 1)
        depth = sum(count for _, count in self.layers)
        stream("norm", "norms", wide, wide, self.norms * depth + 1)
        for role, n, k, split in self._attention_products():
            product(role, n, k, split, depth)
        rotated = (self.query_size + self.kv_size) // tensor_parallel
        stream("rope", "rope", tokens * rotated, tokens * rotated, depth)
        parts += self.attention(batch, new, cached, dtype, kv_dtype, tensor_parallel)
        for layer, count in self.layers:
            if layer.inner:
                for role, n, k, split in self._dense_products(layer.inner):
                    product(role, n, k, split, count)
                inner = tokens * -(-layer.inner // tensor_parallel)
                stream("activation", "activation", (1 + self.gated) * inner, inner, count)
            if (moe := layer.experts) is not None:
                product("router", moe.experts, self.hidden, 0, count)
                given = {
                    "name": "moe", "tokens": tokens, "hidden": self.hidden, "inner": moe.inner,
                    "topk": moe.top_k, "experts": moe.experts, "tensor_parallel": tensor_parallel,
                    "dtype": dtype,
                }  # fmt: skip
                parts.append(Part("experts", given, count))
                for role, n, k, split in self._dense_products(moe.shared_inner, "shared_"):
                    product(role, n, k, split, count)
        rows = tokens if all_logits else batch
        product("vocabulary", self.vocabulary, self.hidden, 1, 1, rows)
        return parts

    def attention(
        self, batch: int, new: int, cached: int, dtype: str, kv_dtype: str, split: int
    ) -> list[Part]:
        """Attention of all layers: all of a pass that goes by ``cached``."""
        attended = Counter[int]()
        for layer, count in self.layers:
            attended[layer.window] += count
        return [
            Part(
                "attention",
                self._attention(batch, new, cached, window, dtype, kv_dtype, split),
                count,
            )
            for window, count in attended.items()
        ]

    def _attention(
        self, batch: int, new: int, cached: int, window: int, dtype: str, kv_dtype: str, split: int
    ) -> dict[str, Any]:
        """Latent attention decodes as attention to one shared head of ``rank + rope`` numbers and
        is unfolded to plain heads for new prompts (DeepSeek-AI 2024, section 2.1)."""
        heads, kv_heads = max(self.heads // split, 1), max(self.kv_heads // split, 1)
        size = self.head_size
        if self.latent is not None:
            kv_heads = 1 if new == 1 else heads
            size = self.latent.plain + self.latent.rope if new > 1 else self.cached_numbers
        return {
            "name": "attention", "phase": "decode" if new == 1 else "prefill", "batch": batch,
            "new_tokens": new, "cached_tokens": cached, "heads": heads, "kv_heads": kv_heads,
            "head_size": size, "window": window, "causal": True,
            "dtype": "fp8" if dtype == "fp8" else "bfloat16", "kv_dtype": kv_dtype,
        }  # fmt: skip


def decoder_of(config: Mapping[str, Any]) -> Decoder:
    """The decoder of a parsed ``config.json``.

    Raises ModelConfigError naming the field that is missing, wrong or unknown.
    """
    fields = _Fields(config)
    for name, why in UNLIKE.items():
        if fields.given.get(name):
            raise ModelConfigError(f"{name}: {why}; such models are not forecast", field=name)
    family = fields.text("model_type", "")
    hidden = fields.size("hidden_size", "n_embd", "n_embed", "d_model")
    depth = fields.size(
        "num_hidden_layers", "n_layer", "n_layers", "num_layers", most=MOST["layers"]
    )
    heads = fields.size("num_attention_heads", "n_head", "n_heads")
    kv_heads = (
        1
        if fields.flag("multi_query") and not fields.flag("new_decoder_architecture")
        else fields.size("num_key_value_heads", "num_kv_heads", "kv_n_heads", default=heads)
    )
    if heads % kv_heads:
        raise ModelConfigError(
            f"num_attention_heads ({heads}) is no multiple of num_key_value_heads ({kv_heads})",
            field="num_key_value_heads",
        )
    latent = _latent(fields)
    head_size = fields.size("head_dim", default=max(hidden // heads, 1))
    if not fields.has("head_dim") and latent is None and hidden % heads:
        raise ModelConfigError(
            f"hidden_size ({hidden}) is no multiple of num_attention_heads ({heads}), "
            "and head_dim is not given",
            field="head_dim",
        )
    if latent is None and (head_size % 8 or head_size > MOST["head_size"]):
        raise ModelConfigError(
            f"heads of {head_size} numbers: attention kernels take multiples of 8 up to "
            f"{MOST['head_size']}",
            field="head_dim" if fields.has("head_dim") else "num_attention_heads",
        )
    return Decoder(
        family=family,
        hidden=hidden,
        vocabulary=fields.size("vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size if latent is None else latent.plain + latent.rope,
        gated=family not in NOT_GATED,
        tied=fields.flag("tie_word_embeddings", default=family.startswith(TIED)),
        norms=4 if family.startswith(("gemma2", "gemma3")) else 2,
        latent=latent,
        layers=_layers(fields, family, hidden, depth),
    )


def _latent(fields: _Fields) -> Latent | None:
    if not fields.has("kv_lora_rank"):
        return None
    return Latent(
        query_rank=fields.size("q_lora_rank", default=0, least=0),
        rank=fields.size("kv_lora_rank"),
        plain=fields.size("qk_nope_head_dim"),
        rope=fields.size("qk_rope_head_dim"),
        value=fields.size("v_head_dim"),
    )


def _layers(fields: _Fields, family: str, hidden: int, depth: int) -> tuple[tuple[Layer, int], ...]:
    """Kinds of layers with how often each occurs, in order of first occurrence."""
    inner = fields.size("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size",
                        default=4 * hidden)  # fmt: skip
    inner = inner // 2 if family == "qwen" else inner  # there: of gate and up together
    experts = _experts(fields, inner)
    dense_inner = fields.size("intermediate_size_mlp", default=inner)
    kinds = Counter[Layer]()
    windows = _windows(fields, family, depth)
    for number, window in enumerate(windows):
        sparse = experts is not None and _is_sparse(fields, number)
        kinds[Layer(window, 0 if sparse else dense_inner, experts if sparse else None)] += 1
    return tuple(kinds.items())


def _experts(fields: _Fields, inner: int) -> Experts | None:
    count = fields.size("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts",
                        default=-1, least=0, most=MOST["experts"])  # fmt: skip
    if count < 2:
        unread = (name for name, value in fields.given.items() if "expert" in name and value)
        if count < 0 and (name := next(unread, None)) is not None:
            raise ModelConfigError(f"{name[:64]}: how many experts there are is missing",
                                   field="num_experts")  # fmt: skip
        return None
    top = fields.size("num_experts_per_tok", "experts_per_token", "moe_topk",
                      "num_experts_per_token", "moe_top_k", "moe_k")  # fmt: skip
    if top > count:
        raise ModelConfigError(
            f"num_experts_per_tok ({top}) is more than the experts there are ({count})",
            field="num_experts_per_tok",
        )
    own = fields.size("moe_intermediate_size", default=inner)
    shared = fields.size(
        "shared_expert_intermediate_size", "shared_intermediate_size", default=0, least=0
    )
    beside = fields.size(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, least=0
    )
    return Experts(count, top, own, shared or own * beside)


def _is_sparse(fields: _Fields, number: int) -> bool:
    """Whether layer ``number`` has experts."""
    if number < fields.size("first_k_dense_replace", "moe_layer_start_index", default=0, least=0):
        return False
    if number in fields.numbers("mlp_only_layers"):
        return False
    if fields.has("moe_layers"):
        return number in fields.numbers("moe_layers")
    step = fields.size("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq",
                       "moe_layer_interval", default=1)  # fmt: skip
    return step <= 1 or (number + 1) % step == 0


def _windows(fields: _Fields, family: str, depth: int) -> list[int]:
    """Tokens that each layer attends to, 0 for all."""
    window = fields.size("sliding_window", default=0, least=0)
    kinds = fields.given.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, Sequence) or len(kinds) != depth:
            raise ModelConfigError(
                f"layer_types must name the kind of each of the {depth} layers", field="layer_types"
            )
        names = {"full_attention": 0, "sliding_attention": window}
        unknown = next((str(kind)[:40] for kind in kinds if kind not in names), None)
        if unknown is not None:
            raise ModelConfigError(
                f"layer_types: {unknown!r} is neither full_attention nor sliding_attention",
                field="layer_types",
            )
        return [names[kind] for kind in kinds]
    if not window or fields.given.get("use_sliding_window") is False:
        return [0] * depth
    if fields.has("sliding_window_pattern"):
        step = fields.size("sliding_window_pattern")
        return [window if (number + 1) % step else 0 for number in range(depth)]
    if family in ("gemma2", "gpt_oss"):
        return [0 if number % 2 else window for number in range(depth)]
    first = (
        fields.size("max_window_layers", default=0, least=0) if family.startswith("qwen2") else 0
    )
    return [window if number >= first else 0 for number in range(depth)]


class _Fields:
    """Fields of a config, checked as they are read; several names are tried in turn."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.given: Mapping[str, Any] = config
        for name in ("text_config", "attn_config", "ffn_config"):
            if isinstance(nested := config.get(name), Mapping):
                self.given = {**self.given, **nested}
        family = self.text("model_type", "").replace("gemma3_text", "gemma3")
        self.given = {**DEFAULTS.get(family, {}), **self.given}

    def has(self, name: str) -> bool:
        return self.given.get(name) is not None

    def size(
        self, *names: str, default: int | None = None, least: int = 1, most: int = MOST["size"]
    ) -> int:
        """The first of ``names`` that is set: a whole number in bounds; else the default."""
        name = next((each for each in names if self.has(each)), None)
        if name is None:
            if default is None:
                raise ModelConfigError(f"{names[0]} is missing", field=names[0])
            return default
        value = self.given[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ModelConfigError(
                f"{name} must be a whole number from {least} to {most:,}, not {str(value)[:40]!r}",
                field=name,
            )
        return value

    def _read(self, name: str, default: T, is_right: Callable[[Any], bool], what: str) -> T:
        value: T | None = self.given.get(name)
        if value is None:
            return default
        if not is_right(value):
            raise ModelConfigError(f"{name} must be {what}", field=name)
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        return self._read(name, default, lambda given: isinstance(given, bool), "true or false")

    def text(self, name: str, default: str) -> str:
        def is_right(given: Any) -> bool:
            return isinstance(given, str) and len(given) <= 64 and given.isprintable()

        return self._read(name, default, is_right, "a short text")

    def numbers(self, name: str) -> Sequence[int]:
        def is_right(given: Any) -> bool:
            listed = isinstance(given, list) and len(given) <= MOST["layers"]
            return listed and all(isinstance(each, int) for each in given)

        return self._read(name, list[int](), is_right, "a list of layer numbers")
