"""Envbuilder's folders and the user's configuration.

Configuration is read from `envbuilder.yaml` (in the working folder or above, up to the home folder
or the file system's root) and `config.yaml` in the user's configuration folder. The project's file
takes precedence over the user's, environment variables over both. Another user's `envbuilder.yaml`
is ignored; other files of another user's among them are refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from msgspec.structs import asdict, fields, replace

from envbuilder.core import console, files, ownership, project_file, types
from envbuilder.core.decoding import decode, error_at, parse_yaml, place
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import shown

PROJECT_FILE = "envbuilder.yaml"
LOCKS = "envbuilder.lock"
"""Folder of a project's locks, beside `envbuilder.yaml`."""
SHARED_STORE = "ENVBUILDER_SHARED_STORE"


_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})
_Keys = Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)]


class Signatures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose signatures are required, by what is signed; no key is needed for what is left out.

    A key is the path of a PEM file, relative to the configuration's folder, or the PEM text itself.
    A signature by any of the listed keys is enough.
    """

    locks: _Keys | None = None
    """Of the locks that environments are built from."""
    bundles: _Keys | None = None
    """Of the bundles that `unbundle` unpacks."""


class ProjectConfiguration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys that `envbuilder.yaml` and `config.yaml` may hold."""

    base_images: dict[str, types.ImageRef] = {}
    """Image reference as in a lock (without digest) → the reference to use instead."""
    builders: dict[types.BuildTarget, types.Instance] = {}
    """PROFILE, OS/ARCH or PROFILE@OS/ARCH → the buildx instance that builds its images."""
    indexes: dict[types.Source, types.Url] = {}
    """Symbolic source → URL of a mirror."""
    mirrors: dict[types.Registry, str] = {}
    """Registry → where its images are requested first: a host, optionally with a path."""
    profile: types.Name | None = None
    """The profile used if none is requested."""
    signatures: Signatures = Signatures()
    """Required signatures. A project's file adds to what the user's file says, and never replaces
    it: otherwise a project could lift what the user requires."""
    shared_store: str | None = None
    """A cache folder filled by somebody else, from which files are used and never changed."""


class Configuration(ProjectConfiguration, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys that `config.yaml` may hold."""

    plain_http: tuple[types.Registry, ...] = ()
    """Registries (host, or host:port) to use HTTP with; those on this machine need no entry. Only
    the user decides that a login is sent unencrypted."""


class Settings(Struct, frozen=True, kw_only=True):
    """Folders and configuration, read once per command."""

    project: Path | None
    config_dir: Path
    cache_dir: Path
    data_dir: Path
    configuration: Configuration
    shared_store: Path | None = None
    definition: project_file.Definition | None = None
    """What the project's file says of the project itself; None if it only holds configuration."""
    environment: str = project_file.DEFAULT
    """Which of the project's environments the command is about."""

    @property
    def store_dir(self) -> Path:
        """Downloads by sha256, shared by all profiles and backends."""
        return self.cache_dir / "store"

    @property
    def envs_dir(self) -> Path:
        """Native environments, one folder per fingerprint."""
        return self.data_dir / "envs"

    @property
    def records_dir(self) -> Path:
        """Records of built images, one folder per fingerprint."""
        return self.data_dir / "records"

    @property
    def reports_dir(self) -> Path:
        """Verification reports."""
        return self.data_dir / "reports"

    @property
    def watches_dir(self) -> Path:
        """Reports of watched commands."""
        return self.data_dir / "watches"

    @property
    def bases_dir(self) -> Path:
        """Base images as OCI layouts."""
        return self.cache_dir / "bases"

    @property
    def uploads_dir(self) -> Path:
        """Which repository of a registry has which blobs, so that others mount them."""
        return self.cache_dir / "uploads"

    @property
    def logs_dir(self) -> Path:
        """Full output of build steps."""
        return self.cache_dir / "logs"

    @property
    def interpreters_dir(self) -> Path:
        """What interpreters of this machine answered."""
        return self.cache_dir / "interpreters"

    @property
    def uv_dir(self) -> Path:
        """Cache of uv's resolutions; nothing from it gets into an environment."""
        return self.cache_dir / "uv-resolve"


class _File(NamedTuple):
    """A configuration file that was read."""

    where: str
    text: str
    read: Configuration


def load(
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    note: Callable[[str], object] | None = None,
    environment: str = project_file.DEFAULT,
) -> Settings:
    """Return the settings from folders, files and variables (by default those of this process).

    `note` receives a line for each project that is ignored because another user owns its file or
    can write it; by default it goes to stderr. `environment`: which of a project's environments
    they are for. Raises `InvalidError` for invalid files, and for others of another user.
    """
    from platformdirs import PlatformDirs

    environ = os.environ if environ is None else environ
    note = note or console.PlainProgress().note
    trusted = ownership.current_trust(environ)
    dirs = PlatformDirs("envbuilder", appauthor=False)
    project = _project(cwd or Path.cwd(), trusted, note)
    config_dir = Path(environ.get("ENVBUILDER_CONFIG_DIR") or dirs.user_config_dir).absolute()
    configuration = Configuration()
    definition = None
    paths = [config_dir / "config.yaml", *([project / PROJECT_FILE] if project else [])]
    read: list[_File] = []
    ownership.require_own(config_dir, trusted)
    for path in paths:
        if path.is_file():
            text = files.read_text(path)
            stated, definition = decoded(text, path)
            configuration = _over(configuration, _located(stated, path.parent))
            read.append(_File(where=str(path), text=text, read=stated))
    return Settings(
        project=project,
        config_dir=config_dir,
        cache_dir=Path(environ.get("ENVBUILDER_CACHE_DIR") or dirs.user_cache_dir).absolute(),
        data_dir=Path(environ.get("ENVBUILDER_DATA_DIR") or dirs.user_data_dir).absolute(),
        configuration=configuration,
        shared_store=_shared_store(environ.get(SHARED_STORE), read),
        definition=definition,
        environment=environment,
    )


def decoded(text: str, path: Path) -> tuple[Configuration, project_file.Definition | None]:
    """Return what a file configures and, of a project's file, the definition of the project.

    Raises `InvalidError` with the place and what to write instead.
    """
    data = parse_yaml(text, str(path))
    where = str(path)
    if path.name != PROJECT_FILE:
        return decode(data, Configuration, where, text), None
    keys = {f.encode_name for f in fields(ProjectConfiguration)}
    rest = {key: value for key, value in data.items() if key not in keys}
    definition = project_file.read(rest, where, text, keys) if rest else None
    configuration = {key: value for key, value in data.items() if key in keys}
    stated = decode(configuration, ProjectConfiguration, where, text)
    for name, url in stated.indexes.items():
        if url.startswith("http://") and urlsplit(url).hostname not in _THIS_MACHINE:
            raise error_at(
                where,
                text,
                ["indexes", name],
                "a project cannot choose a connection without TLS, over which your login would be"
                " sent",
                "Write https://, or write the key into config.yaml in your configuration folder.",
            )
    return Configuration(**asdict(stated)), definition


def _shared_store(variable: str | None, files: Sequence[_File]) -> Path | None:
    """Return the shared store; the variable takes precedence over files, and if empty, means none.

    Raise `InvalidError` for a relative path, which would mean another folder in each project.
    """
    path = variable
    where = SHARED_STORE
    if path is None:
        for file in files:
            if file.read.shared_store is not None:
                path = file.read.shared_store
                where = f"{place(file.where, file.text, ['shared_store'])}: shared_store"
    if path and not Path(path).is_absolute():
        raise InvalidError(
            f"{where}: {shown(path)} is not an absolute path",
            "A relative one would mean another folder in each project: begin it with /.",
        )
    return Path(path) if path else None


def _project(start: Path, trusted: ownership.Trust, note: Callable[[str], object]) -> Path | None:
    """Return the nearest folder with a trusted project file.

    Another user's is passed over: it could be in any folder above. Of a trusted one, what decides
    together with it must be trusted, too, because without that its requirements would not hold.
    """
    try:
        home = Path.home()
    except RuntimeError:  # HOME is not set, and the user database has no entry
        home = None
    for folder in ownership.folders_above(start, home):
        if not (folder / PROJECT_FILE).is_file():
            continue
        why = ownership.objection(folder / PROJECT_FILE, trusted)
        if not why:
            for name in ("profiles", LOCKS):
                ownership.require_own(folder / name, trusted)
            ownership.require_unlinked(folder / LOCKS)
            return folder
        note(f"note: {ownership.ignored(folder, why)}")
    return None


def _located(stated: Configuration, folder: Path) -> Configuration:
    """Return a file's configuration with the paths of keys made absolute."""
    keys = {
        kind: paths and tuple([_key(path, folder) for path in paths])
        for kind, paths in asdict(stated.signatures).items()
    }
    return replace(stated, signatures=Signatures(**keys))


def is_key_text(named: str) -> bool:
    """Return whether a key is given as PEM text instead of the path of a file."""
    return named.lstrip().startswith("-----BEGIN ")


def _key(named: str, folder: Path) -> str:
    return named if is_key_text(named) else str(folder / Path(named).expanduser())


def _over(below: Configuration, above: Configuration) -> Configuration:
    users = below.signatures
    projects = above.signatures
    return Configuration(
        base_images={**below.base_images, **above.base_images},
        builders={**below.builders, **above.builders},
        indexes={**below.indexes, **above.indexes},
        mirrors={**below.mirrors, **above.mirrors},
        plain_http=(*below.plain_http, *above.plain_http),
        profile=above.profile or below.profile,
        signatures=Signatures(
            locks=users.locks or projects.locks,
            bundles=users.bundles or projects.bundles,
        ),
        shared_store=below.shared_store if above.shared_store is None else above.shared_store,
    )


def require_own(settings: Settings) -> None:
    """Raise `InvalidError` if another user can put files where builds look for finished results."""
    cache = settings.cache_dir
    read = (settings.store_dir, settings.bases_dir, cache / "layers", cache / "datasets")
    for folder in (*read, settings.interpreters_dir, settings.envs_dir, settings.records_dir):
        require_unexposed(folder)


def require_unexposed(folder: Path) -> None:
    """Raise `InvalidError` if another user can put files into one of envbuilder's folders."""
    if why := ownership.exposure(folder, ownership.current_trust()):
        raise InvalidError(
            f"{folder} cannot be used: {why}, and what they put there would be used as yours",
            "Set ENVBUILDER_CACHE_DIR and ENVBUILDER_DATA_DIR to folders of your own. Another"
            f" user's downloads can be used with {SHARED_STORE}. To use the folder nevertheless:"
            f" {ownership.VARIABLE}={folder.parent}",
        )


def require_writable(folder: Path, *, marked: bool = True) -> Path:
    """Return the folder, created as by `folders.ensure`.

    Raises `InvalidError` if that is not possible or another user can put files there, `BuildError`
    on a full disk.
    """
    require_unexposed(folder)
    try:
        return files.ensure_folder(folder, marked=marked)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise files.full_or_broken(error, folder) from error
        raise InvalidError(
            f"{folder}: cannot be created: {error.strerror}",
            "Set ENVBUILDER_CACHE_DIR and ENVBUILDER_DATA_DIR to folders you can write to.",
        ) from error
