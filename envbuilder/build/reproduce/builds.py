"""Build twice from scratch, the second time with environment perturbations, and compare.

Nothing is left behind: images get names of their own and are removed, folders are temporary.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct
from msgspec.structs import replace

from envbuilder.build import pipeline, project_layer
from envbuilder.build.image import project_record
from envbuilder.build.plan import Assemble, BuildResult, CopyProject, MakeBase, project_of
from envbuilder.build.reproduce import differences
from envbuilder.build.reproduce.differences import Built, Image, Outcome, Prefix
from envbuilder.build.request import Product
from envbuilder.core import files
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError
from envbuilder.core.files import full_or_broken
from envbuilder.core.settings import require_writable
from envbuilder.packages.store import Store
from envbuilder.profiles.backends import makes_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.build.plan import Plan, Step
    from envbuilder.build.reproduce.differences import Side
    from envbuilder.build.request import Request
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.project.image_files import ImageFile

SURROUNDINGS = {"TZ": "XYZ-12:45", "LC_ALL": "C", "LANG": "C", "COLUMNS": "132"}
UMASK = 0o077
_SHOWN = 10
"""Maximum number of changed files that an error names."""


class Trial(Struct, frozen=True):
    """One of the two builds."""

    product: Product
    result: BuildResult


def run(request: Request, settings: Settings, progress: Progress) -> Outcome:
    """Build twice and compare.

    The second build reads copies of the store's and the project's files in another folder, uses no
    cache of the first, and runs with another umask, time zone, language and working folder. Errors
    of either build propagate.
    """
    from filelock import FileLock

    scratch = require_writable(settings.cache_dir / "reproduce", marked=False)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
        files.mark_folder(folder)
        # `clean` removes folders whose lock is missing or not held.
        stack.callback(Path(f"{folder}.lock").unlink, missing_ok=True)
        stack.enter_context(FileLock(f"{folder}.lock"))
        first_folder, second_folder = folder / "first", folder / "second"
        second_folder.mkdir()
        progress.note("first build, in this environment")
        first = _build(request, replace(settings, data_dir=first_folder / "data"), progress, stack)
        elsewhere = replace(
            settings,
            cache_dir=second_folder / "cache",
            data_dir=second_folder / "data",
            shared_store=None,
        )
        _copy(first.product.plan, settings, elsewhere, progress)
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
) -> Trial:
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
    return Trial(build.product, pipeline.finish(build).result)


def _forget(name: str, progress: Progress) -> None:
    """Remove an image; a failure is only noted, so that the result is still reported."""
    from envbuilder.containers.engine import connection

    try:
        with connection.connect() as engine:
            engine.forget(name)
    except EnvbuilderError as error:
        progress.note(f"note: an image of these builds remains: {error.message}")


def _copy(plan: Plan, settings: Settings, elsewhere: Settings, progress: Progress) -> None:
    """Copy the store's files to another store; link existing base images."""
    source, target = Store.of(settings), Store.of(elsewhere)
    with progress.task("copy the files to another folder", len(plan.files)) as task:
        for file in plan.files:
            path = target.path(file.sha256)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source.path(file.sha256), path)
            except OSError as error:
                raise full_or_broken(error, path) from error
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
    cwd, umask = Path.cwd(), os.umask(UMASK)
    before = {name: os.environ.get(name) for name in SURROUNDINGS}
    try:
        os.chdir(folder)
        os.environ.update(SURROUNDINGS)
        time.tzset()
        yield
    finally:
        os.umask(umask)
        os.chdir(cwd)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        time.tzset()


def _compare(first: Trial, second: Trial, folder: Path, progress: Progress) -> Outcome:
    first_result, second_result = first.result, second.result
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
            sides = _sides(first, second, folder)
            shown, more, text = differences.listed(*sides, folder / "differing")
    except (EnvbuilderError, OSError) as error:
        progress.note(f"note: the differences cannot be determined: {error}")
        return outcome
    return replace(outcome, differences=shown, more=more, diffoscope=text)


def _sides(first: Trial, second: Trial, folder: Path) -> tuple[Side, Side]:
    if first.result.artifact.kind != "image":
        before, after = (Prefix(Path(trial.result.artifact.ref)) for trial in (first, second))
        return before, after
    from envbuilder.containers.engine import connection
    from envbuilder.containers.engine import images as engine_images

    def exported(engine: Engine, trial: Trial) -> Image:
        image = engine.image(trial.result.artifact.ref)
        if image is None:
            raise BuildError(f"{trial.result.artifact.ref}: is no longer in the engine")
        layout = engine_images.export(engine, image, folder / "images")
        return Image(layout, first.product.target.platform)

    with connection.connect() as engine:
        return exported(engine, first), exported(engine, second)


def _with_copies(first: Plan, second: Plan, folder: Path) -> Plan:
    """Return the second plan with the project's files read from `folder`, where they are copied.

    Raise `BuildError` with the names of the files that are not those of the first plan.
    """
    before, after = project_of(first), project_of(second)
    if before is None or after is None:
        return second
    if changed := _changed(before.files, after.files):
        more = len(changed) - _SHOWN
        others = f" and {more} more" if more > 0 else ""
        raise BuildError(
            f"the project's files changed between the two builds: {', '.join(changed[:_SHOWN])}"
            f"{others}",
            "Run the same command again.",
        )
    try:
        project_layer.copy(after, folder)
    except OSError as error:
        raise full_or_broken(error, folder) from error

    def moved(step: Step) -> Step:
        if not isinstance(step, Assemble | CopyProject) or step.project is UNSET:
            return step
        return replace(step, project=replace(step.project, folder=str(folder)))

    return replace(second, steps=tuple(map(moved, second.steps)))


def _changed(before: Sequence[ImageFile], after: Sequence[ImageFile]) -> tuple[str, ...]:
    """Return the paths whose file is another one, or in one of the two alone."""
    return tuple(sorted({file.path for file in {*before} ^ {*after}}))


def _built_before(plan: Plan, settings: Settings) -> Built | None:
    """Return the last image that `build` made of the plan's project, if there is one."""
    project, last = project_of(plan), project_record.newest(plan, settings)
    if project is None or last is None:
        return None
    image, contained = last
    return Built(
        ref=image.ref, digest=image.digest, changed=_changed(contained.files, project.files)
    )
