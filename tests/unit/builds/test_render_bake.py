"""One bake file for several profiles."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from envbuilder.builds import render
from envbuilder.builds.render import BakeSource
from envbuilder.core.errors import InvalidError
from envbuilder.core.resources import MARK
from tests.support.shipped import shipped_lock, shipped_profile


def source(name: str, called: str = "") -> BakeSource:
    profile = shipped_profile(name)
    lock = shipped_lock(name)
    python = profile.image_python if profile.makes_images else profile.python.default
    urls = render.placeholder_urls(lock)
    profile = replace(profile, name=called or name)
    return BakeSource(profile=profile, lock=lock, python=python, urls=urls)


def baked(*names: str) -> dict[str, bytes]:
    files = render.bake_files([source(name) for name in names])
    return {file.name: file.content for file in files}


def blocks(text: str, kind: str) -> dict[str, str]:
    return dict(re.findall(rf'^{kind} "([a-z0-9-]+)" {{\n(.*?)^}}', text, re.DOTALL | re.MULTILINE))


def test_each_profile_and_platform_has_a_target_and_its_dockerfile() -> None:
    files = baked("cpu", "zendnn")
    text = files["docker-bake.hcl"].decode()
    assert MARK in text
    assert {*blocks(text, "target")} == {"cpu-linux-amd64", "cpu-linux-arm64", "zendnn-linux-amd64"}
    assert 'context   = "zendnn"' in blocks(text, "target")["zendnn-linux-amd64"]
    groups = blocks(text, "group")
    assert {*groups} == {"default", "cpu", "zendnn", "linux-amd64", "linux-arm64"}
    assert groups["linux-amd64"] == '  targets = ["cpu-linux-amd64", "zendnn-linux-amd64"]\n'
    assert "BAKE_LOCAL_PLATFORM" in groups["default"]
    for name in ("cpu", "zendnn"):
        one = source(name)
        alone = render.render(one.profile, one.lock, "dockerfile", one.python, one.urls)
        assert {f.name: f.content for f in alone} == {
            path.partition("/")[2]: content
            for path, content in files.items()
            if path.startswith(f"{name}/")
        }


def test_the_default_of_one_platform_is_that_one() -> None:
    text = baked("zendnn")["docker-bake.hcl"].decode()
    assert blocks(text, "group")["default"] == '  targets = ["linux-amd64"]\n'


def test_a_profile_without_images_is_refused() -> None:
    with pytest.raises(InvalidError, match="no Dockerfile can be rendered for profile 'mps'"):
        baked("cpu", "mps")


@pytest.mark.parametrize("name", ["default", "linux-amd64"])
def test_a_profile_named_as_a_group_is_refused(name: str) -> None:
    with pytest.raises(InvalidError, match=f"'{name}' has the same name"):
        [*render.bake_files([source("cpu"), source("zendnn", name)])]
