"""Write an artifact's attestations (SBOM and provenance) next to the artifact, never inside it.

The provenance is an in-toto Statement v1 with SLSA Provenance v1. It is unsigned and self-asserted:
it records what envbuilder did on a machine that is not a trusted build platform (SLSA Build L1).
Anybody can verify its claims by repeating the build, which gives the same digest.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder import __version__
from envbuilder.builds import payload, sbom
from envbuilder.builds.plan import (
    NATIVE,
    Artifact,
    Assemble,
    Plan,
    UsedBase,
    project_of,
    tool_versions,
)
from envbuilder.core.archives import READ_LIMIT
from envbuilder.core.errors import BuildError, EnvbuilderError
from envbuilder.core.files import save
from envbuilder.core.signatures import PAYLOAD_TYPE, TYPE, Subject
from envbuilder.packages.conda.lock import InstallConda
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.packages.conda.lock import Package
    from envbuilder.profiles.lock import File

MEDIA_TYPES = {"sbom": sbom.MEDIA_TYPE, "provenance": PAYLOAD_TYPE}
SUFFIXES = {"sbom": sbom.SUFFIX, "provenance": ".provenance.json"}
"""Suffix of each attestation's file name. It is appended to the artifact's name."""
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:envbuilder:build:v1"
"""Build type in the provenance; docs/explanation/supply-chain.md describes its parameters."""
BUILDER = "urn:envbuilder:local:v1"
"""Builder id in the provenance: envbuilder on a local machine."""
ON_DISK = NATIVE | {"archive", "layout"}
"""Kinds of artifacts that are files or folders. Other artifacts are in an engine or a registry."""
TREE = "envbuilderTree"
"""Algorithm name for digests of trees, as opposed to hashes of single files."""
_FULL = "The artifact itself is complete. Free some disk space, then run the same command again."


def places(plan: Plan, artifact: Artifact, settings: Settings) -> dict[str, str]:
    """Return the path of each attestation file, by attestation name.

    For an image in an engine or a registry, the attestations are next to the image's record. For
    any other artifact, they are next to the artifact itself.
    """
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
    """Write the attestations if one is missing or `anew` is true, and return their paths by name.

    `versions` maps the names of additional builders to their versions. Raise `BuildError` if a file
    cannot be written.
    """
    paths = places(plan, artifact, settings)
    if anew or not all(Path(path).is_file() for path in paths.values()):
        contents = {
            "sbom": _bill_of_plan(plan, artifact, settings, progress),
            "provenance": provenance(plan, subject(artifact), versions or {}),
        }
        for name, path in paths.items():
            save(Path(path), contents[name], BuildError, _FULL)
    return paths


def remove(plan: Plan, artifact: Artifact, settings: Settings) -> None:
    """Remove attestations that describe an earlier artifact at the same path."""
    for path in places(plan, artifact, settings).values():
        Path(path).unlink(missing_ok=True)


def subject(artifact: Artifact) -> Subject:
    """Return the in-toto subject for the artifact.

    The subject identifies a native environment by its tree digest, and any other artifact by its
    sha256.
    """
    algorithm = TREE if artifact.kind in NATIVE else "sha256"
    name = Path(artifact.ref).name if artifact.kind in ON_DISK else artifact.ref
    return Subject(name=name, digest={algorithm: _digest(artifact)})


def _digest(artifact: Artifact) -> str:
    assert artifact.digest is not None, "what was built has a digest"
    return artifact.digest.removeprefix("sha256:")


# --- SBOM


def _bill_of_plan(plan: Plan, artifact: Artifact, settings: Settings, progress: Progress) -> bytes:
    project = project_of(plan)
    facts = {
        "lock": plan.lock,
        "conda-lock": plan.conda_lock,
        "project-files": project.digest if project else "",
        "platform": plan.platform,
        "python": plan.python,
    }
    packages: list[Package] = []
    for step in plan.steps:
        if isinstance(step, InstallConda):
            packages += step.packages
    return bill(
        plan.profile,
        plan.files,
        plan.base,
        facts,
        settings,
        extra=installed(plan, artifact, progress),
        licences=sbom.conda_licences(packages),
    )


def bill(
    profile: str,
    files: Sequence[File],
    base: UsedBase | None,
    facts: Mapping[str, str],
    settings: Settings,
    extra: Iterable[sbom.Component] = (),
    licences: Mapping[str, tuple[str, ...]] | None = None,
) -> bytes:
    """Return the SBOM of a base image, locked files and additional components.

    `extra` contains the additional components. `facts` describes the environment, such as its
    platform. Empty values in `facts` are omitted. Licenses are read from the wheels in the store.
    `licences` maps the sha256 of other files to their licenses.
    """
    known = sbom.wheel_licences(files, Store.of(settings)) | dict(licences or {})
    parts = [sbom.of_base(base.ref, base.digest, facts["platform"])] if base else []
    parts += sbom.locked_components(files, known)
    # A status file may lack a package's architecture and suite.
    known_urls = {part.purl.partition("?")[0] for part in parts}
    parts += [part for part in extra if part.purl.partition("?")[0] not in known_urls]
    return sbom.document(profile, parts, {name: fact for name, fact in facts.items() if fact})


def installed(plan: Plan, artifact: Artifact, progress: Progress) -> tuple[sbom.Component, ...]:
    """Return the Python distributions in a native environment, or the Debian packages in an image.

    If the image cannot be read, print a note and return an empty tuple. The SBOM then lists the
    base image as a single component.
    """
    if artifact.kind in NATIVE:
        # Outside of its venv, a conda prefix holds only conda packages, which the lock names.
        return sbom.installed(Path(artifact.ref) / ("venv" if artifact.kind == "conda" else ""))
    reason = "this engine does not list them"
    try:
        packages = _packages(plan, artifact, progress)
    except EnvbuilderError as error:
        packages = None
        reason = error.message
    if packages is None:
        progress.note(f"note: the SBOM lacks the base image's packages: {reason}")
        return ()
    suites = (sbom.suite(f) for f in plan.files if f.kind == "deb")
    return sbom.of_packages(packages, next(suites, ""))


def _packages(plan: Plan, artifact: Artifact, progress: Progress) -> dict[str, str] | None:
    """Return the versions of an image's Debian packages by name, or None if they cannot be read.

    If the plan assembles the image, the packages are read from its base image. Otherwise, they are
    read from the image in the engine.
    """
    from envbuilder.builds.image.base import read_contents
    from envbuilder.builds.image.layer_cache import LayerCache
    from envbuilder.containers.engine import connection
    from envbuilder.packages.debian import deb

    for step in plan.steps:
        if isinstance(step, Assemble):
            cache = LayerCache(Path(step.cache), progress.note, fresh=False)
            below = read_contents(step.base, step.platform, cache)
            return cache.remembered(
                {"kind": "packages", "base": below.config["rootfs"], "platform": plan.platform},
                dict[str, str],
                partial(deb.installed_in, below.root.contents, plan.platform, step.base),
            )
    with connection.connect() as engine:
        files = engine.files(artifact.ref, plan.platform, deb.STATUS_PATHS, READ_LIMIT)
    if files is None:
        return None
    return deb.installed_in(files, plan.platform, artifact.ref)


# --- provenance


def provenance(plan: Plan, artifact: Subject, versions: Mapping[str, str]) -> bytes:
    """Return the provenance statement for an artifact that was built according to `plan`.

    `versions` maps the names of additional builders, such as BuildKit, to their versions. The
    statement contains nothing specific to a single run, so the same build always gives the same
    bytes.
    """
    signatures = {"signatures": msgspec.to_builtins(plan.signatures)} if plan.signatures else {}
    document = {
        "_type": TYPE,
        "subject": [{"name": artifact.name, "digest": artifact.digest}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "profile": plan.profile,
                    "platform": plan.platform,
                    "python": plan.python,
                    "backend": plan.backend,
                    "builder": plan.builder,
                    **({"baseImage": plan.base.ref} if plan.base else {}),
                },
                "internalParameters": {"fingerprint": plan.fingerprint, **signatures},
                "resolvedDependencies": dependencies(plan),
            },
            "runDetails": {
                "builder": {
                    "id": BUILDER,
                    "version": {"envbuilder": __version__, **tool_versions(plan), **versions},
                },
            },
        },
    }
    return sbom.encoded(document)


def also_about(content: bytes, artifact: Subject) -> bytes:
    """Return a provenance statement with an additional subject, such as a pushed manifest.

    Raise `ValueError` if the content is not a provenance statement written by envbuilder.
    """
    document = _parsed(content)
    if artifact.digest not in [s["digest"] for s in document["subject"]]:
        document["subject"].append({"name": artifact.name, "digest": artifact.digest})
    return sbom.encoded(document)


def _parsed(content: bytes) -> dict[str, Any]:
    """Parse a provenance statement. Raise `ValueError` if envbuilder did not write it."""
    try:
        document: dict[str, Any] = json.loads(content)
        build_type = document["predicate"]["buildDefinition"]["buildType"]
        _ = [s["digest"] for s in document["subject"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a provenance statement: {error}") from error
    if build_type != BUILD_TYPE:
        raise ValueError("the provenance statement was not written by envbuilder")
    return document


def dependencies(plan: Plan) -> list[dict[str, Any]]:
    """Return all inputs of the build as in-toto resource descriptors."""
    name = plan.profile
    urn = "urn:envbuilder"
    resources: list[dict[str, Any]] = []
    if plan.lock:
        resources.append(_resource(f"{name}.lock", f"{urn}:lock:{name}", plan.lock))
    if plan.conda_lock:
        uri = f"{urn}:conda-lock:{name}"
        resources.append(_resource(f"{name}.conda.lock", uri, plan.conda_lock))
    if plan.base:
        base = sbom.of_base(plan.base.ref, plan.base.digest, plan.platform)
        resources.append(_resource(base.name, base.purl, base.sha256))
    for file in plan.files:
        resources.append(_resource(file.basename, sbom.file_purl(file), file.sha256))
        if (recipe := file.recipe) and file.is_built:
            uri = f"{urn}:source:{file.name}"
            resources.append(_resource(f"source of {file.name}", uri, recipe.sha256))
            for required in recipe.requires:
                uri = f"{urn}:builds:{file.name}"
                resources.append(_resource(f"builds {file.name}", uri, required))
    if project := project_of(plan):
        resources.append(_resource("project files", f"{urn}:project", project.digest))
    resources.append(_resource("payload.pyz", f"{urn}:payload", payload.payload_sha256()))
    return resources


def _resource(name: str, uri: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "uri": uri, **({"digest": {"sha256": sha256}} if sha256 else {})}
