"""What conda, mamba and micromamba are given, read as strictly as they would."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from envbuilder.builds import render
from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Settings
from envbuilder.packages.conda import lock as conda_lockfile
from envbuilder.packages.conda.lock import Lock, Package, Target
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


def package(name: str, version: str, subdir: str, **more: Any) -> Package:
    """A package; its hash is made of what it is called."""
    build = more.pop("build", "h0_0")
    return msgspec.convert(
        {
            "name": name,
            "version": version,
            "build": build,
            "build_number": 0,
            "subdir": subdir,
            "file": f"{name}-{version}-{build}.conda",
            "channel": "conda-forge",
            "sha256": hashlib.sha256(f"{name} {subdir}".encode()).hexdigest(),
            "size": 1000,
            **more,
        },
        Package,
    )


def packages(subdir: str) -> tuple[Package, ...]:
    """A little of everything: a circle, another channel, another number, nothing stated."""
    made = (
        package("gxx", "14.2.0", subdir, depends=["gcc 14.2.0", "python"], build_number=7),
        package("gcc", "14.2.0", subdir, license="GPL-3.0-only WITH GCC-exception-3.1"),
        package(
            "lab-tools",
            "1.0",
            "noarch",
            channel="lab",
            noarch="python",
            depends=["python >=3.12"],
            size=None,
        ),
        package("pip", "25.0", "noarch", noarch="python", depends=["python >=3.9"]),
        package(
            "python",
            "3.12.8",
            subdir,
            build="h9e4cc4f_1_cpython",
            build_number=1,
            timestamp=1733407517000,
            depends=["tzdata", "pip"],
            constrains=["python_abi 3.12.* *_cp312"],
        ),
        package("tzdata", "2024b", "noarch", noarch="generic", license="LicenseRef-Public-Domain"),
    )
    return tuple(sorted(made, key=lambda p: p.name))


def conda_lock(profile: profiles.Profile = PROFILE) -> Lock:
    return Lock(
        schema=1,
        profile=profile.name,
        inputs=conda_lockfile.inputs_digest(profile),
        channels=profile.conda.channels,
        targets=tuple(
            Target(
                platform=platform,
                python="3.12",
                virtual_packages=profile.conda.virtual_packages[platform],
                packages=packages(conda_lockfile.SUBDIRS[platform]),
            )
            for platform in profile.platforms
        ),
    )


def rendered(
    target: render.RenderTarget,
    lock: Lock | None,
    urls: dict[str, str] = URLS,
    profile: profiles.Profile = PROFILE,
    python: str = "3.12",
) -> dict[str, str]:
    files = render.render(profile, WHEELS, target, python, urls, lock)
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
    data = strict_file(rendered("conda", None, profile=profile)["environment.yml"])
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
@pytest.mark.parametrize("target", render.CONDA_TARGETS)
def test_no_credentials_get_into_a_file(
    target: render.RenderTarget, url: str, private: bool
) -> None:
    files = rendered(target, conda_lock(), {**URLS, "lab": url})
    text = "".join(t for n, t in files.items() if n != "requirements.txt")
    assert "s3cret" not in text
    assert "https://lab.example/channels/lab" in text
    assert ("wants credentials" in text) == private


def test_a_channel_that_conda_would_look_up_elsewhere_is_no_name() -> None:
    data = strict_file(rendered("conda", None)["environment.yml"])
    assert data["channels"] == ["conda-forge", LAB, "nodefaults"]
    mirror = {**URLS, "conda-forge": "https://mirror.example/conda-forge"}
    data = strict_file(rendered("conda", None, mirror)["environment.yml"])
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


@pytest.mark.parametrize("target", render.CONDA_TARGETS)
def test_a_folder_of_this_machine_is_refused(target: render.RenderTarget) -> None:
    with pytest.raises(InvalidError, match="'lab' is a folder on this machine"):
        rendered(target, conda_lock(), {**URLS, "lab": "file:///srv/lab"})


# ---- @EXPLICIT


def test_the_list_is_the_golden_one(repository: Path, rewrite_golden: bool) -> None:
    folder = repository / "tests/golden/conda-exports/conda-explicit"
    files = rendered("conda-explicit", conda_lock())
    assert files.pop("requirements.txt")
    if rewrite_golden:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    assert files == {p.name: p.read_text() for p in folder.iterdir()}
    assert all(resources.MARK in text for text in files.values())


def test_the_list_takes_a_fresh_lock() -> None:
    with pytest.raises(InvalidError, match="has no conda lock"):
        rendered("conda-explicit", None)
    with pytest.raises(InvalidError, match=r"has no Python 3\.11") as caught:
        rendered("conda-explicit", conda_lock(), python="3.11")
    assert "It covers Python 3.12. To use another Python" in caught.value.hint


@pytest.mark.parametrize("target", render.CONDA_TARGETS)
def test_a_profile_without_the_backend_has_no_such_files(target: render.RenderTarget) -> None:
    profile = msgspec.structs.replace(PROFILE, backends=("venv",))
    with pytest.raises(InvalidError, match="'cuda' has no conda backend"):
        rendered(target, conda_lock(), profile=profile)


def test_dependencies_come_first_and_a_circle_ends() -> None:
    (target, _) = conda_lock().targets
    lines = conda_lockfile.explicit_lines(target, conda_lockfile.channels(URLS, URLS))
    names = [line.rpartition("/")[2].partition("-")[0] for line in lines]
    assert sorted(names) == ["gcc", "gxx", "lab", "pip", "python", "tzdata"]
    assert names.index("gcc") < names.index("gxx")
    assert names.index("tzdata") < names.index("python") < names.index("lab")
    turned = msgspec.structs.replace(target, packages=target.packages[::-1])
    assert conda_lockfile.explicit_lines(turned, conda_lockfile.channels(URLS, URLS)) == lines


# ---- the command


def test_what_needs_conda_packages_is_rendered_for_conda_alone() -> None:
    """A script or an image would lack the packages without a word."""
    profile = msgspec.structs.replace(PROFILE, backends=("conda",))
    assert render.default_target(profile) == "conda"
    assert render.default_target(PROFILE) == "dockerfile"
    with pytest.raises(InvalidError, match="has no venv backend"):
        rendered("script", conda_lock(profile), profile=profile)
    with pytest.raises(InvalidError, match="its packages come from conda channels") as raised:
        rendered("dockerfile", conda_lock(profile), profile=profile)
    assert raised.value.hint.endswith("--target conda")
