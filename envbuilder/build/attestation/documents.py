"""The papers of an artifact: its bill of materials and its provenance, beside it, never inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.build.attestation import components, licences, provenance, sbom
from envbuilder.core import files as atomic
from envbuilder.core.errors import BuildError, EnvbuilderError
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envbuilder.build.plan import Artifact, Plan, UsedBase
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.packages.debian.status import Status
    from envbuilder.profiles.locked_file import File

SUFFIXES = {"sbom": sbom.SUFFIX, "provenance": provenance.SUFFIX}
"""What follows an artifact's name in that of each of its documents."""
NATIVE = frozenset({"venv", "conda"})
"""Kinds of artifacts that are environments of this machine, known by the digest of their tree."""
ON_DISK = NATIVE | {"archive", "layout"}
"""Kinds of artifacts that are files or folders; the others are in an engine or a registry."""
_FULL = "The artifact itself is finished. Make room, then run the same command again."


class About(Struct, frozen=True, kw_only=True):
    """Which environment a bill of materials is of; locks by their digests, empty for none."""

    profile: str
    lock: str
    platform: str
    python: str
    conda_lock: str = ""


def places(plan: Plan, artifact: Artifact, settings: Settings) -> dict[str, str]:
    """Where an artifact's documents belong: beside it, or beside the record of an image."""
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
    """Write the documents where one is missing, or `anew` after a build; returns where they are.

    `versions` are those of further builders. Raises `BuildError` where they cannot be written.
    """
    found = places(plan, artifact, settings)
    if anew or not all(Path(path).is_file() for path in found.values()):
        seen = installed(plan, artifact, progress)
        contents = {
            "sbom": bill(_about(plan), plan.files, plan.base, settings, seen, _of_channels(plan)),
            "provenance": provenance.statement(plan, [subject(artifact)], versions=versions),
        }
        for name, path in found.items():
            atomic.save(Path(path), contents[name], BuildError, _FULL)
    return found


def installed(
    plan: Plan, artifact: Artifact, progress: Progress
) -> tuple[components.Component, ...]:
    """What is really in an artifact: distributions installed natively, a Debian system's packages.

    Where an image cannot be read that is noted, and its base stays one component without parts.
    """
    if artifact.kind in NATIVE:
        # What is in a conda prefix besides its venv are conda packages, which the lock names.
        below = Path(artifact.ref) / ("venv" if artifact.kind == "conda" else "")
        return components.installed(below)
    status, why = None, "this engine does not show them"
    try:
        status = _status(plan, artifact, progress)
    except EnvbuilderError as error:
        why = error.message
    if status is None:
        progress.note(f"note: the packages of the base are in no bill of materials: {why}")
        return ()
    suites = (components.suite(f) for f in plan.files if f.kind == "deb")
    return components.of_packages(status.packages.values(), next(suites, ""))


def _status(plan: Plan, artifact: Artifact, progress: Progress) -> Status | None:
    """The dpkg status of the base that layers were put on; else of the image, in the engine."""
    from envbuilder.build.image import base_layers as base
    from envbuilder.build.image.layer_cache import LayerCache
    from envbuilder.build.plan import Assemble
    from envbuilder.containers.engine import client as engine
    from envbuilder.packages.debian import base_image as base_status

    for step in plan.steps:
        if isinstance(step, Assemble):
            cache = LayerCache(Path(step.cache), progress.note, fresh=False)
            below = base.read(step.base, step.platform, cache)
            return base_status.of_contents(below.root.contents, plan.platform, step.base)
    return base_status.of_engine(engine.connect(), artifact.ref, plan.platform)


def _about(plan: Plan) -> About:
    return About(
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
    seen: Iterable[components.Component] = (),
    stated: Mapping[str, tuple[str, ...]] | None = None,
) -> bytes:
    """A bill of materials: a base, files of a lock, and what else was seen.

    Licences are known of the wheels that are in the store; `stated` has those of others, by sha256.
    """
    known = licences.of_wheels(files, Store(settings.store_dir)) | dict(stated or {})
    parts = [components.of_base(base.ref, base.digest, about.platform)] if base else []
    parts += components.locked(files, known)
    named = {_unqualified(part) for part in parts}
    parts += [part for part in seen if _unqualified(part) not in named]
    locks = {"lock": about.lock, "conda-lock": about.conda_lock}
    facts = {
        **{name: digest for name, digest in locks.items() if digest},
        "platform": about.platform,
        "python": about.python,
    }
    return sbom.document(about.profile, parts, facts)


def _of_channels(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Licences of a plan's conda packages."""
    from envbuilder.packages.conda.steps import InstallConda

    packages = (p for s in plan.steps if isinstance(s, InstallConda) for p in s.packages)
    return licences.of_conda(packages)


def _unqualified(part: components.Component) -> str:
    """A package URL without architecture and suite, which a status file may not tell."""
    return part.purl.partition("?")[0]


def subject(artifact: Artifact) -> provenance.Subject:
    """An artifact as a statement names it: an image or archive by its digest, else by its tree's.

    A tree's digest is none of a file's bytes, so it has a name of its own.
    """
    digest = _digest(artifact)
    algorithm = "envbuilderTree" if artifact.kind in NATIVE else "sha256"
    name = Path(artifact.ref).name if artifact.kind in ON_DISK else artifact.ref
    return provenance.Subject(name=name, digest={algorithm: digest})


def _digest(artifact: Artifact) -> str:
    assert artifact.digest is not None, "what was built has a digest"
    return artifact.digest.removeprefix("sha256:")
