"""Estimate whether a language model's weights fit into memory, and how fast they can be read.

Generating one token for one stream requires every active weight to be read once. The time that this
takes limits the speed, so the result is a ceiling and not a forecast. Only weights are counted. The
key-value cache, activations and the runtime's own memory need additional space, so the result says
how many bytes are left for them. Assumptions, sources and measured runs are in
docs/explanation/sizing.md. Sizes are in bytes, and bandwidths in bytes per second.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.core.errors import InvalidError, clipped, first
from envbuilder.core.text import gibibytes
from envbuilder.host.snapshot import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.host.model import Gpu, Host

Verdict = Literal["no", "unknown", "split", "fits"]

PARAMETERS_MIN = 10**6
PARAMETERS_MAX = 10**14
LINE_WIDTH = 76
_NAME_WIDTH = 24
_UNITS = MappingProxyType({"m": 10**6, "b": 10**9, "t": 10**12})
_COUNT = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([MmBbTt])"
_MODEL = re.compile(rf"{_COUNT}(?:-[Aa]{_COUNT})?")
_EXPERTS = re.compile(r"[0-9]+[xX][0-9.]+[MmBbTt]")

# Bytes per block, with its scales, and weights per block: the structs of ggml-common.h in
# ggml-org/llama.cpp, whose static_asserts state the sizes. nf4 is bitsandbytes' quantize_4bit (32
# bytes of nibbles, one float32 per 64 weights; QLoRA, arXiv 2305.14314, section 3).
_BLOCKS: Mapping[str, tuple[int, int]] = {
    "q8_0": (34, 32),
    "q6_k": (210, 256),
    "q5_1": (24, 32),
    "q5_0": (22, 32),
    "q4_1": (20, 32),
    "q4_0": (18, 32),
    "nvfp4": (36, 64),
    "nf4": (36, 64),
    "mxfp4": (17, 32),
}

# Files that mix block types: bits per weight of Llama 3.1 8B in llama.cpp's
# tools/quantize/README.md; for q3_k_m, of Llama 2 7B in an older version of that file. Other models
# differ by up to 8 %.
_MIXTURES: Mapping[str, float] = {
    "q5_k_m": 5.7036,
    "q5_k_s": 5.5704,
    "q4_k_m": 4.8944,
    "q4_k_s": 4.6672,
    "q3_k_l": 4.2979,
    "q3_k_m": 3.91,
    "q3_k_s": 3.6429,
    "q2_k": 3.1593,
    "q2_k_s": 2.9697,
}

QUANTS: Mapping[str, float] = MappingProxyType(
    {
        "f32": 32.0,
        "bf16": 16.0,
        "f16": 16.0,
        "fp8": 8.0,  # one scale per tensor, which is negligible per weight
        "q8": 8.5,  # q8_0
        "q6": 6.5625,  # q6_K
        "q5": 5.5,  # q5_0 and the block of q5_K
        "q4": 4.5,  # q4_0 and the block of q4_K
        "q3": 3.4375,  # the block of q3_K, 110 bytes for 256 weights; files of that name mix types
        "q2": 2.625,  # the block of q2_K, 84 bytes for 256 weights; files of that name mix types
        **{name: size * 8 / weights for name, (size, weights) in _BLOCKS.items()},
        **_MIXTURES,
    }
)
"""Weight format in lower case → bits per weight, including block scales."""


class Model(Struct, frozen=True, kw_only=True):
    """A model's total number of parameters, and how many of them are active for each token."""

    text: str
    parameters: int
    active: int


class Pool(Struct, frozen=True, kw_only=True):
    """A memory pool: an accelerator's own memory, or the host's main memory.

    A value of None means unknown, never zero. A bandwidth of zero or less also means unknown. A
    chip whose accelerator shares main memory has only one pool, because the same bytes would
    otherwise be counted twice.
    """

    name: str
    usable_bytes: int | None
    bandwidth: int | None
    kind: Literal["accelerator", "memory"]


class Estimate(Struct, frozen=True, kw_only=True):
    """The result of `estimate`.

    `spare_bytes` is the memory that the weights leave free for the key-value cache and everything
    else. If the weights fit into the accelerators, only the accelerators' memory is included. If
    the weights are split or there is no accelerator, main memory is included. If the weights do not
    fit, `spare_bytes` is negative, and its absolute value is the number of missing bytes.
    `spare_bytes` is None if it cannot be determined.

    `unknown_sizes` names the pools of unknown size, which are left out of the placement and of the
    spare bytes. `unknown_bandwidths` names the pools in the placement whose bandwidth is unknown.
    If there are any, there is no ceiling.
    """

    model: Model
    quant: str
    bits: float
    weights_bytes: int
    active_bytes: int
    verdict: Verdict
    placement: tuple[tuple[str, int], ...]
    tokens_per_second: float | None
    spare_bytes: int | None
    unknown_sizes: tuple[str, ...]
    unknown_bandwidths: tuple[str, ...]


def parse_model(text: str) -> Model:
    """Parse a model's size, such as `350M`, `1.5B`, `70b`, `1T` or `30B-A3B` (total and active).

    Raise `InvalidError` for any other text, and for numbers of parameters outside the range 10^6 to
    10^14.
    """
    text = text.strip()
    match = _MODEL.fullmatch(text)
    if match is None:
        hint = (
            "Write the number of parameters as 350M, 1.5B, 70B or 1T, or total and active ones as"
            " 30B-A3B."
        )
        if _EXPERTS.fullmatch(text):
            hint = (
                "Experts share layers, so 8x7B is not 56B: write total and active parameters, for"
                " example 47B-A13B."
            )
        raise InvalidError(f"{_quoted(text)} is not a model size", hint)
    # Decimal, because in binary floating point 1.001 × 10^9 is not a whole number.
    parameters = int(Decimal(match[1]) * _UNITS[match[2].lower()])
    active = int(Decimal(match[3]) * _UNITS[match[4].lower()]) if match[3] else parameters
    for count in (parameters, active):
        if not PARAMETERS_MIN <= count <= PARAMETERS_MAX:
            raise InvalidError(
                f"{_quoted(text)}: a parameter count of {count:,} is out of range",
                "Write a number between 1M and 100T.",
            )
    if active > parameters:
        raise InvalidError(
            f"{_quoted(text)}: more active parameters than parameters in total",
            "Write the total number first, then the active ones, for example 30B-A3B.",
        )
    return Model(text=text, parameters=parameters, active=active)


def bits_of(quant: str) -> float:
    """Return the number of bits per weight of a format in `QUANTS`, ignoring the name's case.

    Raise `InvalidError` if there is no such format.
    """
    name = quant.strip().lower()
    if name in QUANTS:
        return QUANTS[name]
    raise InvalidError(
        f"{_quoted(quant)} is an unknown weight format", f"Known formats: {', '.join(QUANTS)}."
    )


def estimate(model: Model, quant: str, pools: Sequence[Pool]) -> Estimate:
    """Estimate whether the weights fit into `pools`, and the highest speed of a single stream.

    `pools` contains the memory pools of the accelerators that share the model, in the order in
    which they are filled, followed by main memory. Without an accelerator, the weights must fit
    into main memory. No weights are placed in a pool of unknown size; this does not matter if the
    other pools suffice. Raise `InvalidError` for an unknown `quant`.
    """
    bits = bits_of(quant)
    weights = math.ceil(model.parameters * bits / 8)
    accelerators = [pool for pool in pools if pool.kind == "accelerator"]
    memory = [pool for pool in pools if pool.kind == "memory"]
    # Without accelerators, all must fit into main memory.
    verdict, spare = _verdict(weights, accelerators or memory, memory if accelerators else ())
    shares = []
    if verdict in {"fits", "split"}:
        shares = _shares(weights, [*accelerators, *memory])
    active = math.ceil(model.active * bits / 8)
    return Estimate(
        model=model,
        quant=quant.strip().lower(),
        bits=bits,
        weights_bytes=weights,
        active_bytes=active,
        verdict=verdict,
        placement=tuple((pool.name, size) for pool, size in shares),
        tokens_per_second=_ceiling(shares, active / weights),
        spare_bytes=spare,
        unknown_sizes=tuple(p.name for p in [*accelerators, *memory] if p.usable_bytes is None),
        unknown_bandwidths=tuple(p.name for p, _ in shares if not _bandwidth(p)),
    )


def sentences(estimate: Estimate) -> tuple[str, ...]:
    """Format the estimate for a terminal: two or three lines of at most `LINE_WIDTH` columns."""
    weights = gibibytes(estimate.weights_bytes)
    size = f"{estimate.model.text} as {estimate.quant}: {weights} of weights"
    if estimate.active_bytes < estimate.weights_bytes:
        size += f", {gibibytes(estimate.active_bytes)} read per token"
    spare = estimate.spare_bytes or 0
    if estimate.verdict == "unknown":
        names = first(list(map(_short, estimate.unknown_sizes)), 1)
        lines = [size, f"cannot be determined: unknown size of {names}"]
    elif estimate.verdict == "no":
        lines = [size, f"does not fit: {gibibytes(-spare)} are missing"]
    else:
        left = f"{gibibytes(spare)} left for its cache"
        lines = [size, _where(estimate), f"{_speed(estimate)}; {left}"]
    return tuple(clipped(line, LINE_WIDTH) for line in lines)


def _verdict(
    weights: int, first: Sequence[Pool], rest: Sequence[Pool]
) -> tuple[Verdict, int | None]:
    """Return the verdict and the number of spare bytes, which is None if it is unknown.

    The weights are placed in the pools in `first`, and in those in `rest` only if necessary.
    """
    spare = sum(map(_size, first)) - weights
    if spare >= 0:
        return "fits", spare
    if any(pool.usable_bytes is None for pool in first):
        return "unknown", None
    spare += sum(map(_size, rest))
    if spare >= 0:
        return "split", spare
    if any(pool.usable_bytes is None for pool in rest):
        return "unknown", None
    return "no", spare


def _shares(weights: int, pools: Sequence[Pool]) -> list[tuple[Pool, int]]:
    """Distribute the weights over the pools, filling one pool after the other.

    Return each pool that is used, with the number of bytes placed in it.
    """
    shares = []
    for pool in pools:
        if share := min(weights, _size(pool)):
            shares.append((pool, share))
            weights -= share
    return shares


def _ceiling(shares: Sequence[tuple[Pool, int]], active: float) -> float | None:
    """Return the highest possible number of tokens per second, or None if it is unknown.

    The pools are read one after the other, so their read times add up.
    """
    if not shares or not all(_bandwidth(pool) for pool, _ in shares):
        return None
    return 1 / sum(size * active / _bandwidth(pool) for pool, size in shares)


def _size(pool: Pool) -> int:
    return max(0, pool.usable_bytes or 0)


def _bandwidth(pool: Pool) -> int:
    """Return a pool's bandwidth in bytes per second, or 0 if it is unknown."""
    return max(0, pool.bandwidth or 0)


def _where(estimate: Estimate) -> str:
    groups: dict[str, list[int]] = {}
    for name, size in estimate.placement:
        groups.setdefault(_short(name), []).append(size)
    texts = []
    for name, sizes in groups.items():
        count = ""
        if len(sizes) > 1:
            count = f"{len(sizes)} × "
        texts.append(f"{gibibytes(sum(sizes))} in {count}{name}")
    return f"{estimate.verdict}: {', '.join(texts)}"


def _speed(found: Estimate) -> str:
    rate = found.tokens_per_second
    if rate is None:
        return "no ceiling: unknown bandwidth"
    text = f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"
    if rate < 1:
        text = f"{rate:.2g}"
    return f"at most {text} tokens/s for one stream"


def _short(name: str) -> str:
    """Return the device name reported by the driver, shortened to fit on one line."""
    return clipped(clean(name) or "a pool without a name", _NAME_WIDTH)


def _quoted(text: str) -> str:
    return repr(clipped(text, 40))


def pools(host: Host, vendor: str | None) -> tuple[Pool, ...]:
    """Return the memory pools of a vendor's usable GPUs, followed by the pool of main memory.

    If all of these GPUs share main memory, they form one pool, and main memory is not listed again.
    If any of them has dedicated memory, the GPUs that share main memory are ignored.
    """
    gpus = [g for g in host.gpus if g.state == "usable" and g.vendor == vendor]
    dedicated = [g for g in gpus if g.memory_kind != "shared"]
    memory = host.memory
    if gpus and not dedicated:
        shared = gpus[0]
        return (
            Pool(
                name=shared.name,
                usable_bytes=shared.usable_bytes,
                bandwidth=shared.bandwidth or memory.bandwidth,
                kind="accelerator",
            ),
        )
    sizes = [n for n in (memory.total_bytes, memory.limit_bytes) if n is not None]
    main = Pool(
        name="main memory",
        usable_bytes=min(sizes) if sizes else None,
        bandwidth=memory.bandwidth,
        kind="memory",
    )
    return (*map(_pool, dedicated), main)


def _pool(gpu: Gpu) -> Pool:
    """Return the pool for a GPU that has its own memory."""
    usable = gpu.memory_bytes if gpu.usable_bytes is None else gpu.usable_bytes
    return Pool(
        name=gpu.name,
        # A process gets one instance of a split GPU, and which one is unknown.
        usable_bytes=None if gpu.mig else usable,
        bandwidth=gpu.bandwidth,
        kind="accelerator",
    )
