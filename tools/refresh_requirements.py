"""Resolve what envbuilder itself is installed with, and write `requirements/*.txt`.

    make requirements                         keep the versions; take in what pyproject.toml changed
    make requirements UPGRADE=--upgrade       the newest versions that pyproject.toml allows
    make requirements UPGRADE='--upgrade-package rich --upgrade-package uv==0.13.9'

`.venv/bin/python` of `bootstrap.py setup dev` runs it, and the uv installed there resolves. There
is one resolution, of the set `dev`; `test`, `docs` and `run` are taken from it. They hold what an
editable install needs, too: the build backend and what it asks for. Everything is locked for each
platform that envbuilder runs on and each Python of pyproject.toml's classifiers, and nothing is
written unless all of them have a wheel. Only the package index itself is asked: local folders and
extra indexes of this machine would give hashes of files that others cannot get. Prints what
changed. Exit code 4: uv could not resolve.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hatchling.build

from envbuilder.core import files as atomic, process
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import fetch as origins
from envbuilder.packages.python import indexes

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
SETS = {
    "dev": ("--extra", "dev"),
    "test": ("--extra", "test"),
    "docs": ("--extra", "docs"),
    "run": (),
}
"""The largest first: the others take its versions."""
PINNED = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>[^ ;\\]+)(?P<marker>[^\\]*)", re.MULTILINE)
CLASSIFIER = "Programming Language :: Python :: 3."


class ResolutionError(Exception):
    """uv could not resolve; the message is its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or none of them; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upgrade", action="store_true", help="the newest allowed versions")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME[==VERSION]")
    given = parser.parse_args(arguments)
    upgrades = ["--upgrade"] if given.upgrade else []
    upgrades += [f"--upgrade-package={package}" for package in given.upgrade_package]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="envbuilder-requirements-") as folder:
        try:
            resolved = resolve(project, Path(folder), upgrades)
        except ResolutionError as error:
            sys.stderr.write(f"error: {error}\n")
            return 4
    previous = {name: read(target(name)) for name in SETS}
    # Of the largest set alone: the others have no versions of their own.
    for line in changes(previous["dev"], resolved["dev"]):
        sys.stdout.write(f"{line}\n")
    for name, text in resolved.items():
        if text != previous[name]:
            atomic.write(target(name), text.encode())
            sys.stdout.write(f"wrote {target(name).relative_to(ROOT)}\n")
    return 0


def target(name: str) -> Path:
    """Return where a set's file is."""
    return ROOT / "requirements" / f"{name}.txt"


def read(path: Path) -> str:
    """Return a file's text; empty if there is none yet."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def resolve(project: dict[str, Any], folder: Path, upgrades: Sequence[str]) -> dict[str, str]:
    """Return each set's file; `folder` is a scratch folder, so that no path of ours is in them."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "build-system").write_text("\n".join(build_requirements(project)))
    (folder / "dev.txt").write_text(read(target("dev")))
    versions = pythons(project)
    for name, extras in SETS.items():
        if name != "dev":
            # uv keeps the versions and hashes that it finds in the file it is to write.
            shutil.copy(folder / "dev.txt", folder / f"{name}.txt")
        uv(
            "pip",
            "compile",
            "--universal",
            "--generate-hashes",
            "--python-version",
            versions[0],
            "--output-file",
            f"{name}.txt",
            "--custom-compile-command",
            "make requirements",
            *extras,
            "pyproject.toml",
            "build-system",
            *(upgrades if name == "dev" else ()),
            folder=folder,
        )
    with ThreadPoolExecutor() as pool:
        cases = itertools.product([folder], versions, indexes.UV_PLATFORM.values())
        list(pool.map(try_install, *zip(*cases, strict=True)))
    return {name: (folder / f"{name}.txt").read_text(encoding="utf-8") for name in SETS}


def build_requirements(project: dict[str, Any]) -> list[str]:
    """Return the build backend and what it asks for to install this checkout editable."""
    with contextlib.chdir(ROOT):  # where PEP 517 has backends run
        needed = hatchling.build.get_requires_for_build_editable()
    return [*project["build-system"]["requires"], *needed]


def pythons(project: dict[str, Any]) -> list[str]:
    """Return the supported versions of Python, the oldest first."""
    found = [c.rpartition(" ")[2] for c in project["project"]["classifiers"] if CLASSIFIER in c]
    return sorted(found, key=lambda version: int(version.partition(".")[2]))


def try_install(folder: Path, version: str, platform: str) -> None:
    """Raise `ResolutionError` unless every pin has a locked wheel for a platform and a Python."""
    uv(
        "pip",
        "install",
        "--dry-run",
        "--target",
        "nowhere",
        "--require-hashes",
        "--python-version",
        version,
        "--python-platform",
        platform,
        "--requirements",
        "dev.txt",
        folder=folder,
    )


def uv(*arguments: str, folder: Path) -> None:
    """Run envbuilder's uv in a folder, with wheels of the user's package index alone."""
    variables = {**os.environ, **origins.uv_variables(indexes.DEFAULT, load_settings())}
    for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONSTRAINT", "UV_OVERRIDE"):
        variables.pop(name, None)
    done = subprocess.run(
        [process.uv_path(), *arguments, "--quiet", "--only-binary", ":all:"],
        cwd=folder,
        # The oldest macOS of the profiles' wheels, as everywhere that uv resolves for a Mac.
        env={**variables, "MACOSX_DEPLOYMENT_TARGET": "14.0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ResolutionError(f"uv {' '.join(arguments)}\n{done.stderr.strip()}")


def changes(before: str, after: str) -> list[str]:
    """Return what is new, gone or of another version, as lines for people."""
    old = pins(before)
    new = pins(after)
    lines = [
        f"{name} {old[name]} -> {new[name]}"
        for name in new
        if new[name] != old.get(name, new[name])
    ]
    lines += [f"{name} {new[name]} is new" for name in new if name not in old]
    lines += [f"{name} {old[name]} is gone" for name in old if name not in new]
    return sorted(lines)


def pins(text: str) -> dict[str, str]:
    """Return the versions in a requirements file, with their markers, by name."""
    found: dict[str, list[str]] = {}
    for match in PINNED.finditer(text):
        found.setdefault(match["name"], []).append((match["version"] + match["marker"]).strip())
    return {name: ", ".join(versions) for name, versions in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
