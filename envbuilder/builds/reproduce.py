"""Build twice from scratch, the second time under different conditions, and compare the results.

Nothing is left behind: images get temporary names and are removed, and folders are temporary.
Differences are reported together with digests. A difference is a layer or configuration key of an
image, or a file in a native environment.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import ExitStack, chdir, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

import msgspec
from filelock import FileLock
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from envbuilder.builds import pipeline, project_layer
from envbuilder.builds.backends import integrity
from envbuilder.builds.plan import MakeBase, Plan, project_of
from envbuilder.containers.engine import connection, images
from envbuilder.containers.oci.layout import digest_of
from envbuilder.core import files
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, first as first_of
from envbuilder.core.settings import Settings, require_writable
from envbuilder.packages.sources.source_locker import bundled_sources, fetch
from envbuilder.packages.store import Store
from envbuilder.profiles.backends import makes_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from envbuilder.builds.request import Built, Product, Request
    from envbuilder.core.console import Progress


_ABSENT = "nothing"
SURROUNDINGS = {"TZ": "XYZ-12:45", "LC_ALL": "C", "LANG": "C", "COLUMNS": "132"}
UMASK = 0o077
_SHOWN = 10
"""Maximum number of changed project files to list in an error."""


class Difference(Struct, frozen=True, kw_only=True):
    """A difference between two builds: a file, or a layer or configuration key of an image."""

    path: str
    digests: tuple[str, str]
    """Descriptions of the content in the first and in the second build.

    `nothing` means that it is absent.

    A file is described by its kind and its digest or, for a link, its target. A layer is described
    by the digest of its uncompressed bytes, and a configuration key by the digest of its value.
    """


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of comparing two builds, in the form printed by `reproduce --json`."""

    schema: int = 1
    status: Literal["equal", "different"]
    profile: str
    backend: str
    builder: str
    fingerprint: str
    made_by: dict[str, str]
    digests: tuple[str, str]
    compared: Literal["config", "tree"]
    """The content that `digests` covers.

    This is either an image's configuration, which identifies the layers by their uncompressed
    bytes, or the tree of files in a prefix.
    """
    manifest_digests: tuple[str, str] | UnsetType = UNSET
    """Digests of the images' manifests, as shown by registries, if they are known."""
    seconds: tuple[float, float]
    differences: tuple[Difference, ...] = ()


def run(request: Request, settings: Settings, progress: Progress) -> Outcome:
    """Build twice, and compare the results.

    The second build reads copies of the store's and the project's files in another folder, and uses
    none of the caches that the first build used. It runs with a different umask, time zone,
    language and working folder. Errors from either build are raised unchanged.
    """
    scratch = require_writable(settings.cache_dir / "reproduce", marked=False)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=scratch)))
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
        return _compare(first, second, folder, progress)


def _build(
    request: Request,
    settings: Settings,
    progress: Progress,
    stack: ExitStack,
    first: Plan | None = None,
) -> Built:
    """Build in the same way as the command `build`, but under a temporary name.

    `first` is the plan of the first build, or None if this is the first build. Raise `InvalidError`
    if the builder is not reproducible, or if the request names a builder for a native environment.
    """
    name = f"envbuilder-reproduce:{secrets.token_hex(6)}"
    copied = settings.data_dir.with_name("project") if first else None
    only = replace(request, rebuild=True, only_tag=name, with_project=True, project_copy=copied)
    build = pipeline.prepare(only, settings, progress, running=False)
    plan = build.plan
    if request.builder and not makes_image(plan.backend):
        raise InvalidError(
            "--builder applies only to images", "Add --backend docker, or remove --builder."
        )
    if plan.artifact.kind == "image":
        if plan.builder == "buildah":
            raise InvalidError(
                "podman's Buildah records the time of the build in its images, so they cannot be"
                " reproduced",
                "Use Docker, or --backend venv.",
            )
        stack.callback(_forget, name, progress)
    if first is not None and copied is not None:
        _copy_project(first, plan, copied)
    return pipeline.finish(build)


def _forget(name: str, progress: Progress) -> None:
    """Remove an image from the engine.

    If the removal fails, only print a note, so that the result is still reported.
    """
    try:
        with connection.connect() as engine:
            engine.forget(name)
    except EnvbuilderError as error:
        progress.note(f"note: an image of these builds was not removed: {error.message}")


def _copy(product: Product, settings: Settings, elsewhere: Settings, progress: Progress) -> None:
    """Copy the product's files from one store to another, and link existing base images.

    If envbuilder built a wheel from source, the wheel is not copied, so that the second build must
    build it again.
    """
    source = Store.of(settings)
    target = Store.of(elsewhere)
    copied = (*(f for f in product.plan.files if not f.is_built), *bundled_sources(product.target))
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
    elsewhere.bases_dir.mkdir(parents=True)
    # Existing base images are inputs, named by digest; bases made from packages are made twice.
    bases = _bases(settings)
    for step in product.plan.steps:
        if isinstance(step, MakeBase):
            bases.pop(Path(step.layout).name, None)
    for name, base in bases.items():
        (elsewhere.bases_dir / name).symlink_to(base)


def _bases(settings: Settings) -> dict[str, Path]:
    """Return the folders of the base images in the cache and the shared store, by folder name."""
    bases: dict[str, Path] = {}
    for root in filter(None, (settings.shared_store, settings.cache_dir)):
        with suppress(OSError):  # missing, or closed to this user
            for path in (root / "bases").iterdir():
                if path.is_dir():
                    bases[path.name] = path
    return bases


@contextmanager
def _surroundings(folder: Path) -> Iterator[None]:
    """Change the umask, time zone, language and working folder within the context.

    Child processes inherit these changes.
    """
    umask = os.umask(UMASK)
    before = dict(os.environ)
    os.environ.update(SURROUNDINGS)
    time.tzset()
    try:
        with chdir(folder):
            yield
    finally:
        os.umask(umask)
        for name in SURROUNDINGS:
            del os.environ[name]
        os.environ.update(before)
        time.tzset()


def _compare(first: Built, second: Built, folder: Path, progress: Progress) -> Outcome:
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
            differing = tuple(between(contents(first, folder), contents(second, folder)))
    except (EnvbuilderError, OSError) as error:
        progress.note(f"note: the differences cannot be determined: {error}")
        return outcome
    return replace(outcome, differences=differing)


def _copy_project(first: Plan, second: Plan, folder: Path) -> None:
    """Copy the project's files to `folder`, from which the second build reads them.

    If any of these files have changed since the first build, raise a `BuildError` that lists them.
    """
    before = project_of(first)
    after = project_of(second)
    if before is None or after is None:
        return
    changed = {*before.files} ^ {*after.files}
    if changed:
        paths = sorted({file.path for file in changed})
        raise BuildError(
            f"the project's files changed between the two builds: {first_of(paths, _SHOWN)}",
            "Run the same command again.",
        )
    try:
        project_layer.copy(before, folder)
    except OSError as error:
        raise files.full_or_broken(error, folder) from error


# --- what differs


def contents(build: Built, folder: Path) -> dict[str, str]:
    """Return a description of a build's result, for comparison with another build.

    For a native environment, the description contains the kind and content of each file, by path.
    For an image, it contains the digest of each layer and of each configuration key, by name. An
    image is first exported to a subfolder of `folder`. Raise `BuildError` if the image is no longer
    in the engine.
    """
    artifact = build.result.artifact
    if artifact.kind != "image":
        return _files(Path(artifact.ref))
    with connection.connect() as engine:
        image = engine.image(artifact.ref)
        if image is None:
            raise BuildError(f"{artifact.ref} is no longer in the engine")
        layout = images.export(engine, image, folder / "images")
    config = layout.read_config(layout.manifest(build.product.target.platform))
    digests: dict[str, str] = {}
    for key, value in config.items():
        if key != "rootfs":
            digests[f"configuration: {key}"] = digest_of(msgspec.json.encode(value, order="sorted"))
    for number, diff_id in enumerate(config["rootfs"]["diff_ids"], 1):
        digests[f"layer {number}"] = diff_id
    return digests


def _files(root: Path) -> dict[str, str]:
    """Return a description of the kind and content of each file in a native environment, by path.

    Host-dependent files are omitted.
    """
    bound = integrity.OURS | integrity.host_bound(root) - {integrity.PLACED}
    described: dict[str, str] = {}
    for entry in integrity.read_tree(root, bound):
        described[entry.path] = f"{entry.kind} {entry.content}".rstrip()
    return described


def between(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Difference]:
    """Yield the differences between the contents of two builds.

    The differences are in the order of `first`, followed by those for paths that are only in
    `second`.
    """
    for path in {**first, **second}:
        digests = (first.get(path, _ABSENT), second.get(path, _ABSENT))
        if digests[0] != digests[1]:
            yield Difference(path=path, digests=digests)
