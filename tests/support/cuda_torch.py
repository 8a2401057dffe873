"""PyTorch for CUDA, in as far as extensions are compiled against it, without its 527 MB.

The wheel for CUDA has the same Python files and headers as the one for the CPU, but for a few. They
and the library that extensions for CUDA are linked against come by range requests; the one with the
kernels is a stand-in without symbols, which a linker needs not.
"""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from msgspec.structs import replace

from envbuilder.core import http, resources
from envbuilder.core.console import PlainProgress
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import Settings
from envbuilder.packages import fetch as downloads, upstream
from envbuilder.packages.python.wheel_conflicts import RemoteFile
from envbuilder.packages.store import Store
from envbuilder.profiles import lock
from envbuilder.profiles.lock import File, Target

OF_CUDA = (
    "torch/version.py",
    "torch/lib/libc10_cuda.so",
    "torch/include/caffe2/core/macros.h",
    "torch/include/ATen/cuda/CUDAConfig.h",
    "torch/include/c10/cuda/impl/cuda_cmake_macros.h",
)
NO_DEVICE = b"\ntorch._C._cuda_getDeviceCount = lambda: 0\n"
"""What it says on a machine without a GPU."""
RUNTIME = "nvidia-cuda-runtime"
STAND_IN = "torch/lib/libtorch_cuda.so"


LEFT_OUT = ("nvidia-", "cuda-", "triton")
"""Gigabytes that nothing is compiled against, but for the runtime of CUDA."""


def target(found: Settings, folder: Path) -> Target:
    """The target of the profile `cuda`, with that PyTorch in the store."""
    on_cpu, on_cuda = (_locked(name) for name in ("cpu", "cuda"))
    files = {file.name: file for file in on_cuda.files}
    (cpu,) = (file for file in on_cpu.files if file.name == "torch")
    downloads.fetch([cpu], on_cpu, found, PlainProgress(print))
    store = Store.of(found)
    made = _made(store.path(cpu.sha256), files["torch"], folder)
    sha256 = file_sha256(made)
    store.take(sha256, iter([made.read_bytes()]))
    files["torch"] = replace(files["torch"], sha256=sha256, size=made.stat().st_size)
    kept = (f for n, f in files.items() if n == RUNTIME or not n.startswith(LEFT_OUT))
    return replace(on_cuda, files=tuple(kept))


def _locked(profile: str) -> Target:
    path = resources.profiles_dir() / f"locks/{profile}.json"
    return lock.select(lock.load(path), "linux/amd64", "3.11")


def _made(cpu: Path, cuda: File, folder: Path) -> Path:
    """The wheel, from that for the CPU and parts of the locked one for CUDA."""
    pages = (place.page("torch") for place in downloads.places())
    listed = (
        each for page in pages for each in upstream.listed(upstream.page(page).decode(), page)
    )
    url = next(each.location for each in listed if each.file == cuda.file)
    stand_in = folder / "stand-in.so"
    made = folder / cuda.file
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", stand_in], check=True)
    with (
        http.open_session() as session,
        zipfile.ZipFile(RemoteFile(session, url)) as remote,
        zipfile.ZipFile(cpu) as local,
        zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as out,
    ):
        contents = {name: remote.read(name) for name in OF_CUDA}
        contents[STAND_IN] = stand_in.read_bytes()
        contents["torch/cuda/__init__.py"] = local.read("torch/cuda/__init__.py") + NO_DEVICE
        for name in local.namelist():
            content = contents.pop(name, None) or local.read(name)
            of_cuda = content.replace(b"+cpu", b"") if name.endswith("/METADATA") else content
            out.writestr(zipfile.ZipInfo(name.replace("+cpu", "")), of_cuda)
        for name, content in contents.items():
            out.writestr(zipfile.ZipInfo(name), content)
    return made
