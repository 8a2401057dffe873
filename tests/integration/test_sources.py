"""Sources are built for real: sealed off from the machine, and to the same bytes everywhere."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.process import Completed
from envbuilder.core.settings import Configuration, Settings
from envbuilder.packages.python import kernels
from envbuilder.packages.sources import inside, source_locker
from envbuilder.packages.sources.sealed import Scratch
from envbuilder.packages.sources.source_locker import SourceLocker
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File
from envbuilder.profiles.profile import Resolution
from envbuilder.project import forms
from tests.support import cuda_torch, guides, sources
from tests.support.repositories import lay

Locker = partial(SourceLocker, shown=forms.shown)
"""As `lock` has it."""
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def settings(folder: Path) -> Settings:
    return Settings(
        project=folder,
        config_dir=folder / "config",
        cache_dir=folder / "cache",
        data_dir=folder / "data",
        configuration=Configuration(),
    )


def build(folder: Path, source: str = "./tiny") -> tuple[File, Settings]:
    found = settings(folder)
    asked = Locker(Resolution(build=True), found, print)
    (file,) = sources.locked(asked, PYTHON, location=source).files
    return file, found


def test_surroundings_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "import datetime, locale, os, time\ndef content():\n    return repr((" + ", ".join(
        (
            "sorted(os.environ.items())",
            "os.getcwd()",
            "os.getuid()",
            "os.uname().nodename",
            "time.tzname",
            "locale.setlocale(locale.LC_ALL, '')",
            "hash('x')",
            "sorted(os.listdir('/'))",
        )
    )
    files = sources.files(f"{more}))\n")
    first, found = build(lay(tmp_path / "a", {f"tiny/{n}": t for n, t in files.items()}))
    for name, value in {
        "HOME": "/",
        "LC_ALL": "de_DE.UTF-8",
        "TZ": "XYZ-12:45",
        "EXTRA": "1",
    }.items():
        monkeypatch.setenv(name, value)
    before = os.umask(0o077)
    try:
        other = lay(tmp_path / "another", {f"tiny/{n}": t for n, t in files.items()})
        second, _ = build(other)
    finally:
        os.umask(before)
    assert first == second
    assert (first.kind, first.source, first.file) == ("wheel", "built", "tiny-1.0-py3-none-any.whl")
    with zipfile.ZipFile(Store.of(found).path(first.sha256)) as wheel:
        names = wheel.namelist()
        assert names == [*sorted(names[:-1]), "tiny-1.0.dist-info/RECORD"]
        assert {i.date_time[0] for i in wheel.infolist()} == {1980}
        assert {i.external_attr >> 16 for i in wheel.infolist()} == {0o100644}


HOSTILE = """
import json, os, signal, socket, subprocess
def content():
    seen = {}
    def attempt(name, do):
        try:
            seen[name] = repr(do())
        except BaseException as error:
            seen[name] = type(error).__name__
    attempt("loopback", lambda: socket.create_connection(("127.0.0.1", PORT), 2))
    attempt("network", lambda: socket.create_connection(("192.0.2.1", 80), 2))
    attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + "envbuilder-test"))
    attempt("home", lambda: open("SECRET").read())
    attempt("variable", lambda: os.environ["PASSWORD"])
    attempt("outside", lambda: open("OUTSIDE", "w").write("x"))
    attempt("program", lambda: open("/usr/bin/evil", "w"))
    attempt("processes", lambda: [p for p in os.listdir("/proc") if p.isdigit() and int(p) > 99])
    attempt("kill", lambda: os.kill(PARENT, signal.SIGKILL))
    attempt("shadow", lambda: open("/etc/shadow").read())
    attempt("mount", lambda: subprocess.run(["mount", "-o", "remount,rw", "/usr"], check=True))
    return json.dumps(seen)
"""


def test_a_hostile_build_gets_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    outside = tmp_path / "outside"
    secret.write_text("password")
    monkeypatch.setenv("PASSWORD", "password")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0envbuilder-test")
        local.listen()
        more = HOSTILE.replace("PORT", str(server.getsockname()[1])).replace("SECRET", str(secret))
        more = more.replace("OUTSIDE", str(outside)).replace("PARENT", str(os.getpid()))
        project = lay(tmp_path / "p", {f"tiny/{n}": t for n, t in sources.files(more).items()})
        file, found = build(project)
    with zipfile.ZipFile(Store.of(found).path(file.sha256)) as wheel:
        seen = json.loads(wheel.read("tiny/__init__.py"))
    assert not outside.exists()
    assert seen.pop("processes") == "[]"
    assert set(seen.values()) <= {
        "OSError",
        "ConnectionRefusedError",
        "FileNotFoundError",
        "KeyError",
        "PermissionError",
        "ProcessLookupError",
        "CalledProcessError",
        "TimeoutError",
    }, seen


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("def content():\n    raise SystemExit('a library is missing')\n", "a library is missing"),
        ("def content():\n    os._exit(0)\n", "failed"),
        ("def content():\n    print('x' * 10_000_000)\n    raise ValueError('end')\n", "end"),
        ("import nowhere_at_all\n", "nowhere_at_all"),
    ],
)
def test_a_build_that_fails_says_why(tmp_path: Path, more: str, words: str) -> None:
    project = lay(tmp_path, {f"tiny/{n}": t for n, t in sources.files(more).items()})
    with pytest.raises(BuildError, match=words) as caught:
        build(project)
    assert "tiny" in caught.value.message
    assert len(caught.value.message) < 6000


MOVE = "os.rename(os.path.join(folder, name), os.path.join(folder, '{0}')); name = '{0}'"


@pytest.mark.parametrize(
    "end",
    [
        f"{MOVE.format('x.whl')}; os.symlink('SECRET', os.path.join(folder, 'tiny.whl'))",
        f"{MOVE.format('w')}; name = 'w.whl'; os.symlink('SECRET', os.path.join(folder, name))",
        "name = '../w.whl'",
        "name = ['x']",
        MOVE.format("other-1.0-py3-none-any.whl"),
        MOVE.format("tiny-2.0-py3-none-any.whl"),
    ],
)
def test_a_result_that_leads_elsewhere_is_refused(tmp_path: Path, end: str) -> None:
    (tmp_path / "secret").write_text("password")
    files = sources.files()
    end = end.replace("SECRET", str(tmp_path / "secret"))
    files["own.py"] = files["own.py"].replace("    return name", f"    {end}\n    return name")
    project = lay(tmp_path, {f"tiny/{n}": t for n, t in files.items()})
    with pytest.raises(BuildError, match=r"built|installable"):
        build(project)


def test_without_consent_nothing_runs(tmp_path: Path) -> None:
    locker = Locker(Resolution(), settings(tmp_path))
    with pytest.raises(InvalidError, match="building one is not allowed") as caught:
        locker.prepare("tiny", pythons=[PYTHON], location="./tiny")
    assert "build_from_source: [tiny]" in caught.value.hint


def test_where_the_kernel_seals_nothing_a_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"tiny/{n}": t for n, t in sources.files().items()}
    sealed_off, _ = build(lay(tmp_path / "a", files))
    run = Scratch._run

    def refuse(self: Scratch, *arguments: Any) -> Completed:
        if self._sealed:
            return Completed((), inside.UNSEALED, "", "no namespaces: x", 0.1)
        return run(self, *arguments)

    monkeypatch.setattr(Scratch, "_run", refuse)
    other, _ = build(lay(tmp_path / "b", files))
    assert other == sealed_off
    assert "note: tiny: this system does not allow sandboxed builds" in capsys.readouterr().out


SETUP = (
    "from setuptools import Extension, setup\n"
    "setup(name='tiny', version='1.0', ext_modules=[Extension('tiny', ['tiny.cpp'])])\n"
)
MODULE = """
#undef NDEBUG  // asserts of Python's headers name their files
#include <Python.h>
#include <cassert>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", __FILE__, -1, NULL};
Py_ssize_t size(PyObject *x) { return PyTuple_GET_SIZE(x); }
PyMODINIT_FUNC PyInit_tiny(void) { assert(true); return PyModule_Create(&module); }
"""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(not shutil.which("c++"), reason="no compiler")
def test_an_extension_in_cpp_has_the_same_bytes_in_two_folders(tmp_path: Path) -> None:
    """And names no folder of this machine: neither where it was built, nor that of Python."""
    files = {"tiny/setup.py": SETUP, "tiny/tiny.cpp": MODULE}
    first, found = build(lay(tmp_path / "a", files))
    second, _ = build(lay(tmp_path / "another", files))
    assert first == second
    assert first.file.startswith("tiny-1.0-cp")
    with zipfile.ZipFile(Store.of(found).path(first.sha256)) as wheel:
        content = b"".join(wheel.read(n) for n in wheel.namelist() if n.endswith(".so"))
    assert b"/object.h" in content or b"/tupleobject.h" in content
    assert str(tmp_path).encode() not in content
    prefix = os.path.realpath(sys.base_prefix)
    assert prefix == "/usr" or prefix.encode() not in content


KERNELS = """
#include <cassert>
#include "twice.h"
template <typename T> __global__ void kernel(T *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(i >= 0);
    if (i < n) x[i] = twice(x[i]);
}
int start(float *x, int n) { kernel<<<n / 256 + 1, 256>>>(x, n); return cudaGetLastError(); }
"""
CUDA_SETUP = """
import os, subprocess
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
class Build(build_ext):
    def build_extension(self, extension):
        home, every = os.environ["CUDA_HOME"], os.environ["TORCH_CUDA_ARCH_LIST"].split(";")
        each = [n.replace(".", "") for n in every]
        targets = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in each]
        subprocess.run(["nvcc", "-c", "kernels.cu", "-o", "kernels.o", "-Xcompiler=-fPIC",
            "--threads", os.environ["MAX_JOBS"], *targets], check=True)
        extension.extra_objects, extension.libraries = ["kernels.o"], ["cudart"]
        extension.library_dirs = [f"{home}/lib64"]
        super().build_extension(extension)
setup(name="tiny", version="1.0", cmdclass={"build_ext": Build},
    ext_modules=[Extension("tiny", ["tiny.cpp"])])
"""
CUDA = {
    "tiny/setup.py": CUDA_SETUP,
    "tiny/tiny.cpp": MODULE,
    "tiny/kernels.cu": KERNELS,
    "tiny/twice.h": "template <typename T> __device__ T twice(T x) { return x + x; }\n",
}


def beside(name: str, version: str) -> File:
    """A wheel of the target, which these builds do not install."""
    return File(
        kind="wheel",
        name=name,
        version=version,
        file=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
        sha256="7" * 64,
        size=None,
        source="default",
        provenance="read",
        by="x",
    )


@pytest.mark.network
@pytest.mark.soak
@pytest.mark.skipif(not shutil.which("c++"), reason="no compiler")
def test_cuda_is_compiled_without_a_gpu_or_a_toolkit(tmp_path: Path, test_cache: Path) -> None:
    """By nvcc from locked wheels, for what PyTorch is compiled for, to the same bytes twice."""
    built = []
    for name in ("a", "another"):
        found = replace(settings(lay(tmp_path / name, CUDA)), shared_store=test_cache)
        asked = Locker(Resolution(build=True), found, print)
        asked.prepare("tiny", pythons=[PYTHON], location="./tiny")
        files = (beside("torch", "2.13.0"), beside("nvidia-cuda-runtime", "13.0.96"))
        target = sources.locked(asked, PYTHON, beside=files)
        built.append(target.files[-1])
    assert built[0] == built[1]
    assert built[0].kind == "wheel"
    assert {f.name for f in target.build_files} >= {"nvidia-cuda-nvcc", "nvidia-nvvm"}
    code = kernels.of_wheel(Store.of(found).path(built[0].sha256))
    assert [*code] == ["sm_100 sm_120 sm_75 sm_80 sm_86 sm_90"]


@pytest.mark.network
@pytest.mark.soak
@pytest.mark.skipif(not shutil.which("c++"), reason="no compiler")
def test_pytorchs_own_builder_of_extensions_compiles_cuda(tmp_path: Path, test_cache: Path) -> None:
    """The guide's, beside a PyTorch that says that it is for CUDA; it cannot run here."""
    target = cuda_torch.target(replace(settings(tmp_path), cache_dir=test_cache), tmp_path)
    (guide,) = guides.read(guides.FOLDER / "cuda-extension.md")
    files = {n: t for n, t in guide.written.items() if n.startswith("ops/")}
    resolution = Resolution(build=True, cuda_architectures=("8.0", "9.0+PTX"))
    built = []
    for name in ("a", "another"):
        project = lay(tmp_path / name, files)
        found = replace(settings(project), shared_store=test_cache)
        asked = Locker(resolution, found)
        locked = sources.locked(asked, "3.11", name="twice", beside=target.files, location="./ops")
        assert locked.files[-1].kind == "source"
        wheels = source_locker.build_sources(locked, found, PlainProgress(print))
        built.append(wheels.of_kind("wheel")[-1])
    assert built[0] == built[1]
    code = kernels.of_wheel(Store.of(found).path(built[0].sha256))
    assert [*code] == ["compute_90 sm_80 sm_90"]


@pytest.mark.slow
@pytest.mark.network
def test_another_machine_builds_the_same_and_says_if_it_does_not(tmp_path: Path) -> None:
    found = settings(tmp_path)
    resolution = Resolution(build=("antlr4-python3-runtime",))
    target = sources.locked(
        Locker(resolution, found),
        PYTHON,
        name="antlr4-python3-runtime",
        specifier="==4.9.3",
        location="",
    )
    elsewhere = settings(tmp_path / "elsewhere")
    silent = PlainProgress(lambda _: None)
    assert source_locker.fetch(target.files, target, elsewhere, silent) == 1
    assert source_locker.fetch(target.files, target, elsewhere, silent) == 0
    wrong = tuple(replace(file, sha256="0" * 64) for file in target.files)
    with pytest.raises(BuildError, match="a different wheel on this machine") as caught:
        source_locker.fetch(wrong, replace(target, files=wrong), elsewhere, silent)
    assert "0" * 64 in caught.value.message
    assert target.files[0].sha256 in caught.value.message
