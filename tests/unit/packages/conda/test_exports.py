"""What conda, mamba and micromamba are given, read as strictly as they would."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml

from envbuilder.builds import render
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Settings
from envbuilder.packages.conda import lock as conda_lockfile
from envbuilder.profiles import profile as profiles
from tests.support.shipped import shipped_lock, shipped_profile

SHIPPED = shipped_profile("cuda")
PROFILE = msgspec.structs.replace(
    SHIPPED,
    conda=msgspec.structs.replace(
        SHIPPED.conda, channels=("conda-forge", "lab"), packages=("gxx >=13", "lab-tools")
    ),
)
WHEELS = shipped_lock("cuda")
FORGE = "https://conda.anaconda.org/conda-forge"
LAB = "https://lab.example/channels/lab"
URLS = {"conda-forge": FORGE, "lab": LAB}


def rendered(
    target: render.RenderTarget,
    urls: dict[str, str] = URLS,
    profile: profiles.Profile = PROFILE,
) -> dict[str, str]:
    files = render.render(profile, WHEELS, target, "3.12", urls)
    return {f.name: f.content.decode() for f in files}


# ---- environment.yml


def strict_file(text: str) -> dict[str, Any]:
    """An environment.yml, if it has nothing but what conda documents, in its types."""
    data = yaml.safe_load(text)
    assert list(data) in (
        ["name", "channels", "dependencies"],
        ["name", "channels", "dependencies", "variables"],
    )
    assert re.fullmatch(r"[^/ :#]+", data["name"])
    for c in data["channels"]:
        assert isinstance(c, str)
    for name, value in data.get("variables", {}).items():
        assert isinstance(name, str)
        assert isinstance(value, str)
    return data  # type: ignore[no-any-return]


def test_what_yaml_would_make_something_else_of_stays_text() -> None:
    said = {"NO": "no", "null": "~", "TRUE": "1e3", "y": "0x10", "_": "", "A": "2026-01-01 # a: b"}
    conda = msgspec.structs.replace(PROFILE.conda, packages=("no", "null", "1e3", "y >=1"))
    profile = msgspec.structs.replace(PROFILE, name="123", environment=said, conda=conda)
    data = strict_file(rendered("conda", profile=profile)["environment.yml"])
    assert data["name"] == "123"
    assert data["variables"] == said
    assert data["dependencies"][1:5] == ["no", "null", "1e3", "y >=1"]


# ---- channels


@pytest.mark.parametrize(
    ("url", "private"),
    [
        (LAB, False),
        ("https://me:s3cret@lab.example/channels/lab", True),
        ("https://lab.example/t/s3cret/channels/lab", True),
        ("https://lab.example/channels/lab?token=s3cret", True),
    ],
)
def test_no_credentials_get_into_a_file(url: str, private: bool) -> None:
    files = rendered("conda", {**URLS, "lab": url})
    text = "".join(t for n, t in files.items() if n != "requirements.txt")
    assert "s3cret" not in text
    assert "https://lab.example/channels/lab" in text
    assert ("wants credentials" in text) == private


def test_a_channel_that_conda_would_look_up_elsewhere_is_no_name() -> None:
    data = strict_file(rendered("conda")["environment.yml"])
    assert data["channels"] == ["conda-forge", LAB, "nodefaults"]
    mirror = {**URLS, "conda-forge": "https://mirror.example/conda-forge"}
    data = strict_file(rendered("conda", mirror)["environment.yml"])
    assert data["channels"][0] == "https://mirror.example/conda-forge"


def test_a_mirror_of_a_shipped_channel_is_the_own_business(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILDER_INDEX_CONDA_FORGE", "file:///somewhere/conda-forge")
    monkeypatch.setenv("ENVBUILDER_INDEX_LAB", LAB)
    assert conda_lockfile.channel_urls(("conda-forge", "lab"), found) == URLS
    with pytest.raises(InvalidError) as caught:
        conda_lockfile.channel_urls(("nowhere",), found)
    assert "ENVBUILDER_INDEX_NOWHERE" in caught.value.hint


def test_a_folder_of_this_machine_is_refused() -> None:
    with pytest.raises(InvalidError, match="'lab' is a folder on this machine"):
        rendered("conda", {**URLS, "lab": "file:///srv/lab"})


def test_a_profile_without_the_backend_has_no_such_files() -> None:
    profile = msgspec.structs.replace(PROFILE, backends=("venv",))
    with pytest.raises(InvalidError, match="'cuda' has no conda backend"):
        rendered("conda", profile=profile)


# ---- the command


def test_what_needs_conda_packages_is_rendered_for_conda_alone() -> None:
    """A script or an image would lack the packages without a word."""
    profile = msgspec.structs.replace(PROFILE, backends=("conda",))
    assert render.default_target(profile) == "conda"
    assert render.default_target(PROFILE) == "dockerfile"
    with pytest.raises(InvalidError, match="has no venv backend"):
        rendered("script", profile=profile)
    with pytest.raises(InvalidError, match="its packages come from conda channels") as raised:
        rendered("dockerfile", profile=profile)
    assert raised.value.hint.endswith("--target conda")
