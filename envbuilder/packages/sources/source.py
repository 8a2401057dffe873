"""Obtain the source of a package as a single archive in the store, and unpack it.

A source distribution is kept unchanged. A commit of a repository, or a folder in the project, is
packed into a tar that depends only on the files in the folder: the tar is sorted and contains
neither times nor owners. Therefore, each source has a sha256 and is treated like any other file: it
is downloaded once, checked, and added to bundles.
"""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from envbuilder.core import archives, files, folders, http, pip, process, publishable, types
from envbuilder.core.errors import BuildError, Hint, InvalidError, escaped, shown
from envbuilder.packages import fetch, upstream
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import Recipe

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from envbuilder.core.settings import Settings

_LARGEST = folders.LARGEST
"""Maximum size in bytes of a source from an index, a server or a repository. It applies both to the
archive and to the unpacked files."""
_GIT_SECONDS = 900.0
"""Maximum number of seconds for each git command."""
_SETTINGS = re.compile(r"(?i)\.(toml|cfg|conf|ini|ya?ml|json|lock|txt|in|env)\Z")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_SSH = ("git_ssh", "git_ssh_command", "git_ssh_variant", "ssh_auth_sock")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class Location(NamedTuple):
    """The parsed location of a source, as written in a requirement."""

    kind: types.SourceKind
    url: str
    reference: str
    subdirectory: str
    sha256: str = ""
    """The archive's hash; empty if the requirement does not state it."""

    @property
    def file(self) -> str:
        """The file name of the archive to which the location points."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    def stays(self, recipe: Recipe | None) -> bool:
        """Return whether a locked recipe for this location is kept until the next upgrade.

        The recipe for a folder in the project is never kept, because the folder is always read
        again.
        """
        if recipe is None or self.kind == "path" or self.sha256 not in {"", recipe.sha256}:
            return False
        return self[:4] == (recipe.kind, recipe.location, recipe.reference, recipe.subdirectory)


def located(text: str) -> Location:
    """Parse a location: `git+URL@REF#subdirectory=DIR`, the URL of an archive, or `./DIR`.

    Raise `InvalidError` for an invalid subdirectory or reference.
    """
    url, _, fragment = text.partition("#")
    options = parse_qs(fragment)
    subdirectory = options.get("subdirectory", [""])[0].strip("/")
    odd = re.search(r"[\s\"'\\`$<>|]", subdirectory)
    wrong = f"has {shown(odd[0])}" if odd else archives.path_objection(subdirectory)
    if subdirectory and wrong:
        raise InvalidError(f"{escaped(text)}: subdirectory: {wrong}")
    if url.startswith("git+"):
        address, at, reference = url.removeprefix("git+").rpartition("@")
        if not at or "/" not in urlsplit(address).path:
            address = url.removeprefix("git+")
            reference = ""
        if reference.startswith("-"):
            raise InvalidError(
                f"{escaped(text)}: {shown(reference)} is not a branch, tag or commit"
            )
        return Location("git", address, reference, subdirectory)
    if "://" in url:
        found = Location("sdist", url, "", subdirectory, options.get("sha256", [""])[0].lower())
        return found._replace(kind="wheel") if found.file.endswith(".whl") else found
    return Location("path", url, "", subdirectory)


# The index


def listed(name: str) -> list[tuple[Version, upstream.Listed]]:
    """Return the versions and source distributions of a package on the user's indexes.

    Each file is returned only once. Raise `BuildError` if no source distributions are found and an
    index cannot be read.
    """
    problems: dict[str, OSError] = {}
    addresses = (index.page(name) for index in fetch.places())
    files: dict[str, tuple[Version, upstream.Listed]] = {}
    for version, link in upstream.files_of(name, addresses, upstream.page, problems):
        if not link.file.endswith(".whl"):
            files.setdefault(link.file, (version, link))
    if not files and problems:
        told = (f"{http.host_of(url)}: {http.reason(error)}" for url, error in problems.items())
        raise BuildError(
            f"{name}: no index could list its sources: {'; '.join(told)}",
            "Check the network and the index settings.",
        )
    return [*files.values()]


def newest(
    name: str, specifier: SpecifierSet, pythons: Sequence[str], as_of: str
) -> tuple[str, upstream.Listed]:
    """Return the version and source distribution of the newest release that matches a specifier.

    A yanked release matches only if it is pinned (PEP 592). Raise `InvalidError` if no release
    matches.
    """
    every = listed(name)
    pinned = {clause.version for clause in specifier if clause.operator == "=="}
    admitted: dict[Version, upstream.Listed] = {}
    for version, link in every:
        if link.yanked and str(version) not in pinned:
            continue
        if as_of and not "" < link.upload_time[:10] <= as_of:
            continue
        if any(upstream.admits(link, python) for python in pythons):
            admitted[version] = link
    best = max(specifier.filter(admitted), default=None)
    if best is None:
        versions = sorted({version for version, _ in every})
        raise InvalidError(
            f"{name}{specifier}: no source of a matching release"
            f"{f' from before {as_of}' if as_of else ''} supports Python {' or '.join(pythons)}",
            f"Sources exist for: {', '.join(map(str, versions[-20:])) or 'no release'}.",
        )
    return str(best), admitted[best]


# Archives


def of_release(link: upstream.Listed, settings: Settings) -> Recipe:
    """Download the archive of a release from an index into the store, and return its recipe."""
    sha256 = downloaded(link.location, link.sha256, link.file, settings)
    return Recipe(kind="sdist", location=link.file, sha256=sha256)


def downloaded(url: str, sha256: str, file: str, settings: Settings) -> str:
    """Download an archive into the store, and return the archive's sha256.

    `sha256` is the expected hash, or an empty string if it is unknown. Raise `BuildError` if the
    archive is unavailable or has a different hash.
    """
    store = Store.of(settings)
    if sha256 and store.has(sha256):
        return sha256
    with tempfile.TemporaryDirectory(prefix="envbuilder-source-") as name:
        part = Path(name) / "archive"
        path = pip.local_folder(url)
        origin = http.host_of(url) or url
        try:
            if path is not None:
                part.write_bytes(files.read(path, _LARGEST))
            else:
                with http.open_session() as session:
                    http.download(session, url, part, lambda _: None, limit=_LARGEST)
        except (http.UnavailableError, OSError) as error:
            raise BuildError(
                f"{file}: cannot be fetched from {origin}: {error}",
                "Check the network and the index settings.",
            ) from error
        actual = files.file_sha256(part)
        if sha256 and actual != sha256:
            raise BuildError(
                f"{file}: expected sha256 {sha256}, but {origin} has {actual}",
                Hint(
                    "The file was replaced upstream. If the new file is the right one, lock again",
                    ("lock",),
                ),
            )
        store.take_file(part, actual)
    return actual


def obtain(name: str, recipe: Recipe, settings: Settings) -> None:
    """Add a locked source to the store, unless it is already there.

    Raise `BuildError` if the source no longer exists or has changed.
    """
    if Store.of(settings).has(recipe.sha256):
        return
    location = Location(recipe.kind, recipe.location, "", recipe.subdirectory)
    if recipe.kind == "git":
        actual = of_git(location, settings, recipe.commit)[0].sha256
    elif recipe.kind == "path":
        actual = of_path(location, settings).sha256
    else:
        url = recipe.location
        if "://" not in url:
            url = {link.file: link.location for _, link in listed(name)}.get(recipe.location, "")
        if not url:
            raise BuildError(
                f"{recipe.location}: cannot be fetched: no index lists it",
                Hint(
                    "Check the index settings, or transfer the file in a bundle",
                    ("bundle", "--output", "FILE.tar"),
                ),
            )
        actual = downloaded(url, recipe.sha256, recipe.location, settings)
    if actual != recipe.sha256:
        raise BuildError(
            f"{recipe.location}: its files differ from the locked ones: expected sha256"
            f" {recipe.sha256}, got {actual}",
            Hint("If the new files are the right ones, lock again", ("lock",)),
        )


def unpack(
    recipe: Recipe, settings: Settings, folder: Path, only: re.Pattern[str] | None = None
) -> Path:
    """Unpack a source from the store into a new folder, and return the path of the folder to build.

    If `only` is given, unpack only files whose names match this pattern. Raise `BuildError` for a
    damaged archive or an unsafe path.
    """

    def failure(reason: str) -> BuildError:
        return BuildError(f"{recipe.location}: cannot be unpacked: {reason}")

    folder.mkdir()
    archives.unpack(Store.of(settings).path(recipe.sha256), folder, failure, only)
    top = [*folder.iterdir()]
    root = top[0] if recipe.kind == "sdist" and len(top) == 1 and top[0].is_dir() else folder
    built = root / recipe.subdirectory
    if not built.resolve().is_relative_to(folder.resolve()) or not built.is_dir():
        raise failure(f"it has no folder {recipe.subdirectory}")
    return built


def pack(folder: Path, settings: Settings, what: str, *, local: bool = False) -> str:
    """Pack a folder into a tar in the store, and return the tar's sha256.

    The tar is made by `folders.pack`.
    """
    with tempfile.TemporaryDirectory(prefix="envbuilder-source-") as name:
        part = Path(name) / "source.tar"
        with part.open("wb") as stream:
            sha256 = folders.pack(folder, what, stream, local=local)
        Store.of(settings).take_file(part, sha256)
    return sha256


def of_path(location: Location, settings: Settings) -> Recipe:
    """Pack a folder in the project into the store, and return a recipe for it.

    Raise `InvalidError` if the folder is outside the project or other users can write to it.
    """
    if settings.project is None:
        raise InvalidError(f"{escaped(location.url)}: folders can be used only in a project")
    folder = folders.within(settings.project, location.url)
    files.require_own(folder)
    relative = folder.relative_to(settings.project.resolve()).as_posix()
    return Recipe(
        kind="path",
        location=f"./{relative}" if relative != "." else ".",
        sha256=pack(folder, settings, escaped(location.url), local=True),
        subdirectory=location.subdirectory,
    )


def require_public(recipe: Recipe, settings: Settings) -> None:
    """Raise `InvalidError` if a settings file in a packed folder contains credentials.

    The packed folder must be in the store. Code is not searched, because much of it mentions
    passwords and tokens without containing any.
    """
    with tarfile.open(Store.of(settings).path(recipe.sha256)) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isfile() else None
            if stream and member.size <= files.LARGEST_TEXT and _SETTINGS.search(member.name):
                publishable.require_public(f"{recipe.location}/{member.name}", stream.read())


# git


class GoneError(BuildError):
    """Raised when a repository no longer has the locked commit."""


def of_git(location: Location, settings: Settings, commit: str = "") -> tuple[Recipe, str]:
    """Pack a commit of a repository into the store; return the recipe and the source's version.

    `commit` is the locked commit. If it is empty, the commit is determined from the location's
    reference. The version is taken from the last tag before the packed commit, and is empty if
    there is no such tag. Submodules are included. Raise `GoneError` if the repository no longer has
    the locked commit.
    """
    with tempfile.TemporaryDirectory(prefix="envbuilder-git-") as name:
        home = Path(name)
        git = _Git(home, location.url)
        repository = home / "repository"
        clone = [
            "clone",
            "--quiet",
            "--no-checkout",
            "--no-hardlinks",
            "--template=",
            "--origin",
            "origin",
            "--",
        ]
        public = re.sub(r"\Assh://git@", "https://", location.url)  # many are read without a key
        if public == location.url or (
            git.fails(*clone, location.url, "repository")
            and git.fails(*clone, public, "repository")
        ):
            git(*clone, location.url, "repository")
        git.folder = repository
        chosen = commit or _commit(git, location)
        gone = git.fails("cat-file", "-e", f"{chosen}^{{commit}}")
        if gone and git.fails("fetch", "--quiet", "origin", chosen):
            raise GoneError(
                f"{location.url}: commit {chosen} no longer exists, because the history was"
                " rewritten",
                Hint("Lock again", ("lock",)),
            )
        git("checkout", "--quiet", "--force", "--detach", chosen)
        git("submodule", "--quiet", "update", "--init", "--recursive", "--force")
        described = git.line("describe", "--tags", "--abbrev=0")
        sha256 = pack(repository, settings, location.url)
    recipe = Recipe(
        kind="git",
        location=location.url,
        sha256=sha256,
        commit=chosen,
        reference=location.reference,
        subdirectory=location.subdirectory,
    )
    version = re.search(r"\d+(\.\d+)+\S*\Z", described)
    return recipe, version[0] if version else ""


def _commit(git: _Git, location: Location) -> str:
    """Return the commit that the location's branch, tag or abbreviated commit refers to.

    If the location has no reference, return the latest commit. Raise `InvalidError` if there is no
    such commit.
    """
    reference = location.reference
    names = ["HEAD"]
    if reference:
        names = [f"refs/remotes/origin/{reference}", f"refs/tags/{reference}", reference]
    verify = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    for name in names:
        if commit := git.line(*verify, f"{name}^{{commit}}"):
            return commit
    if reference and not git.fails("fetch", "--quiet", "origin", reference):
        return git.line("rev-parse", "FETCH_HEAD")
    raise InvalidError(f"{location.url}: has no branch, tag or commit {shown(reference or 'HEAD')}")


_SETTINGS_OF_GIT = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.autocrlf=false",
    "-c",
    "core.symlinks=true",
    "-c",
    "advice.detachedHead=false",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.askPass=",
)


class _Git:
    """A runner of git commands in a private folder, without configuration, hooks or prompts.

    Cloning and fetching are the exception: they need credentials and proxies, so they use the
    user's git and ssh configuration. This is safe, because these commands do not check out any file
    of a repository, and the commit identifies their result.
    """

    def __init__(self, home: Path, url: str) -> None:
        parts = urlsplit(url)
        allowed = ["https", "ssh"]
        if parts.hostname in _LOCAL:
            allowed += ["http", "git"]
        if parts.scheme == "file":
            allowed.append("file")
        if parts.scheme not in allowed:
            raise InvalidError(
                f"{url}: {parts.scheme or 'a path'}: only https:// and ssh:// are supported",
                "Use the https:// URL of the repository.",
            )
        self.folder = home
        self._url = url
        passed = {n: v for n, v in os.environ.items() if n.lower() in {*_PROXIES, *_SSH}}
        if certificate := pip.sources().cert or os.environ.get("SSL_CERT_FILE", ""):
            passed["GIT_SSL_CAINFO"] = certificate
        self._base = {
            **passed,
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "GIT_ALLOW_PROTOCOL": ":".join(allowed),
            "GIT_LFS_SKIP_SMUDGE": "1",
        }
        self._alone = {
            "HOME": str(home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    def _run(self, *arguments: str) -> process.Completed:
        environment = self._alone
        if arguments[0] in {"clone", "fetch"}:
            environment = {n: v for n, v in os.environ.items() if not n.startswith("GIT_")}
        return process.run(
            ["git", *_SETTINGS_OF_GIT, *arguments],
            base=environment | self._base,
            cwd=self.folder,
            timeout=_GIT_SECONDS,
        )

    def fails(self, *arguments: str) -> bool:
        """Run a git command, and return whether it fails."""
        return self._run(*arguments).returncode != 0

    def line(self, *arguments: str) -> str:
        """Run a git command, and return the first line of its output.

        The result is empty if the command fails.
        """
        done = self._run(*arguments)
        return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""

    def __call__(self, *arguments: str) -> None:
        """Run a git command; raise `BuildError` if it fails."""
        done = self._run(*arguments)
        if done.returncode == 0:
            return
        reason = "took too long" if done.timed_out else f"failed:\n{escaped(done.last_words, 2000)}"
        hint = (
            "Check that git can read the repository without asking: without a login, or with one"
            " from a credential helper or the ssh agent."
        )
        if "resolve host" in reason or "connect to" in reason:
            hint = "Check the network: the repository's host cannot be reached."
        raise BuildError(f"{self._url}: git {arguments[0]} {reason}", hint)
