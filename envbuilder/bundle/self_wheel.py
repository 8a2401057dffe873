"""Provide the wheels of envbuilder and its dependencies for installation on another machine."""

from __future__ import annotations

import base64
import email.parser
import hashlib
import io
import os
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder import __version__
from envbuilder.builds import payload
from envbuilder.core import archives, process, resources, types
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.settings import Settings, require_writable
from envbuilder.packages.fetch import compiled, fetch, uv_variables
from envbuilder.packages.python import indexes
from envbuilder.profiles.lock import File, Target

if TYPE_CHECKING:
    from envbuilder.core.console import Progress

PACKAGE = "envbuilder"
DISTRIBUTION = "envbuilder-ml"
_SHARED = "share"
"""The folder in an installation's prefix that contains man pages and shell completions."""
_LEFT_BY_INSTALLERS = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}


class Wheel(Struct, frozen=True, kw_only=True):
    """A wheel whose content is held in memory."""

    file: str
    content: bytes


def wheel(settings: Settings) -> Wheel:
    """Return a wheel that contains the running envbuilder.

    The wheel is built from the checkout or, without a checkout, repacked from the installed files.
    Raise `BuildError` if the checkout cannot be built, or if installed files were changed.
    """
    source = resources.source_dir()
    if source:
        return _built(source, settings)
    return _repacked(metadata.distribution(DISTRIBUTION))


def _built(source: Path, settings: Settings) -> Wheel:
    with TemporaryDirectory(prefix="envbuilder-wheel-") as folder:
        done = process.run_uv(
            [
                process.uv_path(),
                "build",
                "--wheel",
                "--quiet",
                "--no-python-downloads",
                "--python",
                sys.executable,
                "--out-dir",
                folder,
                "--cache-dir",
                str(require_writable(settings.uv_dir)),
                str(source),
            ],
            env=uv_variables(indexes.DEFAULT, settings),
            folder=Path(folder),
            timeout=600,
        )
        wheel = next(Path(folder).glob("*.whl"), None)
        if done.returncode != 0 or wheel is None:
            raise BuildError(
                f"{source}: envbuilder's own wheel cannot be built:\n{done.last_words}",
                "Check that the package index can be reached: the build downloads hatchling"
                " from it.",
            )
        return Wheel(file=wheel.name, content=wheel.read_bytes())


def _repacked(installed: metadata.Distribution) -> Wheel:
    """Rebuild the wheel of an installed distribution from its files.

    The result always has the same bytes. Every file is checked against the hash recorded during
    installation. Raise `BuildError` if a file was changed.
    """
    members: dict[str, bytes] = {}
    data = f"{installed.name.replace('-', '_')}-{installed.version}.data/data"
    for file in installed.files or ():
        ours = file.parts[0] == PACKAGE or file.parts[0].endswith(".dist-info")
        shared = _SHARED in file.parts and file.parts[0] == ".."
        if file.hash is None or not (ours or shared) or file.name in _LEFT_BY_INSTALLERS:
            continue
        content = Path(str(file.locate())).read_bytes()
        if _record_hash(content) != file.hash.value or file.hash.mode != "sha256":
            raise BuildError(
                f"{file.locate()} was changed after envbuilder was installed",
                "Reinstall envbuilder: its installed files were modified and cannot be bundled.",
            )
        path = file.as_posix()
        members[f"{data}/{path[path.index(_SHARED) :]}" if shared else path] = content
    if not any(name.startswith(f"{PACKAGE}/") for name in members):
        raise BuildError(
            "cannot determine which files of this environment belong to envbuilder",
            "Run envbuilder from a checkout, or from an environment in which it is installed.",
        )
    info = next(n.partition("/")[0] for n in members if ".dist-info/" in n)
    lines = [f"{n},sha256={_record_hash(c)},{len(c)}\n" for n, c in sorted(members.items())]
    members[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    return Wheel(
        file=f"{info.removesuffix('.dist-info')}-py3-none-any.whl", content=payload.zipped(members)
    )


def released(settings: Settings) -> Wheel:
    """Return the wheel of this envbuilder version from the user's package index.

    Raise `InvalidError` if the index has no such wheel, or if the files in the wheel differ from
    those of the running envbuilder. The comparison is needed because, until the version is
    released, anyone can claim envbuilder's name on the index.
    """
    from packaging.version import Version

    from envbuilder.packages import upstream
    from envbuilder.packages.sources import source
    from envbuilder.packages.store import Store

    what = f"{DISTRIBUTION} {__version__}"
    with upstream.opened(settings) as index:
        release = index.releases(DISTRIBUTION).get(Version(__version__))
    reason = f"no package index has {what}"
    if problem := index.problems.get(DISTRIBUTION):
        reason = f"it is unknown whether a package index has {what}: {problem}"
    for link in release.wheels if release else ():
        sha256 = source.downloaded(link.location, link.sha256, link.file, settings)
        found = Wheel(file=link.file, content=Store.of(settings).path(sha256).read_bytes())
        if _members(found) == _members(wheel(settings)):
            return found
        reason = f"the package index has a {what} whose files differ from this installation"
    raise InvalidError(
        reason,
        "Commit a wheel of this version, and name it with --wheel. To build one from source: pip"
        " wheel --no-deps --wheel-dir ci PATH-OF-ENVBUILDER",
    )


def _members(wheel: Wheel) -> dict[str, bytes]:
    """Return the content of each file in a wheel, except for RECORD, by file name.

    Return an empty dictionary if the wheel is damaged.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
            return {n: archive.read(n) for n in archive.namelist() if not n.endswith("/RECORD")}
    except zipfile.BadZipFile:
        return {}


def pinned(wheel: Wheel, python: types.PythonVersion, settings: Settings, extra: str = "") -> str:
    """Return the content of a requirements file that pins a wheel's requirements with hashes.

    The file can be used on all platforms, with the Python version `python` or later. It lists the
    hashes of the wheels that are currently on the user's index. If `extra` is given, the
    requirements of that extra are included.
    """
    options = ("--universal", "--generate-hashes", "--no-annotate", "--only-binary", ":all:")
    done, text = compiled(
        "\n".join(requirements(wheel, extra)[0]),
        "pinned.txt",
        uv_variables(indexes.DEFAULT, settings),
        (*options, "--python-version", python),
        seconds=600,
    )
    if done.returncode != 0:
        raise BuildError(
            f"envbuilder's own dependencies cannot be resolved:\n{done.last_words}",
            "Check the network and the index settings.",
        )
    return text


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def requirements(wheel: Wheel, extra: str = "") -> tuple[tuple[str, ...], str]:
    """Return the requirements of a wheel, and its `Requires-Python` specifier.

    If `extra` is given, the requirements of that extra are included.
    """
    from packaging.requirements import Requirement

    try:
        with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            metadata = email.parser.BytesParser().parsebytes(archive.read(name))
    except (*archives.BAD_ZIP, StopIteration) as error:
        raise InvalidError(
            f"{wheel.file} is not a wheel, or is damaged",
            "Build it again: pip wheel --no-deps --wheel-dir ci PATH-OF-ENVBUILDER",
        ) from error
    requirements = []
    for line in map(str, metadata.get_all("Requires-Dist", [])):
        requirement = Requirement(line)
        if requirement.marker is None or "extra" not in str(requirement.marker):
            requirements.append(line)
        elif extra and requirement.marker.evaluate({"extra": extra}):
            requirements.append(f"{requirement.name}{requirement.specifier}")
    return tuple(requirements), str(metadata.get("Requires-Python", ""))


def accepts(wheel: Wheel, python: types.PythonVersion) -> bool:
    """Return whether the envbuilder in this wheel supports the given Python version."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(requirements(wheel)[1]).contains(python)


def dependencies(
    wheel: Wheel,
    platform: types.Platform,
    python: types.PythonVersion,
    settings: Settings,
    progress: Progress,
    uv_version: types.FileVersion,
    extra: str = "",
) -> tuple[File, ...]:
    """Resolve envbuilder's dependencies, fetch them into the store, and return their files.

    If `extra` is given, the requirements of that extra are included. Versions that are installed on
    this machine are preferred, because they are known to work. For uv, the locked version is
    preferred, because a bundle already contains it. Raise `BuildError` if the dependencies are
    unavailable.
    """
    from envbuilder.packages.python.uv import UnresolvableError, started

    with started(settings, process.run, os.environ) as uv:
        direct = requirements(wheel, extra)[0]
        preferred = {}
        for installed in metadata.distributions():
            if name := installed.metadata["Name"]:
                preferred[types.canonical(name)] = installed.version
        try:
            answer = uv.compile(direct, platform, python, {**preferred, "uv": uv_version})
        except UnresolvableError as error:
            raise BuildError(
                f"envbuilder's own dependencies cannot be resolved: {error}"
            ) from error
    files = tuple(f.file for f in answer)
    fetch(
        files, Target(platform=platform, python=python, base=None, files=files), settings, progress
    )
    return files
