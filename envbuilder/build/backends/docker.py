"""The docker backend: choose the builder of an image, which plans it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.build.backends import dockerfile, layers
from envbuilder.build.image import base as image_base
from envbuilder.containers.engine import connection
from envbuilder.containers.oci import reference
from envbuilder.core.errors import InvalidError, ToolError
from envbuilder.profiles import backends

if TYPE_CHECKING:
    from envbuilder.build.request import Build, Product, Request
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile


_FASTER = "builder layers: it makes the same image as the Dockerfile, but faster"


def unavailable(profile: Profile, request: Request, settings: Settings) -> str:
    """Return why docker is not the default; empty if engine and base image are available."""
    python = request.python or profile.image_python
    if not connection.configured():
        return "no container engine was found"
    if python in profile.debian_base and not request.base_image:
        return _base_unavailable()
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


def _base_unavailable() -> str:
    """Return why a base of Debian packages cannot be made for an engine; empty if it can."""
    from envbuilder.build.image import debian_base

    try:
        connection.connect().close()
        debian_base.require_tool()
    except ToolError as error:
        return error.message
    return ""


def prepare(build: Build) -> Product:
    """Choose the builder and plan with it; `ToolError` (exit 4) if something is missing."""
    profile, request = build.profile, build.request
    target = image_base.target(profile, build.lock, build.host, request)
    if request.builder in {None, dockerfile.BUILDER}:
        builders = build.settings.configuration.builders
        if name := backends.assigned(builders, profile.name, target.platform):
            return dockerfile.prepare_on_instance(name, build, target)
    if needs_layers(request):
        return layers.prepare(build, target)
    engine = connection.connect()
    reason = ""
    if request.builder is None:
        reason = layers.unsuitable(engine.build_command, profile, target)
        if not reason:
            return _noted(layers.prepare(build, target, engine), build, _FASTER)
    product = dockerfile.prepare(build, target, engine)
    note = f"builder {engine.build_command.builder}: {reason}"
    return _noted(product, build, note) if reason else product


def _noted(product: Product, build: Build, note: str) -> Product:
    """Return the product, whose plan says why it has this builder.

    What runs a command mostly builds nothing, and has its own line to print.
    """
    if not build.running:
        product.plan = replace(product.plan, notes=(*product.plan.notes, note))
    return product


def needs_layers(request: Request) -> bool:
    """Return whether the request needs or names the builder `layers`.

    Raises `InvalidError` if it needs that builder and names another.
    """
    only = "--output" if request.output else "--push" if request.push else ""
    if request.base_image and reference.is_on_disk(request.base_image):
        only = "a base image on disk"
    if only and request.builder not in {None, layers.BUILDER}:
        raise InvalidError(
            f"{only} needs the builder {layers.BUILDER}, not {request.builder}",
            "Leave --builder out.",
        )
    return bool(only) or request.builder == layers.BUILDER
