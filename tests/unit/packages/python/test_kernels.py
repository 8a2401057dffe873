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
from envbuilder.host.model import Gpu
from envbuilder.packages.python import kernels
from envbuilder.packages.store import Store
from tests.support import images
from tests.support.device_code import HOST, amd, bundle, compressed, fatbin

ELF = b"\x7fELF".ljust(4096, b"\0")
NVIDIA = fatbin("sm_80", "sm_90a", "sm_120f", "compute_80")
AMD = bundle(*amd("gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack+", "gfx9-4-generic", "gfx1100"))
ALL = "compute_80 sm_120f sm_80 sm_90a"
GFX = "gfx1100 gfx9-4-generic gfx90a"


@pytest.mark.parametrize(
    ("content", "targets"),
    [
        (NVIDIA, {ALL}),
        (fatbin("sm_80") + fatbin("sm_90"), {"sm_80", "sm_90"}),
        (AMD, {GFX}),
        *[(compressed(AMD, version), {GFX}) for version in (1, 2, 3)],
        (compressed(AMD, 2)[:40] + b"\xff" * 40, {"gfx"}),
        (compressed(b"no bundle", 3), {"gfx"}),
        (bundle("sycl-spir64_gen-unknown", HOST), set()),
        (b"__CLANG_OFFLOAD_BUNDLE__sycl-spir64\0CCOB\0\0CCOB", set()),
        (b"__CLANG_OFFLOAD_BUNDLE__".ljust(32, b"\xff"), set()),
        (NVIDIA[:-1], set()),
        (NVIDIA.replace(b"\x01\x01", b"\x02\x01"), set()),
        (b"", set()),
    ],
)
def test_what_a_library_contains(content: bytes, targets: set[str]) -> None:
    assert kernels.of_library([ELF, content]).keys() == targets


@given(st.integers(1, 9000), st.integers(0, 100))
def test_pieces_may_end_anywhere(size: int, before: int) -> None:
    data = bytes(before) + NVIDIA + compressed(AMD, 3) + bytes(3000) + AMD + NVIDIA
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    nvidia = len(NVIDIA) - 16
    assert kernels.of_library(pieces) == Counter({ALL: 2 * nvidia, GFX: 800})


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
    assert kernels.of_wheel(path) == {"sm_80": 128, GFX: 400}


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


@pytest.mark.parametrize(
    ("code", "gpu", "part"),
    [
        ({"sm_80": 3, "sm_90": 1}, "8.6", 0.75),
        ({"compute_70 sm_70": 1}, "12.0", 1),
        ({"compute_90a sm_90a": 1}, "9.0", 1),
        ({"compute_90a sm_90a": 1}, "10.0", 0),
        ({"sm_100f": 1}, "10.3", 1),
        ({"compute_100f": 1}, "12.0", 0),
        ({"sm_86": 1}, "8.0", 0),
        ({"gfx90a": 1}, "8.0", 0),
        ({"gfx90a": 1, "gfx1100 gfx90a": 3, "sm_80": 9}, "gfx1100", 0.75),
        ({"gfx": 1, "gfx11-generic": 1}, "gfx1100", 1),
        ({}, "gfx1100", 1),
    ],
)
def test_the_part_that_serves_a_gpu(code: dict[str, int], gpu: str, part: float) -> None:
    assert kernels.served(code, of(gpu)) == part


def of(gpu: str | None) -> Gpu:
    if gpu and gpu.startswith("gfx"):
        return Gpu(vendor="amd", name="a GPU", state="usable", family=gpu)
    return Gpu(vendor="nvidia", name="a GPU", state="usable", sm=gpu, family="Hopper")


def test_packages_for_other_gpus_are_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    files = [
        images.wheel(store, name, {f"{name}.so": content})
        for name, content in (("old", fatbin("sm_70", "sm_75")), ("plain", ELF), ("any", NVIDIA))
    ]
    (said,) = kernels.unserved(files, of("9.0"), store)
    assert said == "old 1.0 has no device code for a GPU (SM 9.0), only for sm_70, sm_75"
    *_, said = kernels.unserved(files, of("gfx1100"), store)
    assert said.endswith("a GPU (gfx1100), only for compute_80, sm_120f, sm_80, sm_90a")
    for gpu in ("8.7", None):
        assert [*kernels.unserved(files, of(gpu), store)] == []
