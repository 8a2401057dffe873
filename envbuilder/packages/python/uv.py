"""Run uv as a resolver, which turns requirements into a list of files with their hashes.

uv resolves only packages that an index offers. To offer wheels even if their own index is
unreachable, a static index is written to a local folder. It lists wheels whose names and hashes are
known, on one page per distribution (PEP 503). The requirements of these wheels are written as
`dependency-metadata` to a uv.toml, which uv reads from its working folder. uv writes its result to
a pylock.toml (PEP 751).

This module is long because uv's input and output belong together.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, http, pip, process, types
from envbuilder.core.errors import BuildError, UnreachableError
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import Settings, require_writable
from envbuilder.packages.python import indexes
from envbuilder.profiles import releases
from envbuilder.profiles.lock import File, Reason, reason

if TYPE_CHECKING:
    from packaging.tags import Tag

Runner = Callable[..., process.Completed]

_LASTING = """\
[[index]]
name = "lasting-{}"
url = {}
explicit = true
cache-control = {{ api = "max-age=300", files = "max-age=31536000, immutable" }}
"""
"""An entry of uv.toml that makes uv cache an index for longer, so that several runs see the same
page for a package. PyPI lets clients cache a page for only 600 seconds. The requirements of a wheel
never change. With `explicit`, the entry does not add another index to those in use."""


class Offer(Struct, frozen=True, kw_only=True):
    """A wheel that the static index offers."""

    distribution: str
    version: str
    file: str
    sha256: str
    source: str
    provenance: str
    by: str
    size: int | None = None
    size_about: int | None = None
    requires_python: str = ""
    requires_dist: tuple[str, ...] | None = None
    """The claimed requirements, or None if no requirements are claimed."""
    core_metadata: bool = False
    """Whether the index serves the wheel's METADATA as a separate file (PEP 658)."""
    location: str = ""
    """The URL or path of the wheel itself; empty if the wheel is known only from claims."""


class StaticIndex(Struct, frozen=True, kw_only=True):
    """A package index in a local folder. The index is valid as long as the folder exists."""

    url: str
    offers: dict[str, Offer]
    """URL that uv reports for a wheel, unquoted → the offer of this wheel."""


def write_index(offers: Iterable[Offer], folder: Path, others: Iterable[str] = ()) -> StaticIndex:
    """Write the offers to a folder as an index, and their requirements to a uv.toml beside it.

    Only the requirements that are claimed for an offer are written. The uv.toml also makes uv cache
    the pages of `others`, which are the URLs of the user's indexes.
    """
    pages: dict[str, list[str]] = {}
    claims: dict[tuple[str, str], str] = {}
    by_url = {}
    for offer in offers:
        url = _url(offer, folder)
        by_url[unquote(url)] = offer
        name = types.canonical(offer.distribution)
        pages.setdefault(name, []).append(_link(offer, url))
        if offer.requires_dist is not None:
            # uv knows requirements by release, not by file: they hold for all wheels of this one.
            claims[name, offer.version] = _requirements(offer, offer.requires_dist)
    for row in releases.unstated():
        claims[row.distribution, row.version] = _requirements(row, row.requires_dist.split(" | "))
    root = folder / "simple"
    root.mkdir()
    for name, links in pages.items():
        (root / name).mkdir()
        (root / name / "index.html").write_text(
            f"<!DOCTYPE html><html><body>\n{''.join(links)}</body></html>\n", encoding="utf-8"
        )
    settings = "".join(claims.values()) + _lasting_pages(others)
    (folder / "uv.toml").write_text(settings, encoding="utf-8")
    return StaticIndex(url=root.as_uri(), offers=by_url)


def index_variables(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make uv read the uv.toml in the folder.

    If the user has set another configuration file, that file is merged into the folder's uv.toml.
    The result is empty if uv finds the uv.toml even without such variables.
    """
    path = environ.get("UV_CONFIG_FILE", "")
    if not path and not environ.get("UV_NO_CONFIG"):
        return {}
    settings = folder / "uv.toml"
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return {}  # uv reports what is wrong with it
        settings.write_text(f"{text}\n{settings.read_text(encoding='utf-8')}", encoding="utf-8")
    return {"UV_CONFIG_FILE": str(settings)}


def _lasting_pages(indexes: Iterable[str]) -> str:
    """Return entries for uv.toml that make uv cache the pages of other indexes.

    Indexes with credentials in their URLs are left out, so that the credentials do not end up in
    the file.
    """
    entries = ""
    for number, url in enumerate(indexes):
        parts = urlsplit(url)
        if parts.scheme == "https" and "@" not in parts.netloc:
            entries += _LASTING.format(number, json.dumps(url))
    return entries


def _url(offer: Offer, folder: Path) -> str:
    """Return the URL of a wheel.

    If the wheel is known only from claims, the URL is that of a nonexistent file.
    """
    if "://" in offer.location:
        return offer.location
    return Path(offer.location or folder / "files" / offer.file).absolute().as_uri()


def _link(offer: Offer, url: str) -> str:
    extra = ""
    if offer.requires_python:
        extra += f' data-requires-python="{html.escape(offer.requires_python)}"'
    if offer.core_metadata:
        extra += ' data-core-metadata="true"'
    href = html.escape(f"{url}#sha256={offer.sha256}")
    return f'<a href="{href}"{extra}>{html.escape(offer.file)}</a>\n'


def _requirements(offer: Offer | releases.Unstated, requires_dist: Sequence[str]) -> str:
    """Return an entry for uv.toml that specifies a wheel's requirements.

    The values are written as JSON, because JSON strings and lists of strings are valid TOML.
    """
    entry = {
        "name": types.canonical(offer.distribution),
        "version": offer.version,
        "requires-dist": requires_dist,
    }
    if isinstance(offer, Offer) and offer.requires_python:
        entry["requires-python"] = offer.requires_python
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in entry.items()]
    return f"[[dependency-metadata]]\n{''.join(lines)}\n"


MACOS = "14.0"
"""The oldest macOS version that PyTorch's wheels support."""


class Wheel(Struct, frozen=True, kw_only=True):
    """A package in uv's result, with the wheel chosen for it."""

    name: str
    version: str
    file: str
    sha256: str
    location: str
    size: int | None = None
    uploaded: str = ""


def parse_pylock(text: str, platform: types.Platform, python: str) -> tuple[Wheel, ...]:
    """Return the packages in a pylock.toml (PEP 751) that uv wrote for one platform and Python.

    If several wheels of a package fit, choose the one that pip would choose. Raise `BuildError` if
    no wheel of a package fits, or if the file is invalid.
    """
    accepted = ranks(platform, python)
    try:
        return tuple(_wheel(p, accepted) for p in tomllib.loads(text).get("packages", []))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise BuildError(f"cannot read the lock that uv wrote: {error}") from error


@lru_cache(maxsize=32)
def ranks(platform: types.Platform, python: str) -> Mapping[Tag, int]:
    """Return the wheel tags that a target accepts, each with its rank. The best rank is 0."""
    from packaging import tags

    version = tuple(map(int, python.split(".")))
    machine = types.machine(platform)
    if types.system(platform) == "darwin":
        major, minor = map(int, MACOS.split("."))
        platforms = list(tags.mac_platforms((major, minor), machine))
    else:
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(28, 16, -1)]
        platforms.append(f"manylinux2014_{machine}")
        if machine == "x86_64":
            platforms += [f"manylinux_2_{minor}_{machine}" for minor in range(16, 4, -1)]
            platforms += [f"manylinux2010_{machine}", f"manylinux1_{machine}"]
        platforms.append(f"linux_{machine}")
    interpreter = "cp" + python.replace(".", "")
    accepted = (
        *tags.cpython_tags(version, [interpreter], platforms),
        *tags.compatible_tags(version, interpreter, platforms),
    )
    return {tag: rank for rank, tag in enumerate(accepted)}


@lru_cache(maxsize=50_000)
def _tags(file: str) -> frozenset[Tag]:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        return parse_wheel_filename(file)[3]
    except InvalidWheelFilename:
        return frozenset()


def best_rank(file: str, ranks: Mapping[Tag, int]) -> int | None:
    """Return the best rank among the tags in a wheel's file name; None if no tag is accepted."""
    return min((ranks[tag] for tag in _tags(file) if tag in ranks), default=None)


def _wheel(package: dict[str, Any], ranks: Mapping[Tag, int]) -> Wheel:
    wheels = package.get("wheels", [])
    if not wheels and "archive" in package:
        wheels = [package["archive"]]  # a wheel in a find-links folder
    fitting = []
    for wheel in wheels:
        location = wheel.get("url") or wheel["path"]
        file = wheel.get("name") or unquote(urlsplit(location).path).rpartition("/")[2]
        rank = best_rank(file, ranks)
        if rank is not None:
            fitting.append((rank, file, location, wheel))
    if not fitting:
        raise ValueError(f"{package['name']}: no matching wheel")
    _, file, location, wheel = min(fitting, key=lambda item: item[:2])
    return Wheel(
        name=types.canonical(package["name"]),
        version=package["version"],
        file=file,
        sha256=wheel.get("hashes", {}).get("sha256", ""),
        location=location,
        size=wheel.get("size"),
        uploaded=str(wheel.get("upload-time", ""))[:10],
    )


def preferences(preferred: Mapping[str, str]) -> str:
    """Return the text of a pylock.toml that contains the versions that uv should prefer."""
    lines = ['lock-version = "1.0"', 'created-by = "envbuilder"', "packages = ["]
    lines += [f'  {{name = "{n}", version = "{v}"}},' for n, v in sorted(preferred.items())]
    return "\n".join((*lines, "]", ""))


SECONDS = 600.0
"""Maximum number of seconds for a uv run, which may wait for the user's indexes."""
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+")
"""Matches URLs of indexes in uv's output, which neither a lock nor a log may contain."""
_FAILED = re.compile(r"Failed to fetch:?\s+`?(\S+)")
_CAUSE = re.compile(r"^\s*(Caused by|cause):\s*")
_CHECK_INDEX = "Check whether you can reach your package index: pip download --no-deps six"
_ANNOTATION = re.compile(r"^([a-z0-9-]+)==(\S+) +# via (.+)$", re.MULTILINE)
"""Matches a line of uv's result: a package, its version, and the packages that require it."""

_LACKING = re.compile(
    r"(?:required|wheels) for `([\w.-]+)`|([\w.-]+)(?:[=<>!~]\S+)? was not found in the"
)
"""Matches the parts of uv's messages that name a package which has no wheel for the target or is on
no index."""


class UnresolvableError(Exception):
    """Raised when no set of files satisfies the requirements for the given target.

    If no target is given, the requirements cannot be satisfied for any target.
    """

    def __init__(
        self,
        cause: Reason | str,
        target: tuple[str, str] | None = None,
        named: frozenset[str] = frozenset(),
    ) -> None:
        """Store the reason. `named` contains the packages that are on no index or have no wheel."""
        self.named = named
        self.reason = reason(cause) if isinstance(cause, str) else cause
        if target:
            self.reason = msgspec.structs.replace(
                self.reason, target=f"{target[0]} with Python {target[1]}"
            )
        super().__init__(str(self.reason))


class Found(Struct, frozen=True, kw_only=True):
    """A file for a lock, with the URL at which it is currently available."""

    file: File
    url: str
    """The URL (`http:`, `https:` or `file:`); empty if unknown. It is never written to a lock."""
    uploaded: str = ""
    """The day on which the file was uploaded to the index; empty if unknown."""


class Requirers(NamedTuple):
    """A package in a resolution, with the packages that require it."""

    name: str
    version: str
    by: tuple[str, ...]


class _Question(NamedTuple):
    """The input for running uv once for a target."""

    requirements: Sequence[str]
    platform: types.Platform
    python: str
    earlier: Mapping[str, str]
    """Package name → version. Depending on the run, these versions are fixed, preferred or
    ignored."""
    constraints: Sequence[str]


class Memory(Struct, kw_only=True):
    """The results of uv runs, kept so that later runs of the same command can reuse them."""

    answers: dict[tuple[Hashable, ...], tuple[Found, ...] | UnresolvableError]
    """All inputs of a run → the result of the run."""
    indexes: tuple[str, ...] = ()
    """The URLs of the user's indexes, whose pages are cached between runs."""


class Uv(Struct, frozen=True, kw_only=True):
    """A resolver that runs uv with the configuration for one lock."""

    run: Runner
    folder: Path
    cache: Path
    environment: dict[str, str]
    find_links: tuple[str, ...]
    index: StaticIndex
    """The static index, written to `folder` so that uv reads its uv.toml."""
    options: tuple[str, ...] = ()
    """Additional options for each uv run."""
    memory: Memory
    """The results of earlier runs, which are reused."""

    def compile(
        self,
        requirements: Sequence[str],
        platform: types.Platform,
        python: str,
        preferred: Mapping[str, str],
        constraints: Sequence[str] = (),
    ) -> tuple[Found, ...]:
        """Return the files that satisfy the requirements; raise `UnresolvableError` if none do.

        The versions in `preferred` (name → version) are kept if possible. `constraints` limit the
        versions of packages without requiring the packages.
        """
        # First with every earlier version fixed, so that nothing moves without a reason. If a
        # requirement needs another version, in uv's own way: prefer each earlier one that fits.
        # That comes second because of several indexes: if one has a preferred version for other
        # machines only, uv looks no further and takes another version.
        question = _Question(requirements, platform, python, preferred, constraints)
        if not preferred:
            return self._wheels(question, "free")
        with suppress(UnresolvableError):
            return self._wheels(question, "fix")
        return self._wheels(question, "prefer")

    def edges(
        self,
        requirements: Sequence[str],
        platform: types.Platform,
        python: str,
        pins: Mapping[str, str],
        constraints: Sequence[str],
    ) -> Iterator[Requirers]:
        """Resolve the requirements, and yield each package with the packages that require it."""
        question = _Question(requirements, platform, python, pins, constraints)
        how = ("fix", "requirements.txt", "--annotation-style", "line")
        # If every version is given, there is one answer, and uv has just read all of it: it need
        # not ask the index for each page again.
        try:
            printed = self._output(question, *how, *(["--offline"] if pins else []))
        except (UnresolvableError, BuildError):
            if not pins:
                raise
            printed = self._output(question, *how)
        for name, version, reasons in _ANNOTATION.findall(printed):
            packages = (by for by in reasons.split(", ") if not by.startswith("-"))
            yield Requirers(name, version, tuple(packages))

    def _wheels(self, question: _Question, how: str) -> tuple[Found, ...]:
        options = map(self._content, self.options)
        asked = (*map(str, question), how, *options, *self.index.offers.values())
        answers = self.memory.answers
        if asked not in answers:
            try:
                written = self._output(question, how, "pylock.toml", "--no-annotate")
                wheels = parse_pylock(written, question.platform, question.python)
                answers[asked] = tuple(map(self._resolved, wheels))
            except UnresolvableError as error:
                answers[asked] = error
        answer = answers[asked]
        if isinstance(answer, UnresolvableError):
            raise answer
        return answer

    def _content(self, option: str) -> str:
        """Return an option, or the text of a file if the option is a path in the working folder."""
        path = Path(option)
        return path.read_text(encoding="utf-8") if path.parent == self.folder else option

    def _output(self, question: _Question, how: str, form: str, *options: str) -> str:
        """Run uv, and return the text that it writes.

        `form` is the format of the text, which is `pylock.toml` or `requirements.txt`.
        """
        requirements, platform, python, earlier, constraints = question
        # Several targets may be resolved side by side. A dot would be no part of a pylock's name.
        target = f"{platform} {python}".translate(str.maketrans("/ .", "---"))
        source = self.folder / f"{target}.in"
        source.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        fixed = self.folder / f"{target}.constraints"
        pins = [f"{n}=={v}" for n, v in earlier.items()] if how == "fix" else []
        fixed.write_text("".join(f"{p}\n" for p in (*constraints, *pins)), encoding="utf-8")
        result = self.folder / form.replace(".", f".{target}.")
        result.unlink(missing_ok=True)
        if how == "prefer":  # uv keeps the versions of a file that it overwrites
            result.write_text(preferences(earlier), encoding="utf-8")
        done = process.run_uv(
            [
                process.uv_path(), "pip", "compile", str(source), "--output-file", str(result),
                "--constraints", str(fixed),
                "--format", form, "--only-binary", ":all:", "--no-header",
                "--python-platform", indexes.UV_PLATFORM[platform], "--python-version", python,
                "--python", sys.executable, "--no-python-downloads", "--no-progress",
                "--color", "never", "--cache-dir", str(self.cache), *options, *self.options,
            ],
            env={
                **self.environment,
                "MACOSX_DEPLOYMENT_TARGET": MACOS,
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
                reason(
                    "no wheels satisfy all requirements (nothing is built from source;"
                    " PIP_FIND_LINKS may name folders with your own wheels)",
                    proof=_URL.sub("<url>", proof),
                ),
                (platform, python),
                _named(proof),
            )
        if away := _FAILED.search(done.stderr):
            host = http.host_of(away[1].rstrip("`),"))
            cause = _CAUSE.sub("", done.last_words.splitlines()[-1])
            raise UnreachableError(f"the index {host} cannot be reached: {cause}", _CHECK_INDEX)
        if done.returncode != 0:
            raise BuildError(
                f"uv could not resolve {', '.join(requirements)} for {platform} with Python "
                f"{python} (exit {done.returncode}):\n"
                f"{_URL.sub('<url>', done.last_words)}",
                _CHECK_INDEX,
            )
        return result.read_text(encoding="utf-8")

    def _resolved(self, wheel: Wheel) -> Found:
        same = {"name": wheel.name, "version": wheel.version, "file": wheel.file}
        offer = self.index.offers.get(unquote(wheel.location))
        if offer is not None:
            return Found(
                file=_checked(
                    **same,
                    sha256=offer.sha256,
                    size=offer.size,
                    size_about=offer.size_about if offer.size is None else None,
                    source=offer.source,
                    provenance=offer.provenance,
                    by=offer.by,
                ),
                # The real URL. A wheel in a folder has its size already.
                url=offer.location if "://" in offer.location else "",
            )
        sha256 = wheel.sha256
        size = wheel.size
        url = wheel.location
        local = pip.local_folder(url)
        if local is not None:
            path = (self.folder / local).resolve()
            url = path.as_uri()
            if not sha256:
                sha256 = file_sha256(path)
                size = path.stat().st_size
        if not sha256:
            raise BuildError(
                f"{wheel.file}: your package index provides no sha256 for this file",
                "Use an index that provides hashes.",
            )
        return Found(
            file=_checked(
                **same,
                sha256=sha256,
                size=size,
                source=indexes.DEFAULT,
                provenance="read",
                by="the package index",
            ),
            url=url,
            uploaded=wheel.uploaded,
        )


def _named(printed: str) -> frozenset[str]:
    """Return the names of the packages that, according to uv, are on no index or have no wheel."""
    names = set[str]()
    for lacking, absent in _LACKING.findall(printed):
        names.add(types.canonical(lacking or absent))
    return frozenset(names)


def _checked(**fields: object) -> File:
    """Return a validated lock entry with the given fields.

    Validation is needed because the strings in an entry appear in file names and commands. Raise
    `BuildError` if a field is invalid.
    """
    try:
        return decoding.convert({"kind": "wheel", **fields}, File)
    except msgspec.ValidationError as error:
        raise BuildError(
            f"the index lists an invalid file: {fields.get('file')!r}: {error}"
        ) from error


@contextmanager
def started(
    settings: Settings,
    run: Runner,
    environ: Mapping[str, str],
    offers: Iterable[Offer] | None = None,
    named: Iterable[str] = (),
    memory: Memory | None = None,
) -> Iterator[Uv]:
    """Yield a `Uv` with a temporary working folder that searches the user's indexes and the offers.

    If `offers` is None, only the user's indexes are searched. `named` contains the distributions
    that must be taken from the offers. `memory` stores the results of the command's uv runs.
    """
    memory = memory or Memory(answers={})
    sources = pip.sources(environ)
    with tempfile.TemporaryDirectory(prefix="envbuilder-lock-") as name:
        work = Path(name)
        index = write_index(offers or (), work, memory.indexes)
        urls = () if offers is None else (index.url,)
        yield Uv(
            run=run,
            folder=work,
            cache=require_writable(settings.uv_dir),
            environment=indexes.uv_environment(sources, environ, urls)
            | index_variables(work, environ),
            find_links=links(pip.links(sources, environ), named, settings.uv_dir),
            index=index,
            memory=memory,
        )


def links(locations: Sequence[str], offered: Iterable[str], cache: Path) -> tuple[str, ...]:
    """Return find-links for uv that leave out the distributions offered by the static index.

    Otherwise, uv could take such a distribution from a find-links folder without recording the
    source of its hash. Links to the remaining wheels are collected in a folder in uv's cache. This
    folder is kept, because uv unpacks a wheel once per path, and wheels may be large.
    """
    if not locations:
        return ()
    names = set(map(types.canonical, offered))
    result = []
    wheels: dict[str, Path] = {}
    for location in locations:
        folder = pip.local_folder(location)
        if folder is None:
            result.append(location.replace(",", "%2C"))
            continue
        for path in sorted(folder.glob("*.whl")) if folder.is_dir() else ():
            if types.canonical(path.name.partition("-")[0]) not in names:
                wheels.setdefault(path.name, path.absolute())
    lines = "".join(f"{path}\n" for path in wheels.values())
    mirror = cache / "find-links" / hashlib.sha256(lines.encode()).hexdigest()
    # Always passed, even if empty: it replaces the user's UV_FIND_LINKS.
    if not mirror.is_dir():
        mirror.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=mirror.parent) as name:
            new = Path(name) / mirror.name
            new.mkdir()
            for file, path in wheels.items():
                (new / file).symlink_to(path)
            with suppress(OSError):  # made by another command meanwhile
                new.rename(mirror)
    return (*result, str(mirror))
