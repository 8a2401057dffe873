"""The docker backend: builds the rendered Dockerfile from the store, without network.

Docker's BuildKit builds it, or podman's Buildah if podman is the engine. The stages `wheels` and
`debs`, which download in a plain `docker build`, are replaced by folders of hard links into the
store; the text of the final stage is always the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.build.backends.container import DockerEnvironment
from envbuilder.build.backends.dockerfile import plan
from envbuilder.build.image import base as image_base
from envbuilder.containers.engine import connection
from envbuilder.core import console
from envbuilder.core.errors import InvalidError, ToolError

if TYPE_CHECKING:
    from envbuilder.build.backends.environment import Product
    from envbuilder.build.request import Request
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile


def unavailable(profile: Profile, request: Request, settings: Settings) -> str:
    """Return why docker is not the default here; empty if engine and base image are at hand."""
    python = request.python or profile.image_python
    if not connection.configured():
        return "no container engine was found"
    if python in profile.debian_base and not request.base_image:
        return _unmade()
    base = profile.base.get(python)
    if base is None:
        return f"the profile has no base image for Python {python}"
    ref = image_base.base_ref(base, request, settings)
    named = request.base_image or base.ref in settings.configuration.base_images
    try:
        with connection.connect() as engine:
            if named or engine.image(ref):
                return ""
    except ToolError as error:
        return error.message
    return f"the base image {base.ref} is not in the engine"


def _unmade() -> str:
    """Return why a base of Debian packages cannot be made for an engine here; empty if it can."""
    from envbuilder.build.image import debian_base

    try:
        connection.connect().close()
        debian_base.require_tool()
    except ToolError as error:
        return error.message
    return ""


def prepare(
    profile: Profile, lock: Lock, host: Host, request: Request, settings: Settings
) -> Product:
    """Query the engine, find the base image and plan; `ToolError` (exit 4) if one is missing."""
    from envbuilder.build.backends import layers

    if layers.wanted(request):
        return layers.prepare(profile, lock, host, request, settings)
    target = image_base.target(profile, lock, host, request)
    assert target.base is not None, "a target with a base"
    engine = connection.connect()
    build = engine.build_command
    if request.builder is None:
        reason = layers.unsuitable(build, profile, target)
        note = console.progress().note
        if not reason:
            note("builder layers: it makes the Dockerfile's image, and faster")
            return layers.prepare(profile, lock, host, request, settings, engine)
        note(f"builder {build.builder}: {reason}")
    engine.require_builder()
    ref = image_base.base_ref(target.base, request, settings)
    own = None
    if target.base.suite and ref == target.base.ref:
        from envbuilder.build.image import debian_base

        if target.base.unpacked:
            raise InvalidError(
                f"the base of '{profile.name}' for {target.platform} is only unpacked: the steps"
                " of a Dockerfile cannot run on it",
                "Use --builder layers, or another base image: --base-image REF.",
            )
        own = debian_base.step(target, settings)
        base = (ref, f"debian:{own.identity}")
        if not request.dry_run:
            debian_base.require_tool(own)
    else:
        base = (ref, ref)
        if not request.dry_run:
            base = image_base.identified(engine, ref, target.platform)
    made = plan(profile, lock, target, base, build, request, settings, own)
    return DockerEnvironment(profile, target, made, engine, settings, force=request.force)
