"""Device code in libraries and wheels: for which GPUs it is, and what only looks like it."""

from __future__ import annotations

import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import archives
from envbuilder.core.errors import InvalidError
from envbuilder.packages.python import kernels
from tests.support.device_code import HOST, amd, bundle, compressed, fatbin

ELF = b"\x7fELF".ljust(4096, b"\0")
NVIDIA = fatbin("sm_80", "sm_90a", "sm_120f", "compute_80")
AMD = bundle(*amd("gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack+", "gfx9-4-generic", "gfx1100"))
GFX = ("gfx1100", "gfx9-4-generic", "gfx90a")


@pytest.mark.parametrize(
    ("content", "targets"),
    [
        (NVIDIA, {("compute_80", "sm_120f", "sm_80", "sm_90a")}),
        (fatbin("sm_80") + fatbin("sm_90"), {("sm_80",), ("sm_90",)}),
        (AMD, {GFX}),
        *[(compressed(AMD, version), {GFX}) for version in (1, 2, 3)],
        (compressed(AMD, 2)[:40] + b"\xff" * 40, {("gfx",)}),
        (compressed(b"no bundle", 3), {("gfx",)}),
        (bundle("sycl-spir64_gen-unknown", HOST), set()),
        (b"__CLANG_OFFLOAD_BUNDLE__sycl-spir64\0CCOB\0\0CCOB", set()),
        (b"__CLANG_OFFLOAD_BUNDLE__".ljust(32, b"\xff"), set()),
        (NVIDIA[:-1], set()),
        (NVIDIA.replace(b"\x01\x01", b"\x02\x01"), set()),
        (b"", set()),
    ],
)
def test_what_a_library_contains(content: bytes, targets: set[tuple[str, ...]]) -> None:
    assert kernels.of_library([ELF, content]).keys() == targets


@given(st.integers(1, 9000), st.integers(0, 100))
def test_pieces_may_end_anywhere(size: int, before: int) -> None:
    data = bytes(before) + NVIDIA + compressed(AMD, 3) + bytes(3000) + AMD + NVIDIA
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    nvidia = len(NVIDIA) - 16
    assert kernels.of_library(pieces) == Counter(
        {("compute_80", "sm_120f", "sm_80", "sm_90a"): 2 * nvidia, GFX: 800}
    )


@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(NVIDIA + compressed(AMD, 2) + AMD)
    for _ in range(data.draw(st.integers(0, 8))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place : place + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=9))
    with suppress(InvalidError):
        kernels.of_library([bytes(whole)])


def test_an_absurd_amount_is_refused() -> None:
    with pytest.raises(InvalidError, match="more device code"):
        kernels.of_library([fatbin() * kernels.MOST_READS])


def test_the_libraries_of_a_wheel_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/_C.abi3.so", ELF + fatbin("sm_80"))
        archive.writestr("x/lib/libx.so.1.2", fatbin("sm_80") + ELF + AMD)
        archive.writestr("x/notes.txt", NVIDIA)
    assert kernels.of_wheel(path) == {("sm_80",): 128, GFX: 400}


@pytest.mark.parametrize("size", [0, 10, 1_000_000])
def test_a_damaged_or_absurd_wheel_is_refused(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALLOWANCE", 1000)
    path = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.so", bytes(size))
    if size < 1000:
        data = bytearray(path.read_bytes())
        data[34:36] = b"\xff\xff"  # the compressed bytes of x.so
        path.write_bytes(data if size else data[:34])
    with pytest.raises(InvalidError, match="not a readable wheel"):
        kernels.of_wheel(path)
