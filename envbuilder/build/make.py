"""The stages that make what was planned: fetch, execute, attest, deliver."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.build.decide import suggest_packages
from envbuilder.build.plan import BuildResult, MakeBase
from envbuilder.core.errors import BuildError
from envbuilder.profiles import backends

if TYPE_CHECKING:
    from envbuilder.build.plan import Plan
    from envbuilder.build.request import Build, Product
    from envbuilder.build.sharing import Sharing
    from envbuilder.core.settings import Settings


def reuse(build: Build) -> Build:
    """Use the artifact of an earlier build if that made exactly this one."""
    artifact = None if build.request.rebuild else build.product.existing()
    return replace(build, artifact=artifact, started=time.monotonic())


def fetch(build: Build, sharing: Sharing | None = None) -> Build:
    """Fetch the files that the store lacks, once there is room for them and for the result."""
    from envbuilder.build.backends import base_python
    from envbuilder.packages import shared_store, space
    from envbuilder.packages.debian.deb import require_clean
    from envbuilder.packages.fetch import fetch as fetch_files
    from envbuilder.packages.python import wheel_conflicts
    from envbuilder.packages.store import Store

    plan, settings, progress = build.plan, build.settings, build.progress
    if changed := build.product.changed():
        progress.note(f"note: {changed}; it is built again")
    if settings.shared_store and (why := shared_store.objection(settings.shared_store)):
        progress.note(f"warning: {why}; what it lacks is downloaded")
    space.require(plan.files, plan.room, settings)
    try:
        base_python.require(plan, settings, progress)
    except BuildError as error:
        suggest_packages(error, build, plan.python)
        raise
    with sharing.downloads if sharing else contextlib.nullcontext():
        fetch_files(plan.files, build.product.target, settings, progress)
    store = Store.of(settings)
    wheel_conflicts.require_compatible(plan.files, plan.python, store)
    if backends.makes_image(plan.backend):
        require_clean(plan.files, store)
    return build


def execute(build: Build, sharing: Sharing | None = None) -> Build:
    """Run the plan, unless another process has done so meanwhile."""
    from envbuilder.build.execute import execute as execute_plan

    plan, product = build.plan, build.product

    def is_done() -> bool:
        return not build.request.rebuild and product.existing() is not None

    with sharing.turn(plan.profile) if sharing else contextlib.nullcontext():
        layers = sharing.layers if sharing else None
        built = execute_plan(plan, build.settings, build.progress, is_done, layers)
    with build.progress.task("check what was built"):
        artifact = product.existing()
    if artifact is None:
        raise BuildError(
            f"{plan.artifact.ref} is missing after its build, or was changed in the meantime",
            "Run the same command again.",
        )
    return replace(build, artifact=artifact, built=built)


def attest(build: Build) -> Build:
    """Name the artifact as requested, and write its SBOM and provenance."""
    from envbuilder.build.attestation import documents

    plan, product = build.plan, build.product
    assert build.artifact is not None, "what was reused or executed"
    if not build.built:
        product.restore_names()
    made_by = product.made_by() | _base_made_by(plan)
    paths = documents.ensure(
        *(plan, build.artifact, build.settings, build.progress),
        anew=build.built,
        versions=made_by,
    )
    return replace(build, made_by=made_by, documents=paths)


def deliver(build: Build) -> Build:
    """Link a native environment to the project; record an image, and push its attestations."""
    plan, settings, push = build.plan, build.settings, build.request.push
    assert build.artifact is not None, "what was reused or executed"
    if not build.request.only_tag and (note := _link(build.product, settings)):
        build.progress.note(f"note: {note}")
    if backends.makes_image(plan.backend):
        from envbuilder.build.image import project_record

        project_record.keep(plan, build.artifact, settings)
    if push:
        from envbuilder.build.attestation import publish

        publish.attach(push, plan.fingerprint, build.documents, settings, build.progress)
    result = BuildResult(
        status="built" if build.built else "reused",
        profile=plan.profile,
        backend=plan.backend,
        builder=plan.builder,
        artifact=build.artifact,
        documents=build.documents,
        fingerprint=plan.fingerprint,
        seconds=round(time.monotonic() - build.started, 3) if build.built else 0.0,
        made_by=build.made_by,
    )
    return replace(build, result=result)


def _link(product: Product, settings: Settings) -> str:
    """Link the project to its native environment; return a sentence if that is not possible."""
    from envbuilder.build import project_link
    from envbuilder.build.backends.native import NativeEnvironment

    if not isinstance(product, NativeEnvironment):
        return ""
    # The folder above `bin`: on conda packages, the wheels are in a venv below the prefix.
    return project_link.update(settings, (product.prefix / product.python).parent.parent)


def _base_made_by(plan: Plan) -> dict[str, str]:
    """Return the programs that make the plan's base → their versions; empty if it makes none."""
    base = next((step for step in plan.steps if isinstance(step, MakeBase)), None)
    if base is None:
        return {}
    from envbuilder.build.image import debian_base

    return debian_base.made_by(base)
