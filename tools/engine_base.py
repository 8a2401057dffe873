"""Make the base image of the tests of Debian packages, and load it into the container engine.

    .ci/engine up

The packages are those of `tests/data/base/test-base.yaml`, in the versions that Debian's mirror has
now: a lock in the repository would name files that Debian drops with the next security fix.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.builds.image import base as image_base, debian_base
from envbuilder.containers.engine import connection, images
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    MANIFEST,
    Index,
    Layout,
    encode,
    oci_platform,
)
from envbuilder.core import console, types
from envbuilder.core.errors import EnvbuilderError, HostError
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import fetch
from envbuilder.packages.debian import suite
from envbuilder.packages.store import Store
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import Target

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "base"
COMMAND = ["python3"]


def lock(settings: Settings) -> Target:
    """Return the base for this machine's processor, with every package in its current version."""
    machine = types.container_platform(platform.machine())
    if machine is None:
        raise HostError(f"Debian has no packages for {platform.machine()} here")
    profile = profiles.load("test-base", (FOLDER,))
    python = profile.python.default
    packages = suite.load(profile.debian_suite, machine, settings, print)
    files = suite.lock_base(profile.debian_base[python].include, packages)
    base = suite.base(profile, machine, python, files)
    return Target(platform=machine, python=python, base=base, files=files)


def plain(layout: Layout, target: Target, name: str) -> None:
    """Name the image, give it a command, and take the labels by which `clean` would remove it."""
    manifest = layout.manifest(target.platform)
    config = layout.read_config(manifest)
    config["config"] = {"Env": config["config"]["Env"], "Cmd": COMMAND}
    manifest = replace(manifest, config=layout.add(encode(config), CONFIG))
    listed = layout.add(
        encode(manifest),
        MANIFEST,
        platform=oci_platform(target.platform),
        annotations=archive.named(name),
    )
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=(listed,)))


def main() -> int:
    """Make and load it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the image's name and tag in the engine")
    name = parser.parse_args().name
    try:
        settings = load_settings()
        image_base.require_maker()
        target = lock(settings)
        fetch.fetch(target.files, target, settings, console.PlainProgress())
        with tempfile.TemporaryDirectory() as folder:
            step = replace(image_base.debian_step(target, settings), layout=f"{folder}/base")
            layout = debian_base.make(step, Store.of(settings), print)
            plain(layout, target, name)
            with connection.connect() as engine:
                images.load(engine, layout, Layout.create(Path(folder) / "sent"))
    except EnvbuilderError as error:
        print(f"error: {error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
