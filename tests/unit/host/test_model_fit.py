"""Sizes are sums anybody can redo; what is unknown stays unknown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.host import model_fit as sizing
from envbuilder.host.model import Gpu, Host, Memory
from envbuilder.host.model_fit import Model, Pool

GB = 10**9
changed: Any = msgspec.structs.replace


def card(size: int | None = 24 * GB, bandwidth: int | None = 900 * GB, name: str = "card") -> Pool:
    return Pool(name=name, usable_bytes=size, bandwidth=bandwidth, kind="accelerator")


def memory(size: int | None = 64 * GB, bandwidth: int | None = 100 * GB) -> Pool:
    return Pool(name="main memory", usable_bytes=size, bandwidth=bandwidth, kind="memory")


def dense(parameters: int) -> Model:
    return Model(text="any", parameters=parameters, active=parameters)


@pytest.mark.parametrize(
    ("text", "parameters", "active"),
    [
        ("350M", 350 * 10**6, 350 * 10**6),
        (" 70B\n", 70 * GB, 70 * GB),
        ("30B-A3B", 30 * GB, 3 * GB),
        ("1t-a32b", 10**12, 32 * GB),
        # The nearest binary fraction is a little less.
        ("1.001B", 1_001_000_000, 1_001_000_000),
    ],
)
def test_sizes_of_models(text: str, parameters: int, active: int) -> None:
    model = sizing.parse_model(text)
    assert (model.parameters, model.active) == (parameters, active)
    assert model.text == text.strip()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        *((text, "is not a model size", "350M") for text in ("", "70", "7,5B", "\uff17B")),
        ("8x7B", "is not a model size", "47B-A13B"),
        ("0.9M", "a parameter count of 900,000 is out of range", "1M"),
        ("100.000001T", "out of range", "100T"),
        ("7B-A0.5M", "a parameter count of 500,000 is out of range", "1M"),
        ("3B-A30B", "more active parameters", "30B-A3B"),
    ],
)
def test_what_is_no_size_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidError, match=message) as caught:
        sizing.parse_model(text)
    assert hint in caught.value.hint


@given(st.text(max_size=300) | st.from_regex(r"[0-9.xX]{1,12}[MBT](-A[0-9.]{1,8}[MBT])?"))
def test_any_text_is_a_model_or_a_clear_error(text: str) -> None:
    try:
        model = sizing.parse_model(text)
    except InvalidError:
        return
    assert 10**6 <= model.active <= model.parameters <= 10**14


# Bytes of a block and its weights, counted from the struct of each type in ggml-common.h and from
# bitsandbytes, independently of the module: scales + quants.
@pytest.mark.parametrize(
    ("quant", "size", "weights"),
    [
        ("q8", 2 + 32, 32),
        ("q4", 4 + 12 + 128, 256),
        ("q3", 32 + 64 + 12 + 2, 256),
        ("nvfp4", 4 + 32, 64),
        ("nf4", 4 + 32, 64),
        ("bf16", 2, 1),
    ],
)
def test_bits_count_the_scales(quant: str, size: int, weights: int) -> None:
    assert sizing.bits_of(quant) == size * 8 / weights


def test_short_names_are_the_exact_types_and_a_mixture_takes_more() -> None:
    for name, exact in (("q8", "q8_0"), ("q6", "q6_k"), ("q5", "q5_0"), ("q4", "q4_0")):
        assert sizing.QUANTS[name] == sizing.QUANTS[exact]
    for name in ("q5", "q4", "q3", "q2"):
        assert sizing.QUANTS[f"{name}_k_s"] > sizing.QUANTS[name]


@given(st.text(max_size=80).filter(lambda t: t.strip().lower() not in sizing.QUANTS))
def test_any_other_quant_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        sizing.estimate(dense(GB), text, [card()])
    assert "q4_0" in caught.value.hint


@pytest.mark.parametrize(
    ("pools", "verdict", "placed", "spare"),
    [
        # 80 GB of weights: 40 billion at 16 bits.
        ([card(80 * GB)], "fits", [80], 0),
        ([card(80 * GB - 1)], "no", [], -1),
        ([card(50 * GB), card(50 * GB)], "fits", [50, 30], 20 * GB),
        ([card(50 * GB), memory(50 * GB)], "split", [50, 30], 20 * GB),
        ([card(20 * GB), memory(20 * GB)], "no", [], -40 * GB),
        ([memory(100 * GB)], "fits", [80], 20 * GB),
        ([card(-5), memory(100 * GB)], "split", [80], 20 * GB),
        # What is unknown matters only where the rest does not settle it.
        ([card(None), card(90 * GB)], "fits", [80], 10 * GB),
        ([card(None), memory(100 * GB)], "unknown", [], None),
        ([card(20 * GB), memory(None)], "unknown", [], None),
        ([memory(None)], "unknown", [], None),
    ],
)
def test_verdicts(pools: list[Pool], verdict: str, placed: list[int], spare: int | None) -> None:
    found = sizing.estimate(dense(40 * GB), "f16", pools)
    assert found.weights_bytes == 80 * GB
    assert found.verdict == verdict
    assert [size for _, size in found.placement] == [size * GB for size in placed]
    assert found.spare_bytes == spare


def test_unknown_pools_are_named() -> None:
    pools = [card(None, name="a"), card(90 * GB, None, name="b"), memory(None)]
    found = sizing.estimate(dense(40 * GB), "f16", pools)
    assert found.verdict == "fits"
    assert found.unknown_sizes == ("a", "main memory")
    assert found.unknown_bandwidths == ("b",)
    assert found.tokens_per_second is None


@pytest.mark.parametrize(
    ("model", "quant", "pools", "rate"),
    [
        # 8 GB at 100 GB/s.
        ("8B", "fp8", [memory()], 100 / 8),
        # Two cards add their times: 40 GB + 40 GB at 1,000 GB/s take 80 ms, as on one of them.
        ("40B", "f16", [card(40 * GB, 1000 * GB), card(40 * GB, 1000 * GB)], 1000 / 80),
        # 20 GB at 1,000 GB/s and 60 GB at 100 GB/s: 20 ms + 600 ms.
        ("40B", "f16", [card(20 * GB, 1000 * GB), memory()], 1 / 0.620),
        # A tenth is active, in both memories alike.
        ("40B-A4B", "f16", [card(20 * GB, 1000 * GB), memory()], 1 / 0.062),
        ("40B", "f16", [card(80 * GB, None)], None),
        ("40B", "f16", [card(20 * GB), memory(bandwidth=None)], None),
        # A bandwidth that nothing needs may be unknown.
        ("8B", "f16", [card(), memory(bandwidth=None)], 900 / 16),
    ],
)
def test_ceilings(model: str, quant: str, pools: list[Pool], rate: float | None) -> None:
    found = sizing.estimate(sizing.parse_model(model), quant, pools)
    assert found.tokens_per_second == (None if rate is None else pytest.approx(rate))


SIZE = st.none() | st.integers(-5, 2**63)
POOLS = st.lists(st.builds(card, SIZE, SIZE, st.text(max_size=60)), max_size=4)
MAIN_MEMORY = st.lists(st.builds(memory, SIZE, SIZE), max_size=1)
QUANT = st.sampled_from(sorted(sizing.QUANTS))


@st.composite
def models(draw: st.DrawFn) -> Model:
    parameters = draw(st.integers(10**6, 10**13))
    active = draw(st.integers(10**6, parameters))
    return Model(text="any", parameters=parameters, active=active)


@given(models(), QUANT, POOLS, MAIN_MEMORY)
def test_whatever_the_host_the_answer_is_consistent(
    model: Model, quant: str, cards: list[Pool], main: list[Pool]
) -> None:
    found = sizing.estimate(model, quant, [*cards, *main])
    placed = sum(size for _, size in found.placement)
    assert placed == (found.weights_bytes if found.verdict in {"fits", "split"} else 0)
    for _, size in found.placement:
        assert size > 0
    assert 0 < found.active_bytes <= found.weights_bytes
    assert (found.spare_bytes is None) == (found.verdict == "unknown")
    assert (found.verdict == "no") == (found.spare_bytes is not None and found.spare_bytes < 0)
    if found.verdict == "unknown":
        assert found.unknown_sizes
    ceiling = bool(found.placement) and not found.unknown_bandwidths
    assert (found.tokens_per_second is not None) == ceiling
    lines = sizing.sentences(found)
    assert 2 <= len(lines) <= 3
    for line in lines:
        assert len(line) <= 76
        assert line.isprintable()


@pytest.mark.parametrize(
    ("model", "pools", "lines"),
    [
        (
            "70B",
            [card(), memory()],
            (
                "70B as q4: 36.7 GiB of weights",
                "split: 22.4 GiB in card, 14.3 GiB in main memory",
                "at most 5.5 tokens/s for one stream; 45.3 GiB left for its cache",
            ),
        ),
        (
            "30B-A3B",
            [memory()],
            (
                "30B-A3B as q4: 15.7 GiB of weights, 1.6 GiB read per token",
                "fits: 15.7 GiB in main memory",
                "at most 59.3 tokens/s for one stream; 43.9 GiB left for its cache",
            ),
        ),
        (
            "70B",
            [card(name="a card with a name that is much too long for a line"), memory()],
            (
                "70B as q4: 36.7 GiB of weights",
                "split: 22.4 GiB in a card with a name that…, 14.3 GiB in main memory",
                "at most 5.5 tokens/s for one stream; 45.3 GiB left for its cache",
            ),
        ),
        (
            "1T",
            [card(), memory(bandwidth=10 * GB)],
            ("1T as q4: 523.9 GiB of weights", "does not fit: 441.9 GiB are missing"),
        ),
        (
            "70B",
            [card(None, name="x\x1b[31m\ny"), memory(None)],
            (
                "70B as q4: 36.7 GiB of weights",
                "cannot be determined: unknown size of x [31m y and 1 more",
            ),
        ),
    ],
)
def test_sentences(model: str, pools: list[Pool], lines: tuple[str, ...]) -> None:
    found = sizing.estimate(sizing.parse_model(model), "q4", pools)
    assert sizing.sentences(found) == lines


GIB = 2**30
MAIN = Memory(total_bytes=64 * GIB, bandwidth=80 * 10**9)
LINUX = Host(os="linux", memory=MAIN)
ADA = Gpu(
    vendor="nvidia", name="RTX 4090", state="usable", memory_kind="dedicated",
    memory_bytes=24 * GIB, usable_bytes=23 * GIB, bandwidth=1008 * 10**9,
)  # fmt: skip
M2 = Gpu(
    vendor="apple", name="Apple M2 GPU", state="usable", memory_kind="shared",
    memory_bytes=16 * GIB, usable_bytes=10 * GIB,
)  # fmt: skip


def sizes(here: Host, vendor: Any) -> list[tuple[str, int | None, int | None]]:
    return [(p.kind, p.usable_bytes, p.bandwidth) for p in sizing.pools(here, vendor)]


def own(gibibytes: int | None, gigabytes: int = 1008) -> tuple[str, int | None, int]:
    return ("accelerator", gibibytes and gibibytes * GIB, gigabytes * 10**9)


LAST = ("memory", 64 * GIB, 80 * 10**9)


@pytest.mark.parametrize(
    ("vendor", "gpus", "expected"),
    [
        # Each GPU with its own memory is a pool, and main memory comes last.
        ("nvidia", (ADA, ADA), [own(23), own(23), LAST]),
        # Memory that is shared is counted once.
        ("apple", (M2,), [own(10, 80)]),
        ("apple", (changed(M2, bandwidth=100 * 10**9),), [own(10, 100)]),
        # What a shared GPU may have is never taken from the total.
        ("apple", (changed(M2, usable_bytes=None),), [own(None, 80)]),
        # Only usable GPUs of the right vendor count.
        *(
            ("nvidia", (changed(ADA, state=state), changed(M2, vendor="intel")), [LAST])
            for state in ("present", "unknown")
        ),
        (None, (ADA,), [LAST]),
        # All memory of a GPU, where nobody says what the driver keeps.
        ("nvidia", (changed(ADA, usable_bytes=None),), [own(24), LAST]),
        # How much a process gets of a split GPU is not known.
        ("nvidia", (changed(ADA, mig=True, usable_bytes=None),), [own(None), LAST]),
    ],
)
def test_pools_of_a_host(vendor: Any, gpus: tuple[Gpu, ...], expected: list[Any]) -> None:
    assert sizes(changed(LINUX, gpus=gpus), vendor) == expected


def test_shared_gpus_do_not_count_beside_dedicated_ones() -> None:
    arc = changed(ADA, vendor="intel", name="Arc B580")
    display = changed(M2, vendor="intel", name="Arc 140V")
    here = changed(LINUX, gpus=(display, arc))
    assert [p.name for p in sizing.pools(here, "intel")] == ["Arc B580", "main memory"]


@pytest.mark.parametrize(
    ("total", "limit", "usable"),
    [(64, 8, 8), (64, 128, 64), (64, None, 64), (None, 8, 8), (None, None, None)],
)
def test_main_memory_is_what_the_container_allows(
    total: int | None, limit: int | None, usable: int | None
) -> None:
    here = changed(LINUX, memory=Memory(total_bytes=total, limit_bytes=limit))
    assert sizes(here, None) == [("memory", usable, None)]
