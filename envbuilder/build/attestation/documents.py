"""Write an artifact's attestations, SBOM and provenance, next to it and never inside it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.build.attestation import components, licences, provenance, sbom
from envbuilder.core.errors import BuildError, EnvbuilderError
from envbuilder.core.files import save
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envbuilder.build.plan import Artifact, Plan, UsedBase
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File

SUFFIXES = {"sbom": sbom.SUFFIX, "provenance": provenance.SUFFIX}
"""File name suffix of each attestation, appended to the artifact's name."""
NATIVE = frozenset({"venv", "conda"})
"""Kinds of artifacts that are environments on this machine, identified by a tree digest."""
ON_DISK = NATIVE | {"archive", "layout"}
"""Kinds of artifacts that are files or folders; the others are in an engine or a registry."""
TREE = "envbuilderTree"
"""Name of the algorithm of a tree digest, which is not a hash of a file's bytes."""
_FULL = "The artifact itself is finished. Make room, then run the same command again."


class About(Struct, frozen=True, kw_only=True):
    """The environment that an SBOM describes; locks by their digests, empty if there is none."""

    profile: str
    lock: str
    platform: str
    python: str
    conda_lock: str = ""
    project: str = ""
    """Digest of the project's own files in an image."""


def places(plan: Plan, artifact: Artifact, settings: Settings) -> dict[str, str]:
    """Return the paths of an artifact's attestations: next to it, or next to an image's record."""
    if artifact.kind in {"image", "registry"}:
        beside = str(settings.records_dir / plan.fingerprint / _digest(artifact))
    else:
        beside = artifact.ref.rstrip("/")
    return {name: beside + suffix for name, suffix in SUFFIXES.items()}


def ensure(
    plan: Plan,
    artifact: Artifact,
    settings: Settings,
    progress: Progress,
    *,
    anew: bool,
    versions: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write the attestations if one is missing, or `anew` after a build; return their paths.

    `versions` are those of further builders. Raise `BuildError` if a file cannot be written.
    """
    paths = places(plan, artifact, settings)
    if anew or not all(Path(path).is_file() for path in paths.values()):
        extra = installed(plan, artifact, progress)
        contents = {
            "sbom": bill(_about(plan), plan.files, plan.base, settings, extra, _of_channels(plan)),
            "provenance": provenance.statement(plan, [subject(artifact)], versions=versions),
        }
        for name, path in paths.items():
            save(Path(path), contents[name], BuildError, _FULL)
    elif plan.signatures:
        _add_signatures(Path(paths["provenance"]), plan)
    return paths


def _add_signatures(path: Path, plan: Plan) -> None:
    """Record in an earlier build's provenance that its inputs' signatures were accepted now."""
    try:
        before = path.read_bytes()
        after = provenance.also_signed(before, plan.signatures)
    except (OSError, ValueError) as error:
        raise BuildError(
            f"{path}: cannot be read: {error}", "Remove it; the same command writes it again."
        ) from error
    if after != before:
        save(path, after, BuildError, _FULL)


def installed(
    plan: Plan, artifact: Artifact, progress: Progress
) -> tuple[components.Component, ...]:
    """Return what is really in an artifact: Python distributions if native, else Debian packages.

    If an image cannot be read, that is noted and its base remains a single component.
    """
    if artifact.kind in NATIVE:
        # Outside of its venv, a conda prefix holds only conda packages, which the lock names.
        below = Path(artifact.ref) / ("venv" if artifact.kind == "conda" else "")
        return components.installed(below)
    packages, why = None, "this engine does not show them"
    try:
        packages = _packages(plan, artifact, progress)
    except EnvbuilderError as error:
        why = error.message
    if packages is None:
        progress.note(f"note: the SBOM lacks the base image's packages: {why}")
        return ()
    suites = (components.suite(f) for f in plan.files if f.kind == "deb")
    return components.of_packages(packages, next(suites, ""))


def _packages(plan: Plan, artifact: Artifact, progress: Progress) -> dict[str, str] | None:
    """Return the packages of an assembly's base image, else of the image in the engine."""
    from envbuilder.build.image import base_layers
    from envbuilder.build.image.layer_cache import LayerCache
    from envbuilder.build.plan import Assemble
    from envbuilder.containers.engine import connection
    from envbuilder.packages.debian import base_image

    for step in plan.steps:
        if isinstance(step, Assemble):
            cache = LayerCache(Path(step.cache), progress.note, fresh=False)
            below = base_layers.read(step.base, step.platform, cache)
            return cache.remembered(
                {"kind": "packages", "base": below.config["rootfs"], "platform": plan.platform},
                dict[str, str],
                partial(base_image.of_contents, below.root.contents, plan.platform, step.base),
            )
    with connection.connect() as engine:
        return base_image.of_engine(engine, artifact.ref, plan.platform)


def _about(plan: Plan) -> About:
    from envbuilder.build.plan import project_of

    project = project_of(plan)
    return About(
        project=project.digest if project else "",
        profile=plan.profile,
        lock=plan.lock,
        platform=plan.platform,
        python=plan.python,
        conda_lock=plan.conda_lock,
    )


def bill(
    about: About,
    files: Sequence[File],
    base: UsedBase | None,
    settings: Settings,
    extra: Iterable[components.Component] = (),
    stated: Mapping[str, tuple[str, ...]] | None = None,
) -> bytes:
    """Return an SBOM of a base, locked files and further installed components (`extra`).

    Licences are read from the wheels in the store; `stated` adds those of other files, by sha256.
    """
    licence_names = licences.of_wheels(files, Store.of(settings)) | dict(stated or {})
    parts = [components.of_base(base.ref, base.digest, about.platform)] if base else []
    parts += components.locked(files, licence_names)
    named = {_unqualified(part) for part in parts}
    parts += [part for part in extra if _unqualified(part) not in named]
    locks = {"lock": about.lock, "conda-lock": about.conda_lock, "project-files": about.project}
    facts = {
        **{name: digest for name, digest in locks.items() if digest},
        "platform": about.platform,
        "python": about.python,
    }
    return sbom.document(about.profile, parts, facts)


def _of_channels(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the licences of a plan's conda packages, by sha256."""
    from envbuilder.packages.conda.steps import InstallConda

    packages = (p for s in plan.steps if isinstance(s, InstallConda) for p in s.packages)
    return licences.of_conda(packages)


def _unqualified(part: components.Component) -> str:
    """Return a package URL without architecture and suite, which a status file may lack."""
    return part.purl.partition("?")[0]


def subject(artifact: Artifact) -> provenance.Subject:
    """Return an artifact as a subject: an image or archive by its digest, else by its tree."""
    digest = _digest(artifact)
    algorithm = TREE if artifact.kind in NATIVE else "sha256"
    name = Path(artifact.ref).name if artifact.kind in ON_DISK else artifact.ref
    return provenance.Subject(name=name, digest={algorithm: digest})


def _digest(artifact: Artifact) -> str:
    assert artifact.digest is not None, "what was built has a digest"
    return artifact.digest.removeprefix("sha256:")
