"""Build twice from scratch, the second time with environment perturbations, and compare.

Nothing is left behind: images get names of their own and are removed, folders are temporary. What
differs is named: configuration keys, members of layers, or files of a tree. Only digests are
compared; diffoscope, if it is installed, shows the inside of the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from filelock import FileLock
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from envbuilder.builds import pipeline, project_layer
from envbuilder.builds.backends import integrity
from envbuilder.builds.image import records
from envbuilder.builds.plan import (
    Assemble,
    CopyProject,
    MakeBase,
    Plan,
    Step,
    project_of,
)
from envbuilder.containers.engine import connection, images
from envbuilder.containers.oci.layer import members
from envbuilder.containers.oci.layout import Layout, digest_of
from envbuilder.core import files, process, types
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError
from envbuilder.core.settings import Settings, require_writable
from envbuilder.core.text import first as first_of
from envbuilder.packages.sources.source_locker import bundled_sources, fetch
from envbuilder.packages.store import Store
from envbuilder.profiles.backends import makes_image

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from envbuilder.builds.request import Build, Product, Request
    from envbuilder.core.archives import Tar
    from envbuilder.core.console import Progress
    from envbuilder.project.image_files import ImageFile


LISTED = 1000
"""Maximum number of differences that an outcome lists."""
FILES = 20
"""Maximum number of differing files that diffoscope compares."""
_BYTES = 16 << 20
"""Maximum size of such a file."""
_DIFFOSCOPE_CHARACTERS = 20_000
"""Maximum number of characters of diffoscope's output."""
_SECONDS = 120.0
_ABSENT = "nothing"
_FIELDS = ("content", "metadata")
SURROUNDINGS = {"TZ": "XYZ-12:45", "LC_ALL": "C", "LANG": "C", "COLUMNS": "132"}
UMASK = 0o077
_SHOWN = 10
"""Maximum number of changed files that an error names."""


class Difference(Struct, frozen=True, kw_only=True):
    """A path, or a key of an image's configuration, that differs between two builds."""

    path: str
    layer: int = 0
    """Number of the image's layer that holds it, counted from the lowest; 0 without layers."""
    how: str
    """`content`, `metadata`, both, or the only build that has it."""
    digests: tuple[str, str]
    """In the first and the second build; `nothing` if absent."""


class Built(Struct, frozen=True, kw_only=True):
    """The last image of the same project that `build` made, which the two builds should equal."""

    ref: str
    digest: str
    changed: tuple[str, ...] = ()
    """Paths of the project's files that are not those in that image."""


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of two builds (`reproduce --json`)."""

    schema: int = 1
    status: Literal["equal", "different"]
    profile: str
    backend: str
    builder: str
    fingerprint: str
    made_by: dict[str, str]
    digests: tuple[str, str]
    compared: Literal["config", "tree"]
    """What `digests` are of: an image's configuration, which names its layers by their uncompressed
    bytes, or a prefix's tree of files."""
    manifest_digests: tuple[str, str] | UnsetType = UNSET
    """Of images, if known: the digests of their manifests, which registries show."""
    seconds: tuple[float, float]
    built: Built | None = None
    """None if there is no such image, or it does not contain the project's files."""
    differences: tuple[Difference, ...] = ()
    more: int = 0
    """Number of differences that are not listed."""
    diffoscope: str | None = None
    """diffoscope's output on the files that differ, if it is installed."""


def run(request: Request, settings: Settings, progress: Progress) -> Outcome:
    """Build twice and compare.

    The second build reads copies of the store's and the project's files in another folder, uses no
    cache of the first, and runs with another umask, time zone, language and working folder. Errors
    of either build propagate.
    """
    scratch = require_writable(settings.cache_dir / "reproduce", marked=False)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
        files.mark_folder(folder)
        # `clean` removes folders whose lock is missing or not held.
        stack.callback(Path(f"{folder}.lock").unlink, missing_ok=True)
        stack.enter_context(FileLock(f"{folder}.lock"))
        first_folder = folder / "first"
        second_folder = folder / "second"
        second_folder.mkdir()
        progress.note("first build, in this environment")
        first = _build(request, replace(settings, data_dir=first_folder / "data"), progress, stack)
        elsewhere = replace(
            settings,
            cache_dir=second_folder / "cache",
            data_dir=second_folder / "data",
            shared_store=None,
        )
        _copy(first.product, settings, elsewhere, progress)
        progress.note("second build, in another folder and from copies")
        with _surroundings(second_folder):
            second = _build(request, elsewhere, progress, stack, first.product.plan)
        outcome = _compare(first, second, folder, progress)
        return replace(outcome, built=_built_before(first.product.plan, settings))


def _build(
    request: Request,
    settings: Settings,
    progress: Progress,
    stack: contextlib.ExitStack,
    first: Plan | None = None,
) -> Build:
    """Build under a name of its own, as `build` does; `first`: the plan of the build before."""
    name = f"envbuilder-reproduce:{secrets.token_hex(6)}"
    only = replace(request, rebuild=True, only_tag=name, with_project=True)
    build = pipeline.prepare(only, settings, progress, running=False)
    plan = build.plan
    if request.builder and not makes_image(plan.backend):
        raise InvalidError("--builder is for images", "Add --backend docker, or leave it out.")
    if plan.artifact.kind == "image":
        if plan.builder == "buildah":
            raise InvalidError(
                "podman's Buildah puts the time of a build into its images",
                "Use Docker, or --backend venv.",
            )
        stack.callback(_forget, name, progress)
    if first is not None:
        folder = settings.data_dir.with_name("project")
        build = replace(build, plan=_with_copies(first, plan, folder))
    return pipeline.finish(build)


def _forget(name: str, progress: Progress) -> None:
    """Remove an image; a failure is only noted, so that the result is still reported."""
    try:
        with connection.connect() as engine:
            engine.forget(name)
    except EnvbuilderError as error:
        progress.note(f"note: an image of these builds remains: {error.message}")


def _copy(product: Product, settings: Settings, elsewhere: Settings, progress: Progress) -> None:
    """Copy the store's files to another store; link existing base images.

    Wheels that were built from their sources are not copied, but built again.
    """
    plan = product.plan
    source = Store.of(settings)
    target = Store.of(elsewhere)
    copied = (*(f for f in plan.files if not f.is_built), *bundled_sources(product.target))
    fetch(copied, product.target, settings, progress)
    with progress.task("copy the files to another folder", len(copied)) as task:
        for file in copied:
            path = target.path(file.sha256)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source.path(file.sha256), path)
            except OSError as error:
                raise files.full_or_broken(error, path) from error
            task.advance(1)
    others = elsewhere.bases_dir
    others.mkdir(parents=True)
    rebuilt = {Path(s.layout).name for s in plan.steps if isinstance(s, MakeBase)}
    # Existing base images are inputs, named by digest; bases made from packages are made twice.
    for name, base in _bases(settings).items():
        if name not in rebuilt:
            (others / name).symlink_to(base)


def _bases(settings: Settings) -> dict[str, Path]:
    """Return the folders of base images, the user's and shared ones, by name."""
    bases: dict[str, Path] = {}
    for root in filter(None, (settings.shared_store, settings.cache_dir)):
        with contextlib.suppress(OSError):  # missing, or closed to this user
            bases |= {path.name: path for path in (root / "bases").iterdir() if path.is_dir()}
    return bases


@contextlib.contextmanager
def _surroundings(folder: Path) -> Iterator[None]:
    """Set another umask, time zone, language and working folder, also for child processes."""
    umask = os.umask(UMASK)
    before = {name: os.environ[name] for name in SURROUNDINGS if name in os.environ}
    os.environ.update(SURROUNDINGS)
    time.tzset()
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        os.umask(umask)
        for name in SURROUNDINGS:
            del os.environ[name]
        os.environ.update(before)
        time.tzset()


def _compare(first: Build, second: Build, folder: Path, progress: Progress) -> Outcome:
    first_result = first.result
    second_result = second.result
    digests = str(first_result.artifact.digest), str(second_result.artifact.digest)
    manifests = first_result.artifact.manifest_digest, second_result.artifact.manifest_digest
    outcome = Outcome(
        status="equal" if digests[0] == digests[1] else "different",
        profile=first_result.profile,
        backend=first_result.backend,
        builder=first_result.builder,
        fingerprint=first_result.fingerprint,
        made_by=second_result.made_by,
        digests=digests,
        compared="tree" if first_result.artifact.config_digest is UNSET else "config",
        manifest_digests=UNSET if UNSET in manifests else (str(manifests[0]), str(manifests[1])),
        seconds=(first_result.seconds, second_result.seconds),
    )
    if outcome.status == "equal":
        return outcome
    try:
        with progress.task("compare the contents"):
            sides = (_side(first, folder / "images"), _side(second, folder / "images"))
            shown, more, text = listed(*sides, folder / "differing")
    except (EnvbuilderError, OSError) as error:
        progress.note(f"note: the differences cannot be determined: {error}")
        return outcome
    return replace(outcome, differences=shown, more=more, diffoscope=text)


def _side(build: Build, folder: Path) -> Side:
    """Return what was built, for a comparison; an image is exported into the folder."""
    artifact = build.result.artifact
    if artifact.kind != "image":
        return Prefix(Path(artifact.ref))
    with connection.connect() as engine:
        image = engine.image(artifact.ref)
        if image is None:
            raise BuildError(f"{artifact.ref}: is no longer in the engine")
        layout = images.export(engine, image, folder)
    return Image(layout, build.product.target.platform)


def _with_copies(first: Plan, second: Plan, folder: Path) -> Plan:
    """Return the second plan with the project's files read from `folder`, where they are copied.

    Raise `BuildError` with the names of the files that are not those of the first plan.
    """
    before = project_of(first)
    after = project_of(second)
    if before is None or after is None:
        return second
    if changed := _changed(before.files, after.files):
        raise BuildError(
            f"the project's files changed between the two builds: {first_of(changed, _SHOWN)}",
            "Run the same command again.",
        )
    try:
        project_layer.copy(after, folder)
    except OSError as error:
        raise files.full_or_broken(error, folder) from error

    steps: list[Step] = []
    for step in second.steps:
        if isinstance(step, Assemble | CopyProject):
            copied = replace(after, folder=str(folder))
            steps.append(replace(step, project=copied))
        else:
            steps.append(step)
    return replace(second, steps=tuple(steps))


def _changed(before: Sequence[ImageFile], after: Sequence[ImageFile]) -> tuple[str, ...]:
    """Return the paths whose file is another one, or in one of the two alone."""
    return tuple(sorted({file.path for file in {*before} ^ {*after}}))


def _built_before(plan: Plan, settings: Settings) -> Built | None:
    """Return the last image that `build` made of the plan's project, if there is one."""
    project = project_of(plan)
    last = records.newest_project_image(plan, settings)
    if project is None or last is None:
        return None
    image, contained = last
    return Built(
        ref=image.ref, digest=image.digest, changed=_changed(contained.files, project.files)
    )


# --- what differs


class Member(Struct, frozen=True):
    """Digests of one path: of its content, and of everything else that affects the build's."""

    content: str
    metadata: str = ""


Key = tuple[int, str]
"""Number of the layer from the lowest, 0 without layers; path."""


class Image:
    """An image in a layout."""

    def __init__(self, layout: Layout, platform: types.Platform) -> None:
        manifest = layout.manifest(platform)
        self._layout = layout
        self._config = layout.read_config(manifest)
        diff_ids = map(str, self._config["rootfs"]["diff_ids"])
        self.layers = dict(zip(diff_ids, enumerate(manifest.layers, 1), strict=True))
        """By the digests of their uncompressed bytes."""

    def members(self, shared: Collection[str]) -> dict[Key, Member]:
        """Return digests of the configuration's keys, of the layers, and of their members.

        `shared`: layers that the other image has, too. They are not read.
        """
        digests: dict[Key, Member] = {}
        for key, value in self._config.items():
            if key != "rootfs":
                encoded = msgspec.json.encode(value, order="sorted")
                digests[0, f"configuration: {key}"] = Member(digest_of(encoded))
        for diff_id, (number, descriptor) in self.layers.items():
            if diff_id not in shared:
                digests[number, ""] = Member(diff_id)
                for entry, archive in members(self._layout.checked(descriptor)):
                    digests[number, entry.name] = member(entry, archive)
        return digests

    def copies(self, paths: Collection[Key]) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of those of these files that are small, and the configuration."""
        configuration = msgspec.json.encode(self._config, order="sorted")
        yield "configuration.json", msgspec.json.format(configuration)
        numbers = {number for number, _ in paths}
        for number, descriptor in self.layers.values():
            if number in numbers:
                for entry, archive in members(self._layout.checked(descriptor)):
                    if (number, entry.name) in paths and entry.isreg() and entry.size <= _BYTES:
                        yield entry.name, archive.content(entry)


def member(entry: tarfile.TarInfo, archive: Tar) -> Member:
    """Return the digests of a layer's member; nothing is unpacked."""
    link = repr((entry.linkname, entry.devmajor, entry.devminor)).encode()
    hashed = hashlib.sha256()
    for piece in archive.pieces(entry) if entry.isreg() else [link]:
        hashed.update(piece)
    fields = (entry.type, entry.mode, entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime)
    about = repr((fields, sorted(entry.pax_headers.items()))).encode()
    return Member(f"sha256:{hashed.hexdigest()}", digest_of(about))


class Prefix:
    """A native environment, which has no layers."""

    layers: Mapping[str, object] = {}

    def __init__(self, root: Path) -> None:
        self._root = root

    def members(self, shared: Collection[str]) -> dict[Key, Member]:
        """Return digests of all files, except for host-dependent ones."""
        del shared
        bound = integrity.OURS | integrity.host_bound(self._root) - {integrity.PLACED}
        digests: dict[Key, Member] = {}
        for entry in integrity.read_tree(self._root, bound):
            if entry.kind in {"file", "executable"}:
                content = f"sha256:{entry.content}"
            else:
                content = digest_of(entry.content.encode())
            digests[0, entry.path] = Member(content, digest_of(entry.kind.encode()))
        return digests

    def copies(self, paths: Collection[Key]) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of those of these files that are small."""
        for _, path in paths:
            place = self._root / path
            if place.is_file() and not place.is_symlink() and place.stat().st_size <= _BYTES:
                yield path, place.read_bytes()


Side = Image | Prefix


def between(first: Mapping[Key, Member], second: Mapping[Key, Member]) -> Iterator[Difference]:
    """Yield what differs, by layer and path.

    A layer is named by itself only if all its members are equal, and its tar is not.
    """
    keys = first.keys() | second.keys()
    differing = sorted(key for key in keys if first.get(key) != second.get(key))
    explained = {layer for layer, path in differing if path}
    for layer, path in differing:
        if not path and layer in explained:
            continue
        before = first.get((layer, path))
        after = second.get((layer, path))
        if before is None:
            how = "only in the second"
        elif after is None:
            how = "only in the first"
        else:
            how = ", ".join(f for f in _FIELDS if getattr(before, f) != getattr(after, f))
        field = "metadata" if how == "metadata" else "content"
        digests = (getattr(before, field, _ABSENT), getattr(after, field, _ABSENT))
        yield Difference(path=path, layer=layer, how=how, digests=digests)


def listed(
    first: Side, second: Side, folder: Path
) -> tuple[tuple[Difference, ...], int, str | None]:
    """Return the differences to list, the number of further ones, and diffoscope's output.

    `folder` is created for the files that diffoscope reads.
    """
    shared = first.layers.keys() & second.layers.keys()
    every = tuple(between(first.members(shared), second.members(shared)))
    shown = every[:LISTED]
    return shown, len(every) - len(shown), diffoscope((first, second), shown, folder)


def diffoscope(
    sides: tuple[Side, Side], differences: Collection[Difference], folder: Path
) -> str | None:
    """Return diffoscope's output on the files whose content differs.

    None if diffoscope is not installed or there is no such file.
    """
    named = [(d.layer, d.path) for d in differences if d.how.startswith("content")]
    if not named or process.which("diffoscope") is None:
        return None
    for name, side in zip(("first", "second"), sides, strict=True):
        (folder / name).mkdir(parents=True)
        for path, data in side.copies(named[:FILES]):
            place = Path(os.path.normpath(folder / name / path))
            if place.is_relative_to(folder / name):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
    # Times and modes of the copies are not those of the originals.
    options = ("--no-progress", "--exclude-directory-metadata=recursive", "--text", "-")
    done = process.run(["diffoscope", *options, "first", "second"], cwd=folder, timeout=_SECONDS)
    if done.returncode not in {0, 1}:
        return f"diffoscope failed: {done.last_words}"
    return done.stdout[:_DIFFOSCOPE_CHARACTERS]
