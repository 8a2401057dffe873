"""The packages of the tests' conda channel: what a solver, an installer and an attacker meet.

Each is small and made here; a Python that works is that of `debian_python`.
"""

from __future__ import annotations

import hashlib
import json

from tests.support.conda_channel import PLACEHOLDER, Entry, Package

_PLACEHOLDER = PLACEHOLDER.encode()


def _text(line: str, mode: int = 0o644) -> Entry:
    """A line, and some that do not compress: `tamper` needs room for others."""
    return Entry(f"{line}\n{hashlib.shake_128(line.encode()).hexdigest(100)}\n".encode(), mode)


def library(
    name: str, text: str, version: str = "1.0", entry_points: tuple[str, ...] = ()
) -> Package:
    """A noarch Python package of one module, with the dist-info that tools of wheels see."""
    module = name.replace("-", "_")
    info = f"site-packages/{module}-{version}.dist-info"
    scripts = "[console_scripts]\n" + "".join(f"{e}\n" for e in entry_points)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    record = f"{module}/__init__.py,,\n" + "".join(
        f"{module}-{version}.dist-info/{n},,\n" for n in ("INSTALLER", "METADATA", "RECORD")
    )
    return Package(
        name=name,
        version=version,
        build="pyh0_0",
        subdir="noarch",
        noarch="python",
        depends=("python >=3.10",),
        entry_points=entry_points,
        files={
            f"site-packages/{module}/__init__.py": Entry(text.encode()),
            f"{info}/INSTALLER": Entry(b"conda\n"),
            f"{info}/METADATA": Entry(metadata.encode()),
            f"{info}/RECORD": Entry(record.encode()),
            f"{info}/entry_points.txt": Entry(scripts.encode()),
        },
    )


def _plain(name: str, *depends: str, build: str = "0", number: int = 0) -> Package:
    """A package whose one file says which build it is."""
    return Package(
        name=name,
        build=build,
        build_number=number,
        depends=depends,
        files={f"share/{name}.txt": _text(f"{name} {build}")},
    )


GPU_ONLY = _plain("gpu-only", "__cuda >=12")
GPU_LIB_CUDA = _plain("gpu-lib", "__cuda >=12", build="cuda12_0", number=1)
GPU_LIB_CPU = _plain("gpu-lib", build="cpu_0")
NEW_GLIBC = _plain("new-glibc", "__glibc >=2.34")
NEEDS_V3 = _plain("needs-v3", "__archspec 1 x86_64_v3")
"""Refuses every other name of a microarchitecture: solvers compare the text."""
FAST_V3 = _plain("fast", "_x86_64-microarch-level >=3", build="v3_1", number=1)
"""As conda-forge's feedstocks do it, by a package that has a build for each name."""
FAST_V1 = _plain("fast", build="v1_0")
LEVELS = tuple(
    Package(
        name="_x86_64-microarch-level",
        version="3",
        build=f"2_{name}",
        build_number=2,
        subdir="noarch",
        noarch="generic",
        depends=(f"__archspec 1=*{name}",),
    )
    for name in ("x86_64_v3", "zen4")
)
PYTORCH = _plain("pytorch")
NEEDS_PYTORCH = _plain("needs-pytorch", "pytorch >=1")
"""As the channel's packages on top of PyTorch do."""
TINY_LIB = library(
    "tiny-lib",
    '"""A library that says where it is, by a command of its own."""\n'
    "# What is longest in a package is what `tamper` replaces: this.\n"
    "import sys\n\n\n"
    "def main():\n"
    '    print(f"tiny-lib 1.0 of {sys.prefix}")\n',
    entry_points=("tiny = tiny_lib:main",),
)
PLACED = Package(
    name="placed",
    kind=".tar.bz2",
    files={
        "bin/placed": Entry(b"#!/bin/sh\necho " + _PLACEHOLDER + b"\n", 0o755, prefix="text"),
        "etc/placed.conf": Entry(b"home = " + _PLACEHOLDER + b"/share\n", prefix="text"),
        "lib/placed.bin": Entry(b"\x7fPLACED\0" + _PLACEHOLDER + b"/lib\0end\0", prefix="binary"),
        "share/placed.txt": _text("nothing in here knows where it is"),
        "lib/placed.so": Entry(link="placed.bin"),
    },
)
"""Text, a script and a binary that name their prefix; a link; an archive of the older kind."""
OWNER_A = Package(name="owner-a", files={"share/owned.txt": _text("of owner-a")})
OWNER_B = Package(name="owner-b", files={"share/owned.txt": _text("of owner-b")})
"""Installed with OWNER_A it overwrites a file, or is overwritten."""
ACTIVATED = Package(
    name="activated",
    files={
        "etc/conda/activate.d/activated.sh": Entry(b'export ACTIVATED="by $CONDA_PREFIX"\n'),
        "etc/conda/deactivate.d/activated.sh": Entry(b"unset ACTIVATED\n"),
        "etc/conda/env_vars.d/activated.json": Entry(
            json.dumps({"ACTIVATED_VARIABLE": "of a package, with spaces"}).encode()
        ),
    },
)
SCRIPTED = Package(
    name="scripted",
    files={
        "bin/.scripted-post-link.sh": Entry(b'#!/bin/sh\ntouch "$PREFIX/post-link-ran"\n', 0o755),
        "bin/.scripted-pre-unlink.sh": Entry(b'#!/bin/sh\ntouch "$PREFIX/unlink-ran"\n', 0o755),
        "share/scripted.txt": _text("its scripts must not be run"),
    },
)


def _stub(subdir: str, *depends: str) -> Package:
    """A Python that can be solved and installed, and never run."""
    return Package(
        name="python",
        version="3.11.2",
        build="0_cpython",
        subdir=subdir,
        depends=depends,
        files={
            "bin/python3.11": _text(f"a stand-in for Python on {subdir}", 0o755),
            "bin/python": Entry(link="python3.11"),
            "lib/python3.11/os.py": Entry(b"# a stand-in\n"),
        },
    )


PYTHON_OSX = _stub("osx-arm64", "__osx >=11")
PYTHON_AARCH64 = _stub("linux-aarch64", "__glibc >=2.17")
PYTHON_STUB = _stub("linux-64", "__glibc >=2.17")
"""Of channels without a Python that works."""
MATRIX = (
    GPU_ONLY,
    GPU_LIB_CUDA,
    GPU_LIB_CPU,
    NEW_GLIBC,
    NEEDS_V3,
    FAST_V3,
    FAST_V1,
    *LEVELS,
    PYTORCH,
    NEEDS_PYTORCH,
    TINY_LIB,
    PLACED,
    OWNER_A,
    OWNER_B,
    ACTIVATED,
    SCRIPTED,
    PYTHON_OSX,
    PYTHON_AARCH64,
)
"""All but a Python for linux-64."""
