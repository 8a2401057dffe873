"""Device code in libraries and wheels: for which GPUs it is, and what only looks like it."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from envbuilder.core import archives
from envbuilder.core.errors import InvalidError
from envbuilder.packages.python import kernels
from envbuilder.packages.store import Store
from tests.support import images
from tests.support.device_code import HOST, amd, bundle, compressed, fatbin
from tests.support.packed import zipped
from tests.support.shipped import LIBRARY
from tests.support.tools import lock_of

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


def test_an_absurd_amount_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many libraries it is in."""
    monkeypatch.setattr(kernels, "MOST_READS", 100)
    (tmp_path / "x.whl").write_bytes(zipped({f"{n}.so": fatbin() * 20 for n in range(3)}))
    with pytest.raises(InvalidError, match="too much device code"):
        kernels.of_wheel(tmp_path / "x.whl")


def test_the_libraries_of_a_wheel_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "x-1-py3-none-any.whl"
    libraries = {
        "x/_C.abi3.so": ELF + fatbin("sm_80"),
        "x/lib/libx.so.1.2": fatbin("sm_80") + ELF + AMD,
    }
    path.write_bytes(zipped({**libraries, "x/notes.txt": NVIDIA}))
    assert kernels.of_wheel(path) == {"sm_80": 128, GFX: 400}


@pytest.mark.parametrize("size", [0, 10, 1_000_000])
def test_a_damaged_or_absurd_wheel_is_refused(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALLOWANCE", 1000)
    path = tmp_path / "x-1-py3-none-any.whl"
    data = bytearray(zipped({"x.so": bytes(size)}))
    if size < 1000:
        data[34:36] = b"\xff\xff"  # the compressed bytes of x.so
    path.write_bytes(data if size else data[:34])
    with pytest.raises(InvalidError, match="not a readable wheel"):
        kernels.of_wheel(path)


def test_a_wheel_is_read_once_and_then_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    contents = {"plain": ELF, "old": fatbin("sm_70"), "torch": NVIDIA, "nvidia-cublas-cu12": NVIDIA}
    files = [images.wheel(store, name, {f"{name}.so": so}) for name, so in contents.items()]
    away = replace(files[1], name="away", sha256="0" * 64)
    damaged = images.wheel(store, "damaged", {"x.so": ELF})
    store.path(damaged.sha256).write_bytes(b"PK")
    lock = lock_of(*files, away, damaged)
    cuda = LIBRARY.profile("cuda")
    cpu = LIBRARY.profile("cpu")
    code = {"plain 1.0": {}, "old 1.0": {"sm_70": 64}}
    assert kernels.read(cuda, lock.files, store) == code
    assert kernels.read(cpu, lock.files, store) == {}
    monkeypatch.setattr(kernels.archives, "open_zip", None)  # nothing is opened again
    assert kernels.read(cuda, files, store) == code


def test_sizes_that_lie_do_no_harm() -> None:
    """A bundle without bytes, and one with more than there can be; headers in many libraries."""
    for size in (0, 1 << 62):
        lying = AMD.replace(struct.pack("<Q", 100), struct.pack("<Q", size))
        assert kernels.of_library([lying]) == {}
    assert kernels.of_library([NVIDIA[:16] + NVIDIA[16:].replace(b"\x40\0\0\0", b"\xff" * 4)]) == {}
