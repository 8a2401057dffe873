"""What shares a layer: nothing is lost, nothing is twice, and the order is one that pays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from envbuilder.builds.image import parts as module
from envbuilder.builds.image.parts import CUT, LARGE, cut, parts
from envbuilder.profiles.lock import File


def wheel(name: str, number: int = 0) -> File:
    return File(
        kind="wheel", name=name, version="1.0", file=f"{name}-1.0-py3-none-any.whl",
        sha256=f"{number:064x}", size=1, source="default", provenance="read", by="test",
    )  # fmt: skip


TORCH, SYMPY, SIX, TYPING = (
    wheel(n, i) for i, n in enumerate(("torch", "sympy", "six", "typing"), 1)
)
SIZES = {TORCH.sha256: 200 << 20, SYMPY.sha256: LARGE, SIX.sha256: 10, TYPING.sha256: LARGE - 1}


def shares(of: File) -> Sequence[tuple[str, ...]]:
    return [("a", "b"), ("lib.so",)] if of is TORCH else []


def test_the_largest_wheel_is_lowest_and_its_last_files_are_its_highest() -> None:
    found = parts([SIX, SYMPY, TORCH, TYPING], SIZES, shares, room=50)
    assert [(p.reason, p.files, p.without) for p in found] == [
        ("torch 1.0: a to b", ("a", "b"), ()),
        ("torch 1.0: lib.so", ("lib.so",), ()),
        ("torch 1.0", (), ("a", "b", "lib.so")),
        ("sympy 1.0", (), ()),
        ("2 smaller packages", (), ()),
    ]
    assert found[-1].wheels == (SIX, TYPING)


@pytest.mark.parametrize("room", range(-2, 7))
def test_where_room_is_short_shares_stay_together_and_then_wheels(room: int) -> None:
    found = parts([SIX, SYMPY, TORCH], SIZES, shares, room)
    assert len(found) <= max(room, 0) + 1
    assert {w.name for p in found for w in p.wheels} == {"six", "sympy", "torch"}
    if room < 1:
        assert [p.wheels for p in found] == [(SIX, SYMPY, TORCH)]


FILES = st.dictionaries(
    st.text("abcdef/", min_size=1, max_size=6),
    st.integers(0, 2 * CUT) | st.sampled_from([0, 1, CUT - 1, CUT, CUT + 1]),
    max_size=30,
)


@given(FILES, st.sampled_from([1, 3, 1000]))
def test_shares_are_full_but_never_too_full(files: dict[str, int], spread: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SPREAD", spread)
        limit = CUT * max(1, -(-sum(files.values()) // (spread * CUT)))
        found = list(cut(files))
    assert len(found) <= 2 * spread or spread == 1000
    named = [name for share in found for name in share]
    assert len(named) == len({*named})
    assert all(share for share in found)
    for share in found:
        assert len(share) == 1 or sum(files[n] for n in share) <= limit
    left = files.keys() - {*named}
    assert sum(files[n] for n in left) <= limit
    together = [n for share in found if files[share[0]] <= limit for n in share] + sorted(left)
    assert together == sorted(together)
    alone = [files[share[0]] for share in found if files[share[0]] > limit]
    assert alone == sorted(alone)


def test_a_small_wheel_is_not_cut() -> None:
    assert list(cut({"a": CUT, "b": 0})) == []
    assert list(cut({})) == []


def test_the_shares_of_torchs_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CUT", 100)
    files = {"torch/lib/large.so": 400, "torch/a.py": 60, "torch/bin/x": 50, "torch/z.py": 30}
    assert list(cut(files)) == [("torch/a.py",), ("torch/lib/large.so",)]


def rocm() -> dict[str, int]:
    """Files like those of torch's wheel for ROCm: 18 GB, in libraries and folders of kernels."""
    mib = 1 << 20
    files = {f"torch/mod{n:04}.py": 20_000 for n in range(3000)}
    files |= {f"torch/lib/lib{n:02}.so": 90 * mib for n in range(30)}
    files |= {"torch/lib/libtorch_hip.so": 1500 * mib, "torch/lib/libMIOpen.so": 900 * mib}
    for gfx in ("1100", "1101", "1102", "1150", "1200", "1201", "90a", "942", "950"):
        files |= {f"torch/lib/aotriton.images/gfx{gfx}/{n:03}.aks2": 2 * mib for n in range(150)}
        files |= {f"torch/lib/hipblaslt/library/T{n:03}_gfx{gfx}.co": 2 * mib for n in range(400)}
        files |= {f"torch/lib/rocblas/library/T{n:03}_gfx{gfx}.co": mib // 2 for n in range(400)}
    return files


def test_a_huge_wheel_has_no_huge_layer_and_leaves_layers_to_others() -> None:
    files = rocm()
    assert sum(files.values()) > 14 << 30
    found = list(cut(files))
    assert 20 < len(found) < 2 * module.SPREAD
    assert max(sum(files[n] for n in share) for share in found if len(share) > 1) <= 5 * CUT
    named = [name for share in found for name in share]
    assert len(named) == len({*named})
    assert sum(files[n] for n in files.keys() - {*named}) <= 5 * CUT
    assert found == list(cut(dict(reversed(files.items()))))


def test_the_next_version_of_a_huge_wheel_shares_the_layers_of_folders() -> None:
    """Its libraries change in size, its folders of kernels do not."""
    files = rocm()
    following = {n: size + (9 << 20) * n.endswith(".so") for n, size in files.items()}
    shares = {*cut(files)} & {*cut(following)}
    kept = sum(files[n] for share in shares for n in share if not n.endswith(".so"))
    kernels = sum(files[n] for n in files if "/lib/" in n and not n.endswith(".so"))
    assert kept > kernels * 3 // 4


def test_a_wheel_of_deep_folders_is_cut_too() -> None:
    files = {f"{'a/' * 1100}{n}": 2 * CUT for n in range(40)}
    assert len(list(cut(files))) < 40
