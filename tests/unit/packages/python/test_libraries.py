"""Shared libraries that wheels need, by ELF's dynamic section, and what brings them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.packages.python import kernels, libraries
from envbuilder.packages.store import Store
from tests.support import images
from tests.support.elf import library
from tests.support.packed import zipped
from tests.support.shipped import LIBRARY

CUDA = "libcuda.so.1"
SYSTEM = ("libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libz.so.1", CUDA)


def needs(folder: Path, **files: bytes) -> libraries.Needs:
    path = folder / "x-1-py3-none-any.whl"
    path.write_bytes(zipped({f"x/{name}.so": content for name, content in files.items()}))
    return kernels.in_wheel(path, libraries.needed)


@pytest.mark.parametrize("strings_last", [False, True])
@pytest.mark.parametrize("code", [0, 1 << 20])
def test_the_dynamic_section_is_found(tmp_path: Path, strings_last: bool, code: int) -> None:
    content = library("libGL.so.1", "libm.so.6", strings_last=strings_last, code=code)
    assert needs(tmp_path, y=content) == {"x/y.so": ("libGL.so.1", "libm.so.6")}


def test_what_is_no_library_of_linux_needs_nothing(tmp_path: Path) -> None:
    others = {
        "mac": b"\xcf\xfa\xed\xfe",
        "narrow": b"\x7fELF\x01\x01",
        "text": b"GROUP",
        "none": b"",
    }
    assert {*needs(tmp_path, **others).values()} == {()}


@pytest.mark.parametrize("size", [30, 100, 150])
def test_a_damaged_one_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(InvalidError, match="not a readable wheel"):
        needs(tmp_path, y=library("libGL.so.1")[:size])


def test_values_that_lie_do_no_harm(tmp_path: Path) -> None:
    whole = library("libGL.so.1")
    for place in range(64, len(whole), 4):
        for value in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4)):
            try:
                needs(tmp_path, y=whole[:place] + value + whole[place + 4 :])
            except InvalidError:
                continue


@pytest.mark.parametrize(
    ("files", "lacking"),
    [
        # An extension module, or the only library of its kind: all that it needs.
        ({"x/_C.abi3.so": ("libGL.so.1", "libnosuch.so.9", *SYSTEM)}, {"libGL.so.1"}),
        ({"x/lib_lightgbm.so": ("libgomp.so.1",)}, {"libgomp.so.1"}),
        # What the wheel brings itself.
        ({"x/a.so": ("libgomp.so.1",), "x.libs/libgomp.so.1": SYSTEM}, set()),
        # Of several variants one is enough: for other CUDAs, for other FFmpegs.
        ({f"x/libx_cuda{n}.so": (f"libcudart.so.{n}",) for n in (11, 12)}, set()),
        ({"a_cuda12.so": ("libcudart.so.12",), "a_cpu.so": ("libgomp.so.1",)}, {"libgomp.so.1"}),
        ({"libx4.so": ("libavutil.so.56",), "libx5.so": ("libavutil.so.57",)}, {"libavutil.so.57"}),
        ({"x/libcore4.so": (), "x/libcore5.so": ("libavutil.so.57",)}, set()),
        # What a package goes on without.
        ({"cv2/qt/plugins/platforms/libqxcb.so": ("libSM.so.6",)}, set()),
        ({"numba/np/ufunc/tbbpool.cpython-311-x86_64-linux-gnu.so": ("libtbb.so.12",)}, set()),
        ({"x/tests/_t.so": ("libGL.so.1",)}, set()),
    ],
)  # fmt: skip
def test_what_a_package_does_not_work_without(files: Any, lacking: set[str]) -> None:
    assert libraries.missing(files) == lacking


def test_an_image_needs_packages_that_its_lock_has_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    display = ("libGL.so.1", "libglib-2.0.so.0")
    files = [
        images.wheel(store, "opencv-python", {"cv2/cv2.abi3.so": library(*display)}),
        images.wheel(store, "lightgbm", {"lightgbm/lib_lightgbm.so": library("libgomp.so.1")}),
        images.wheel(store, "torch", {"torch/lib/libtorch.so": library("libgomp.so.1")}),
    ]
    profile = LIBRARY.profile("cpu")
    opencv, lightgbm = libraries.warnings(profile, files, store, in_image=True)
    write = "For images, write into envbuilder.yaml, and lock again:\n  system_packages:"
    assert opencv == (
        f"opencv-python lacks libGL.so.1, libglib-2.0.so.0. {write} [libgl1, libglib2.0-0]\nOr use"
        " OpenCV without windows:\n  overrides: {opencv-python: opencv-python-headless}"
    )
    assert lightgbm == f"lightgbm lacks libgomp.so.1. {write} [libgomp1]"
    debs = [images.wheel(store, name, {}) for name in ("libgl1", "libgomp1")]
    (left,) = libraries.warnings(profile, [*files, *debs], store, in_image=True)
    assert left.startswith("opencv-python lacks libglib-2.0.so.0. ")
    asked = ["libglib2.0-0"]
    assert not [*libraries.warnings(profile, [*files, *debs], store, asked, in_image=True)]


def test_what_an_image_needs_is_known_without_a_download(tmp_path: Path) -> None:
    store = Store(tmp_path)
    elsewhere = Store(tmp_path / "elsewhere")
    files = [
        images.wheel(store, "lightgbm", {"lightgbm/x.so": library("libgomp.so.1", "libGL.so.1")}),
        images.wheel(elsewhere, "opencv-python", {}),
        images.wheel(elsewhere, "x", {}),
        images.wheel(store, "y", {}),
    ]
    earlier = {"libxi6": ("x", "y"), "libgl1": ("x",), "git": ()}
    needs = libraries.of_image(LIBRARY.profile("cpu"), files, store, earlier)
    assert needs["libgl1"] == ("lightgbm", "opencv-python", "x")
    assert (needs["libgomp1"], needs["libxi6"]) == (("lightgbm",), ("x",))
    assert "git" not in needs


def test_this_machine_has_what_its_loader_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    files = [images.wheel(store, "x", {"x/x.so": library("libGL.so.1", "libgomp.so.1")})]
    cache = tmp_path / "ld.so.cache"
    monkeypatch.setattr(libraries, "_CACHE", cache)
    profile = LIBRARY.profile("cpu")
    assert not [*libraries.warnings(profile, files, store, in_image=False)]  # who knows
    cache.write_bytes(b"glibc-ld.so.cache1.1\0libGL.so.10\0libgomp.so.1\0/usr/lib/libgomp.so.1\0")
    assert [*libraries.warnings(profile, files, store, in_image=False)] == [
        "x lacks libGL.so.1. For this machine (Debian, Ubuntu):\n  sudo apt install libgl1"
    ]


def test_a_wheel_is_read_once_and_a_damaged_one_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    damaged = images.wheel(store, "damaged", {"x.so": library()})
    store.path(damaged.sha256).write_bytes(b"PK")
    files = [damaged, images.wheel(store, "x", {"x/x.so": library("libGL.so.1")})]
    profile = LIBRARY.profile("cpu")
    first = [*libraries.warnings(profile, files, store, in_image=True)]
    monkeypatch.setattr(kernels.archives, "open_zip", None)
    assert [*libraries.warnings(profile, files[1:], store, in_image=True)] == first
    assert len(first) == 1


@pytest.mark.parametrize(
    ("profile", "names", "lacks"),
    [
        ("cuda", ["torch", "triton"], True),
        ("cuda", ["torch", "triton", "g++"], False),
        ("cuda", ["torch"], False),
        ("rocm", ["torch", "triton-rocm"], True),
        ("cpu", ["torch", "triton"], False),
    ],
)
def test_an_image_in_which_kernels_are_compiled_needs_a_compiler(
    tmp_path: Path, profile: str, names: list[str], lacks: bool
) -> None:
    store = Store(tmp_path)
    files = [images.wheel(store, name, {}) for name in names]
    own = LIBRARY.profile(profile)
    told = [*libraries.warnings(own, files, store, in_image=True)]
    assert [text[-31:] for text in told] == ["\n  system_packages: [g++]  # 0.3 GB"[-31:]] * lacks
    assert not [*libraries.warnings(own, files, store, in_image=False)]


def test_every_package_of_the_table_is_named_by_a_library_of_linux() -> None:
    table = libraries.system_libraries()
    assert table.opencv <= table.debian.keys()
    assert {*table.debian.values()}.issuperset(chain.from_iterable(table.wheels.values()))
    assert [n for n in table.debian if ".so." not in n] == ["g++"]
