"""The base of an image as an OCI layout on this disk, wherever it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.build import render
from envbuilder.build.plan import LoadBase, MakeBase
from envbuilder.containers.engine import client as engine
from envbuilder.containers.engine.client import LABEL
from envbuilder.containers.oci import image_names as places
from envbuilder.containers.oci import reference
from envbuilder.core import console
from envbuilder.core import types as words
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.settings import require_writable
from envbuilder.profiles import lock as lockfile

if TYPE_CHECKING:
    from envbuilder.build.request import Request
    from envbuilder.containers.oci.layout import Layout
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.lock import Lock, LockedBase, Target
    from envbuilder.profiles.profile import Base as BaseImage
    from envbuilder.profiles.profile import Profile


class Base(Struct, frozen=True, kw_only=True):
    """The base of an image, as far as a plan knows it."""

    ref: str
    identity: str
    """Of what is in it, wherever it lies: the digest of its configuration, or of what it is made
    from. In a dry run, its name."""
    folder: str
    """The OCI layout that holds it."""
    make: tuple[MakeBase | LoadBase, ...] = ()
    """What makes that layout, where it is no image."""


def target(profile: Profile, lock: Lock, host: Host, request: Request) -> Target:
    """What an image for this host is made of; `InvalidError` where the lock has no base for it."""
    platform = words.container_platform(host.machine) or "linux/amd64"
    python = request.python or render.image_python(profile)
    found = lockfile.select(lock, platform, python)
    if found.base is None:
        raise InvalidError(f"the lock of '{profile.name}' has no base image for Python {python}")
    return found


def base_ref(base: BaseImage | LockedBase, request: Request, settings: Settings) -> str:
    """The base image to use: asked for, configured for this reference, or the locked one."""
    if request.base_image:
        return request.base_image
    configured = settings.configuration.base_images.get(base.ref)
    if configured:
        return configured
    return f"{base.ref}@{base.digest}" if base.digest else base.ref


def names(profile: Profile, target: Target, digest: str, request: Request) -> tuple[str, ...]:
    """The names of the image with this fingerprint; the first is the artifact's."""
    if request.only_tag:
        return (request.only_tag,)
    name = f"envbuilder/{profile.name}"
    own = f"{name}:py{target.python}-{digest[:12]}"
    return (own, f"{name}:latest", *([request.tag] if request.tag else []))


def labels(profile: Profile, digest: str, locked: str) -> dict[str, str]:
    """What an image says of itself, given its fingerprint and its lock's digest."""
    stated = {"fingerprint": digest, "profile": profile.name, "lock": locked}
    return {f"{LABEL}{key}": value for key, value in stated.items()}


def loaded(made: MakeBase, settings: Settings) -> LoadBase:
    """Gives a base that was made to the engine, under the name that the Dockerfile begins with."""
    return LoadBase(
        what="load the base into the engine",
        layout=made.layout,
        cache=str(settings.cache_dir / "layers"),
        ref=made.ref,
        identity=made.identity,
        folder=str(settings.records_dir / made.identity),
    )


def find(
    target: Target,
    client: Any,
    here: engine.Engine | None,
    request: Request,
    settings: Settings,
    *,
    scripts: bool,
) -> Base:
    """The base that was asked for, configured or locked, as a layout on this disk.

    `client` and `here`: the engine, where it was asked already. `scripts`: it needs the base, too.
    """
    from envbuilder.build.image import debian_base
    from envbuilder.containers.oci import archive
    from envbuilder.containers.registry import base_images as bases

    locked = target.base
    assert locked is not None, "a target with a base"
    named = request.base_image or settings.configuration.base_images.get(locked.ref)
    ref = base_ref(locked, request, settings)
    if named is None and locked.suite:
        step = debian_base.step(target, settings)
        if not request.dry_run:
            debian_base.require_tool(step)
        make = (step, loaded(step, settings)) if scripts else (step,)
        return Base(ref=ref, identity=step.identity, folder=step.layout, make=make)
    if request.dry_run and not places.on_disk(ref):
        return Base(ref=ref, identity=ref, folder="")
    if places.on_disk(ref):
        layout = archive.opened(places.path(ref), require_writable(settings.bases_dir))
    elif named is None and locked.digest and not (scripts or _in_engine(client, ref)):
        layout = bases.obtain(
            locked.ref, locked.digest, target.platform, settings, console.progress()
        )
    else:
        layout = _of_engine(ref, target.platform, client, here, settings)
    manifest = layout.manifest(target.platform)
    return Base(ref=ref, identity=manifest.config.digest, folder=str(layout.folder))


def _in_engine(client: Any, ref: str) -> bool:
    return client is not None and engine.image(client, ref) is not None


def _of_engine(
    ref: str,
    platform: words.Platform,
    client: Any,
    here: engine.Engine | None,
    settings: Settings,
) -> Layout:
    from envbuilder.containers.engine import images as engines
    from envbuilder.containers.oci.layout import Layout

    client = client or engine.connect()
    here = here or engine.describe(client)
    ref, _ = identified(client, here, ref, platform)
    # One that is named by digest is not pulled to know which it is.
    found = engine.image(client, ref) or pulled(client, here, ref, platform)
    layout = engines.export(client, found, require_writable(settings.bases_dir))
    engines.remember(layout, Layout(settings.cache_dir / "layers"))
    return layout


def identified(client: Any, here: engine.Engine, ref: str, platform: str) -> tuple[str, str]:
    """The base image's reference and what it is: its digest, or its id in the engine.

    A digest says which image it is, wherever that is. A tag only does once the image is here: it
    is pulled first, so that the fingerprint before the build is the one after it.
    """
    found = engine.image(client, ref)
    if here.client == "podman" and found is None:
        named, ref = ref, reference.qualified(ref)
    else:
        named = ref
    if "@" in named:
        return ref, named
    found = found or pulled(client, here, ref, platform)
    return ref, found.id


def pulled(client: Any, here: engine.Engine, ref: str, platform: str) -> engine.Image:
    """The image, after the engine has fetched it; `BuildError` where it cannot be had."""
    with console.progress().task(f"pull the base image {ref}"):
        engine.pull(here, ref, platform)
    found = engine.image(client, ref)
    if found is None:
        raise BuildError(f"{ref}: not in the engine after it was pulled", engine.no_base(ref))
    return found
