"""A Python 3.11 that works, of Debian 12's own files: a conda package, or a part of an image.

Its interpreter contains its library and finds its prefix by itself, so it needs no placeholder. It
is not self-contained: libz, libexpat, libssl, libffi and a few more come from the machine.
"""

from __future__ import annotations

import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from envbuilder.containers.oci.layer import Member
from tests.support.conda_channel import Entry, Package

_DEBS = ("libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal")
_LIBRARY = "lib/python3.11"
_LEFT_OUT = frozenset(
    {
        f"{_LIBRARY}/EXTERNALLY-MANAGED",  # uv would install nothing
        f"{_LIBRARY}/sitecustomize.py",  # Debian's crash reporter
    }
)
_SCHEME = (b"'prefix': prefix_scheme,", b"'prefix': 'posix_prefix',")
"""Debian's Python installs below `local`; this one does not."""


def unsupported() -> str:
    """Why there can be no such Python here; empty where it can."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    if (system.get("ID"), system.get("VERSION_ID")) != ("debian", "12"):
        return "it is made of Debian 12's files, and this is another system"
    if platform.machine() != "x86_64":
        return f"it is made for x86_64, and this machine is {platform.machine()}"
    return ""


def fetch(cache: Path) -> tuple[Path, ...]:
    """The .deb files, downloaded by apt once; `subprocess.CalledProcessError` where it cannot."""
    folder = cache / "conda-python"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="conda-python-") as made:
            target = Path(made) / "debs"
            target.mkdir()
            subprocess.run(
                ["apt-get", "-q", "download", *_DEBS],
                cwd=target,
                check=True,
                capture_output=True,
                text=True,
            )
            if not folder.is_dir():  # another run may have been faster
                target.rename(folder)
    return tuple(next(folder.glob(f"{name}_*.deb")) for name in _DEBS)


def python_package(debs: tuple[Path, ...]) -> Package:
    """The package `python`; its version is Debian's."""
    files: dict[str, Entry] = {}
    for deb in debs:
        files.update(_files(deb))
    sysconfig = files[f"{_LIBRARY}/sysconfig.py"].content
    if sysconfig.count(_SCHEME[0]) != 1:
        raise ValueError("Debian's sysconfig.py is not what it was")
    files[f"{_LIBRARY}/sysconfig.py"] = Entry(sysconfig.replace(*_SCHEME))
    # Debian's `site`, which is frozen into the interpreter, knows only dist-packages.
    files[f"{_LIBRARY}/dist-packages"] = Entry(link="site-packages")
    files[f"{_LIBRARY}/site-packages/README.txt"] = Entry(b"What noarch packages bring.\n")
    files["bin/python"] = files["bin/python3"] = Entry(link="python3.11")
    return Package(
        name="python",
        version=debs[0].name.split("_")[1].partition("-")[0],
        build="0_cpython",
        depends=("__glibc >=2.36",),
        files=files,
    )


def members() -> Iterator[Member]:
    """This machine's Python, with what its loader needs, for an image's layer."""
    libraries = [*Path("/usr/lib/x86_64-linux-gnu").glob("lib[cmz].so.*")]
    libraries += [Path("/usr/lib/x86_64-linux-gnu/libexpat.so.1"), Path("/usr/bin/python3.11")]
    libraries += [Path("/usr/lib64/ld-linux-x86-64.so.2")]
    folder = Path("/usr/lib/python3.11")
    for path in (*libraries, *folder.rglob("*.py"), *folder.rglob("*.so")):
        if "dist-packages" not in path.parts:
            yield Member(path=str(path)[1:], mode=0o755, source=path.resolve())


def _files(deb: Path) -> Iterator[tuple[str, Entry]]:
    from debian.debfile import DebFile

    with DebFile(str(deb)) as package:
        data: tarfile.TarFile = package.data.tgz()
        for member in data.getmembers():
            path = member.name.removeprefix("./usr/")
            if not path.startswith(("bin/", "lib/python3.11/")) or path in _LEFT_OUT:
                continue
            if member.issym():
                yield path, Entry(link=member.linkname)
            elif member.isfile():
                stream = data.extractfile(member)
                yield path, Entry(stream.read(), member.mode)
