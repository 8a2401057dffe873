"""The base image of the tests: a Debian with Python, which `clean` leaves alone."""

from __future__ import annotations

from pathlib import Path

from envbuilder.containers.engine.interface import LABEL
from envbuilder.containers.oci import archive
from envbuilder.packages.debian import suite
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import Target
from tests.support.images import image
from tools import engine_base


def target() -> Target:
    profile = profiles.load("test-base", (engine_base.FOLDER,))
    base = suite.base(profile, "linux/amd64", "3.11", ())
    return Target(platform="linux/amd64", python="3.11", base=base, files=())


def test_its_profile_brings_a_python_that_compiles() -> None:
    profile = profiles.load("test-base", (engine_base.FOLDER,))
    assert {"python3", "python3-dev"} <= set(profile.debian_base["3.11"].include)
    assert {"linux/amd64", "linux/arm64"} == set(profile.platforms)


def test_it_has_a_name_and_a_command_and_no_label(tmp_path: Path) -> None:
    labelled = {"Env": ["PATH=/usr/bin"], "Labels": {f"{LABEL}fingerprint": "0" * 64}}
    layout = image(tmp_path, config=labelled)
    before = layout.manifest("linux/amd64")
    engine_base.plain(layout, target(), "envbuilder-test-base:new")
    (listed,) = layout.index().manifests
    assert listed.annotations[archive.NAME] == "docker.io/library/envbuilder-test-base:new"
    after = layout.manifest("linux/amd64")
    assert after.layers == before.layers
    config = layout.read_config(after)
    assert config["config"] == {"Env": ["PATH=/usr/bin"], "Cmd": ["python3"]}
    assert config["rootfs"] == layout.read_config(before)["rootfs"]
