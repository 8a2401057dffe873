"""Build an image on the buildx instance that the configuration assigns to its profile.

The instance gets the wheels, the packages and the base image from this machine, so it needs neither
a registry nor an index. Its image comes back as an OCI layout, is checked, and goes where it was
requested: into the engine, a file or a registry. envbuilder neither creates instances nor chooses
among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.build import project_layer
from envbuilder.build.backends import dockerfile, layers
from envbuilder.build.image import base as image_base
from envbuilder.build.image import records
from envbuilder.build.outputs import Output
from envbuilder.containers.engine import connection, docker_client
from envbuilder.containers.engine.interface import BuildCommand
from envbuilder.containers.oci.layout import Layout
from envbuilder.core.errors import InvalidError
from envbuilder.profiles import backends

if TYPE_CHECKING:
    from envbuilder.build.plan import Plan
    from envbuilder.build.request import Build, Product, Request
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Target
    from envbuilder.profiles.profile import Profile

BUILDER = "buildkit"


def assigned(profile: Profile, target: Target, request: Request, settings: Settings) -> str:
    """Return the instance that builds this request; empty if envbuilder or the engine does."""
    if request.builder not in {None, BUILDER}:
        return ""
    return backends.assigned(settings.configuration.builders, profile.name, target.platform)


def command(instance: str) -> BuildCommand:
    """Return how the instance builds an image."""
    return BuildCommand(
        builder="buildkit",
        argv=(
            *("docker", "buildx", "build", "--progress", "plain", "--builder", instance),
            *("--provenance=false", "--sbom=false"),
        ),
        digests_option="--metadata-file",
        version_argv=("docker", "buildx", "inspect", instance),
        takes_epoch=True,
    )


def prepare(name: str, build: Build, target: Target) -> Product:
    """Find the base and plan; `ToolError` (exit 4) if there is no such instance, or no buildx.

    An image that exists is used without asking the instance, which may be out of reach.
    """
    profile, lock, request, settings = build.profile, build.lock, build.request, build.settings
    assert target.base is not None, "a target with a base"
    aside = request.output or request.push
    engine = None if aside else connection.connect()
    if target.base.suite and image_base.base_ref(target.base, request, settings) == target.base.ref:
        raise InvalidError(
            f"the base of '{profile.name}' is made of Debian packages on this machine, and the"
            f" buildx instance '{name}' does not have it",
            "Use --builder layers, or another base image: --base-image REF.",
        )
    base = image_base.find(target, engine, request, settings, scripts=False)
    digest = Layout(Path(base.folder)).find(target.platform).digest if base.folder else ""
    instance = dockerfile.Instance(name=name, base=base.folder, base_digest=digest, made_by={})

    def planned() -> Plan:
        project = project_layer.planned(settings) if request.with_project else None
        return dockerfile.plan(
            *(profile, lock, target, (base.ref, base.identity), command(name), request, settings),
            project=project,
            instance=instance,
        )

    if engine is not None and not request.rebuild:
        product = _in_engine(planned(), build, target, engine)
        if product.existing():
            return product
    instance = replace(instance, made_by=records.versions(docker_client.describe_instance(name)))
    if engine is None:
        return Output(target, planned(), settings, instance.made_by)
    return _in_engine(planned(), build, target, engine)


def _in_engine(plan: Plan, build: Build, target: Target, engine: Engine) -> Product:
    from envbuilder.build.backends.container import DockerEnvironment

    wheels = target.of_kind("wheel")
    room = layers.room(wheels, build.request, build.settings, engine.build_command)
    plan = replace(plan, room=room)
    return DockerEnvironment(build, target, plan, engine)
