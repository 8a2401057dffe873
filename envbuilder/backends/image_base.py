"""The base of an image as an OCI layout on this disk, wherever it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder import console, engine
from envbuilder.oci import places
from envbuilder.plan import LoadBase, MakeBase

if TYPE_CHECKING:
    from envbuilder import words
    from envbuilder.lockfile import Target
    from envbuilder.oci.layout import Layout
    from envbuilder.options import Request
    from envbuilder.settings import Settings


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


def find(
    target: Target, client: Any, request: Request, settings: Settings, *, scripts: bool
) -> Base:
    """The base that was asked for, configured or locked, as a layout on this disk.

    `scripts`: the engine needs it, too.
    """
    from envbuilder import debian_base
    from envbuilder.backends.docker import base_ref
    from envbuilder.oci import archive, bases

    locked = target.base
    assert locked is not None, "a target with a base"
    named = request.base_image or settings.configuration.base_images.get(locked.ref)
    ref = base_ref(locked, request, settings)
    if named is None and locked.suite:
        step = debian_base.step(target, settings)
        if not request.dry_run:
            debian_base.require_tool(step)
        load = LoadBase(
            what="load the base into the engine",
            layout=step.layout,
            cache=str(settings.cache_dir / "layers"),
            ref=step.ref,
        )
        make = (step, load) if scripts else (step,)
        return Base(ref=ref, identity=step.identity, folder=step.layout, make=make)
    if request.dry_run and not places.on_disk(ref):
        return Base(ref=ref, identity=ref, folder="")
    if places.on_disk(ref):
        layout = archive.opened(places.path(ref), settings.cache_dir / "bases")
    elif named is None and locked.digest and not (scripts or _in_engine(client, ref)):
        layout = bases.obtain(
            locked.ref, locked.digest, target.platform, settings, console.progress()
        )
    else:
        layout = _of_engine(ref, target.platform, client, settings)
    manifest = layout.manifest(target.platform)
    return Base(ref=ref, identity=manifest.config.digest, folder=str(layout.folder))


def _in_engine(client: Any, ref: str) -> bool:
    return client is not None and engine.image(client, ref) is not None


def _of_engine(ref: str, platform: words.Platform, client: Any, settings: Settings) -> Layout:
    from envbuilder.backends import docker
    from envbuilder.oci import engines
    from envbuilder.oci.layout import Layout

    client = client or engine.connect()
    docker._base(client, engine.describe(client), ref, platform)
    found = engine.image(client, ref)
    assert found is not None, "it was just found or pulled"
    layout = engines.export(client, found, settings.cache_dir / "bases")
    engines.remember(layout, Layout(settings.cache_dir / "layers"))
    return layout
