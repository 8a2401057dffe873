"""Run uv as a resolver: requirements in, files with hashes out."""

from __future__ import annotations

import hashlib
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, pip, text, types, uv_program
from envbuilder.core.errors import BuildError
from envbuilder.core.http import printed_reason
from envbuilder.packages.python import indexes, pylock
from envbuilder.packages.python.indexes import DEFAULT, canonical
from envbuilder.packages.python.static_index import StaticIndex
from envbuilder.profiles.lock import File

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from envbuilder.core import process

    Runner = Callable[..., process.Completed]

SECONDS = 600.0
_ANNOTATION = re.compile(r"^([a-z0-9-]+)==\S+ +# via (.+)$", re.MULTILINE)
"""A line of a resolution: a package, and what requires it."""


class UnresolvableError(Exception):
    """No choice of files satisfies a target; the message is suitable as a lock's `reason`."""


class Found(Struct, frozen=True, kw_only=True):
    """A file for a lock, and its current URL."""

    file: File
    url: str
    """`http:`, `https:` or `file:`; it never enters a lock. Empty if unknown."""


class Uv(Struct, frozen=True, kw_only=True):
    """How uv is run for one lock."""

    run: Runner
    folder: Path
    cache: Path
    environment: dict[str, str]
    find_links: tuple[str, ...]
    index: StaticIndex
    """Written into `folder`, so that uv reads its uv.toml."""
    options: tuple[str, ...] = ()
    """More options of uv, for each run."""

    def compile(
        self,
        requirements: Sequence[str],
        platform: types.Platform,
        python: str,
        preferred: Mapping[str, str],
        constraints: Sequence[str] = (),
    ) -> tuple[Found, ...]:
        """Return the files for some requirements; raise `UnresolvableError` if none satisfy them.

        `preferred` versions (name → version) are kept if possible. `constraints` hold for what is
        required anyway.
        """
        # First with every earlier version fixed, so that nothing moves without a reason. If a
        # requirement needs another version, in uv's own way: prefer each earlier one that fits.
        # That comes second because of several indexes: if one has a preferred version for other
        # machines only, uv looks no further and takes another version. Only as a last resort may
        # all versions change.
        for attempt in ("fix", "prefer") if preferred else ():
            with suppress(UnresolvableError):
                return self._attempt(
                    attempt, requirements, platform, python, preferred, constraints
                )
        return self._attempt("free", requirements, platform, python, preferred, constraints)

    def edges(
        self,
        requirements: Sequence[str],
        platform: types.Platform,
        python: str,
        pins: Mapping[str, str],
        constraints: Sequence[str],
    ) -> Iterator[tuple[str, str]]:
        """Yield pairs of packages of a resolution, of which the first requires the second."""
        options = ("--annotation-style", "line")
        printed = self._output(
            "requirements.txt", "fix", requirements, platform, python, pins, constraints, options
        )
        for name, reasons in _ANNOTATION.findall(printed):
            yield from ((by, name) for by in reasons.split(", ") if not by.startswith("-"))

    def _attempt(
        self,
        how: str,
        requirements: Sequence[str],
        platform: types.Platform,
        python: str,
        preferred: Mapping[str, str],
        constraints: Sequence[str],
    ) -> tuple[Found, ...]:
        written = self._output(
            *("pylock.toml", how, requirements, platform, python, preferred, constraints),
            ("--no-annotate",),
        )
        return tuple(self._resolved(w) for w in pylock.parse(written, platform, python))

    def _output(
        self,
        form: str,
        how: str,
        requirements: Sequence[str],
        platform: types.Platform,
        python: str,
        preferred: Mapping[str, str],
        constraints: Sequence[str],
        options: Sequence[str],
    ) -> str:
        """Return what uv resolves, in one of its forms, which is the name of a file, too."""
        source = self.folder / "requirements.in"
        source.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        fixed = self.folder / "constraints.txt"
        pins = [f"{n}=={v}" for n, v in preferred.items()] if how == "fix" else []
        fixed.write_text("".join(f"{p}\n" for p in (*constraints, *pins)), encoding="utf-8")
        result = self.folder / form
        result.unlink(missing_ok=True)
        if how == "prefer":  # uv keeps the versions of a file that it overwrites
            result.write_text(pylock.preferences(preferred), encoding="utf-8")
        done = uv_program.run(
            [
                uv_program.path(), "pip", "compile", str(source), "--output-file", str(result),
                "--constraints", str(fixed),
                "--format", form, "--only-binary", ":all:", "--no-header",
                "--python-platform", indexes.UV_PLATFORM[platform], "--python-version", python,
                "--python", sys.executable, "--no-python-downloads", "--no-progress",
                "--color", "never", "--cache-dir", str(self.cache), *options, *self.options,
            ],
            env={
                **self.environment,
                "MACOSX_DEPLOYMENT_TARGET": pylock.MACOS,
                # Not an argument: a URL may hold credentials, and arguments are public.
                **({"UV_FIND_LINKS": ",".join(self.find_links)} if self.find_links else {}),
            },
            folder=self.folder,
            runner=self.run,
            timeout=SECONDS,
        )  # fmt: skip
        if done.returncode == 1 and "No solution found" in done.stderr:
            proof = done.stderr.partition("No solution found when resolving dependencies")[2]
            raise UnresolvableError(
                text.with_proof(
                    f"{platform} with Python {python}: no wheels satisfy all requirements (nothing"
                    " is built from source; PIP_FIND_LINKS names folders of wheels of your own)",
                    _scrub(proof),
                )
            )
        if done.returncode != 0:
            why = printed_reason(done.stderr)
            raise BuildError(
                f"uv could not resolve {', '.join(requirements)} for {platform} with Python "
                f"{python} (exit {done.returncode}):"
                f"{f' {why}' if why else chr(10) + _scrub(done.last_words)}",
                "Check that your package index can be reached: pip download --no-deps six",
            )
        return result.read_text(encoding="utf-8")

    def _resolved(self, wheel: pylock.Wheel) -> Found:
        offer = self.index.find(wheel.location)
        if offer is not None:
            file = _checked(
                name=wheel.name,
                version=wheel.version,
                file=wheel.file,
                sha256=offer.sha256,
                size=offer.size,
                size_about=offer.size_about if offer.size is None else None,
                source=offer.source,
                provenance=offer.provenance,
                by=offer.by,
            )
            # The real URL. A wheel in a folder has its size already.
            return Found(file=file, url=offer.location if "://" in offer.location else "")
        sha256, size, url = wheel.sha256, wheel.size, wheel.location
        local = pip.local_folder(wheel.location)
        if local is not None:
            path = (self.folder / local).absolute()
            url = path.as_uri()
            if not sha256:
                sha256, size = _hash(path)
        if not sha256:
            raise BuildError(
                f"{wheel.file}: your package index states no sha256 for it",
                "Use an index that states hashes.",
            )
        file = _checked(
            name=wheel.name,
            version=wheel.version,
            file=wheel.file,
            sha256=sha256,
            size=size,
            source=DEFAULT,
            provenance="read",
            by="the package index",
        )
        return Found(file=file, url=url)


def _checked(**fields: object) -> File:
    """Return a validated lock entry: its strings end up in file names and command lines."""
    try:
        return decoding.convert({"kind": "wheel", **fields}, File)
    except msgspec.ValidationError as error:
        raise BuildError(
            f"the index lists an invalid file: {fields.get('file')!r}: {error}"
        ) from error


def _hash(path: Path) -> tuple[str, int]:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest(), path.stat().st_size


def _scrub(printed: str) -> str:
    """Return text without URLs: a lock and a log name no index."""
    return re.sub(r"\b[a-z][a-z0-9+.-]*://\S+", "<url>", printed)


def links(locations: Sequence[str], offered: Iterable[str], work: Path) -> tuple[str, ...]:
    """Return find-links for uv, without the distributions that the static index offers.

    uv would take those from the folder without recording the source of their hash.
    """
    if not locations:
        return ()
    names = {canonical(name) for name in offered}
    result = []
    mirror = work / "find-links"
    # Always passed, even if empty: it replaces the user's UV_FIND_LINKS.
    mirror.mkdir()
    for location in locations:
        folder = pip.local_folder(location)
        if folder is None:
            result.append(location.replace(",", "%2C"))
            continue
        for path in sorted(folder.glob("*.whl")) if folder.is_dir() else ():
            target = mirror / path.name
            if canonical(path.name.partition("-")[0]) not in names and not target.exists():
                target.symlink_to(path.absolute())
    return (*result, str(mirror))
