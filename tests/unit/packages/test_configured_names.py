"""A name in the configuration that nothing knows is an error: it would be ignored in silence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.cli import main
from envbuilder.core import settings
from envbuilder.core.errors import InvalidError
from envbuilder.packages import configuration, configured_names
from envbuilder.packages.python import indexes

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://127.0.0.1:1/simple"
SHIPPED = tuple(indexes.upstreams())
PYPI = "For PyPI use pip's index-url or UV_INDEX_URL."


def load(
    folder: Path, text: str = "", name: str = "envbuilder.yaml", **variables: str
) -> settings.Settings:
    (folder / name).write_text(text)
    return configuration.load({"ENVBUILDER_CONFIG_DIR": str(folder), **variables}, folder)


def refused(
    folder: Path, text: str, name: str = "envbuilder.yaml", **variables: str
) -> InvalidError:
    with pytest.raises(InvalidError) as caught:
        load(folder, text, name, **variables)
    return caught.value


# --- indexes


@pytest.mark.parametrize("file", ["envbuilder.yaml", "config.yaml"])
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("default", ""),
        ("pypi", ""),
        ("pytorch-cpuu", "pytorch-cpu"),
        ("pytorch_cpu", "pytorch-cpu"),
        ("PyTorch-CPU", "pytorch-cpu"),
        ("pytorch", "pytorch-cpu' or 'pytorch-cu126' or 'pytorch-rocm72' or 'pytorch-xpu"),
        ("conda_forge", "conda-forge"),
        ("debian_security", "debian-security"),
        ("", ""),
    ],
)
def test_an_unknown_index_is_named_with_its_line_and_the_known_ones(
    file: str, name: str, meant: str, tmp_path: Path
) -> None:
    error = refused(tmp_path, f"indexes:\n  mnist-cvdf: {URL}\n  '{name}': {URL}\n", file)
    assert error.message == f"{tmp_path}/{file}:3: indexes: there is no index {name!r}"
    assert ("Did you mean" in error.hint) == bool(meant)
    assert f"Did you mean '{meant}'?" in error.hint or not meant
    assert all(one in error.hint for one in (*SHIPPED, "debian", PYPI))


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("ENVBUILDER_INDEX_PYTORCH", "ENVBUILDER_INDEX_PYTORCH_CPU"),
        ("ENVBUILDER_INDEX_PYTORCH_CPUU", "ENVBUILDER_INDEX_PYTORCH_CPU"),
        ("ENVBUILDER_INDEX_pytorch_cpu", "mean 'ENVBUILDER_INDEX_PYTORCH_CPU'?"),
        ("ENVBUILDER_INDEX_PYTORCH-CPU", "ENVBUILDER_INDEX_PYTORCH_CPU"),
        ("ENVBUILDER_INDEX_PYPI", "ENVBUILDER_INDEX_"),
        ("ENVBUILDER_INDEX_URL", "ENVBUILDER_INDEX_"),
        ("ENVBUILDER_INDEX_", "ENVBUILDER_INDEX_"),
    ],
)
def test_an_unknown_variable_is_named_with_the_known_ones(
    variable: str, meant: str, tmp_path: Path
) -> None:
    error = refused(tmp_path, "", **{variable: "http://name:secret@127.0.0.1/"})
    assert error.message.startswith(f"{variable!r} in the environment: there is no index")
    assert meant in error.hint
    assert PYPI in error.hint
    assert "secret" not in error.message + error.hint


@pytest.mark.parametrize("name", [*SHIPPED, "debian", "debian-security"])
def test_known_indexes_can_be_set(name: str, tmp_path: Path) -> None:
    found = load(tmp_path, f"indexes: {{{name}: '{URL}'}}", **{indexes.variable(name): URL})
    assert found.configuration.indexes == {name: URL}


def test_an_empty_variable_sets_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, ENVBUILDER_INDEX_NOWHERE="").configuration == settings.Configuration()


@pytest.mark.parametrize(
    "profile",
    [
        "indexes: {torch: lab-wheels}",
        "conda: {channels: [conda-forge, lab-wheels]}",
        "extends: nothing\nrequirements: 1\nindexes: {torch: lab-wheels}",
    ],
)
@pytest.mark.parametrize("name", ["mine", "_base"])
def test_a_name_of_a_profile_of_the_user_can_be_set(
    profile: str, name: str, tmp_path: Path
) -> None:
    text = f"indexes:\n  lab-wheels: {URL}\n"
    assert "there is no index 'lab-wheels'" in refused(tmp_path, text).message
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "broken.yaml").write_text("a: [")
    (tmp_path / "profiles" / f"{name}.yaml").write_text(profile)
    assert load(tmp_path, text, ENVBUILDER_INDEX_LAB_WHEELS=URL).configuration.indexes


def test_a_channel_of_a_project_can_be_set(tmp_path: Path) -> None:
    text = f"requirements_from: [environment.yml]\nindexes:\n  lab: {URL}\n"
    (tmp_path / "environment.yml").write_text("channels: [lab]\ndependencies: [python")
    assert "there is no index 'lab'" in refused(tmp_path, text).message
    (tmp_path / "environment.yml").write_text("channels: [lab]\ndependencies: [tiny]\n")
    assert load(tmp_path, text, ENVBUILDER_INDEX_LAB=URL).configuration.indexes


@pytest.mark.parametrize(
    "profile", ["indexes: [a]", "indexes: 1", "conda: 1", "conda: {channels: lab}", "base: 1"]
)
def test_a_profile_with_other_types_names_nothing(profile: str, tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text(profile)
    refused(tmp_path, f"indexes: {{lab: '{URL}'}}")
    refused(tmp_path, "base_images: {lab: x}")


@given(st.text(max_size=300))
def test_any_other_name_is_refused_on_one_short_line(name: str) -> None:
    from envbuilder.packages import configured_names

    file = settings.File(where="f", text="", read=settings.Configuration(indexes={name: URL}))
    if name in {*SHIPPED, "debian", "debian-security"}:
        return
    with pytest.raises(InvalidError) as caught:
        configured_names.require([file], {}, ())
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 2500


def test_it_is_2_on_the_command_line_and_125_for_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILDER_INDEX_PYTORCH", URL)
    for arguments, code in ((["profiles"], 2), (["run", "--", "true"], 125)):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == code
        assert "there is no index 'pytorch'" in capsys.readouterr().err


# --- base images


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("python:3.11-slim-bookwurm", "python:3.11-slim-bookworm"),
        ("docker.io/library/python:3.11-slim-bookworm", "python:3.11-slim-bookworm"),
        (f"python:3.12-slim-bookworm@sha256:{'0' * 64}", "python:3.12-slim-bookworm"),
        ("zzz", ""),
    ],
)
def test_a_base_image_that_no_profile_has_is_refused(name: str, meant: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"base_images:\n  '{name}': mirror.example/base:1\n")
    assert error.message.startswith(f"{tmp_path}/envbuilder.yaml:2: base_images: no profile is")
    assert f"Did you mean '{meant}'?" in error.hint if meant else "Did you" not in error.hint
    assert "python:3.11-slim-bookworm" in error.hint


def test_base_images_of_profiles_and_of_their_locks_can_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "profiles" / "locks").mkdir(parents=True)
    base = "base: {'3.11': {ref: own/base:1}}"
    (tmp_path / "profiles" / "mine.yaml").write_text(base)
    lock = {"targets": [{"base": {"ref": "own/base:0"}}, {"base": None}, 1]}
    (tmp_path / "profiles" / "locks" / "mine.json").write_text(json.dumps(lock))
    (tmp_path / "profiles" / "locks" / "other.json").write_text("{")
    names = ("own/base:1", "own/base:0", "python:3.12-slim-bookworm", "debian:forky-slim")
    text = json.dumps({"base_images": dict.fromkeys(names, "mirror.example/base:1")})
    assert set(load(tmp_path, text).configuration.base_images) == set(names)


# --- registries


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mirrors:\n  https://docker.io: m.example", "mirrors: 'https://docker.io' is no"),
        (
            "mirrors:\n  docker.io/library: m.example",
            "'docker.io/library' is not a registry's host",
        ),
        ("mirrors:\n  dockerhub: m.example", "'dockerhub' is not a registry's host"),
        (
            "mirrors:\n  index.docker.io: m.example",
            "'index.docker.io' appears in no image reference",
        ),
        ("mirrors:\n  registry-1.docker.io: m.example", "appears in no image reference"),
        ("mirrors:\n  '': m.example", "'' is not a registry's host"),
        ("plain_http:\n- http://lab.example", "plain_http: 'http://lab.example' is no"),
        ("plain_http:\n- lab.example/path", "plain_http: 'lab.example/path' is not a registry's"),
        ("plain_http:\n- lab", "'lab' is not a registry's host"),
    ],
)
def test_a_host_that_no_reference_has_is_refused(text: str, message: str, tmp_path: Path) -> None:
    error = refused(tmp_path, text, "config.yaml")
    assert error.message.startswith(f"{tmp_path}/config.yaml:2: ")
    assert message in error.message


def test_a_mirror_that_is_no_place_is_refused_before_it_is_needed(tmp_path: Path) -> None:
    assert "begins with no registry's host" in refused(tmp_path, "mirrors: {quay.io: a/b}").message


def test_a_long_place_is_named_with_its_line_and_cut_short(tmp_path: Path) -> None:
    error = refused(tmp_path, f"mirrors:\n  quay.io: {'a/' * 9_000}b\n")
    assert error.message.startswith(f"{tmp_path}/envbuilder.yaml:2: mirrors: quay.io: 'a/a/")
    assert len(error.message) < 300


def test_a_line_is_only_looked_for_where_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing the file again for each of 40,000 mirrors would take hours."""
    monkeypatch.setattr(configured_names, "place", None)
    hosts = [f"m{number}.example" for number in range(3)]
    text = json.dumps({"mirrors": dict.fromkeys(hosts, "x.example"), "plain_http": hosts})
    load(tmp_path, text, "config.yaml")


def test_registries_can_be_named(tmp_path: Path) -> None:
    hosts = ("docker.io", "ghcr.io", "localhost", "localhost:5000", "127.0.0.1:5000", "[::1]:5000")
    text = json.dumps({"mirrors": dict.fromkeys(hosts, "m.example:5000/x"), "plain_http": hosts})
    assert load(tmp_path, text, "config.yaml").configuration.plain_http == hosts


# --- profiles


def test_a_project_cannot_name_a_profile_that_does_not_exist(tmp_path: Path) -> None:
    error = refused(tmp_path, "python: '3.11'\nprofile: zendn\n")
    assert error.message == (f"{tmp_path / 'envbuilder.yaml'}:2: profile: unknown profile 'zendn'")
    assert error.hint.startswith("Did you mean 'zendnn'? ")


def test_a_profile_of_some_projects_may_be_the_users_default(tmp_path: Path) -> None:
    loaded = load(tmp_path, "profile: mine\n", "config.yaml")
    assert loaded.configuration.profile == "mine"
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text("extends: cpu\n")
    assert load(tmp_path, "profile: mine\n").configuration.profile == "mine"


# --- builders


@pytest.mark.parametrize(
    ("key", "meant"),
    [("cudda", "'cuda'"), ("linux/arm46", "'linux/arm64'"), ("cuda@linux/arm", "'linux/arm64'")],
)
def test_a_builder_of_nothing_is_named_with_its_line(key: str, meant: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"builders:\n  zendnn: box\n  {key}: big-box\n")
    assert error.message.startswith(f"{tmp_path}/envbuilder.yaml:3: builders: '{key}': there is no")
    assert f"Did you mean {meant}?" in error.hint


def test_the_users_own_builders_may_be_for_profiles_of_some_projects(tmp_path: Path) -> None:
    text = "builders: {of-a-project: big-box, cuda@linux/arm64: arm-box}\n"
    builders = load(tmp_path, text, "config.yaml").configuration.builders
    assert builders == {"of-a-project": "big-box", "cuda@linux/arm64": "arm-box"}
    error = refused(tmp_path, "builders: {linux/arm46: x}\n", "config.yaml")
    assert "config.yaml:1: builders: 'linux/arm46'" in error.message


def test_a_projects_builders_go_before_the_users(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("builders: {cuda: mine, cpu: mine}\n")
    read = load(tmp_path, "builders: {cuda: theirs}\n")
    assert read.configuration.builders == {"cuda": "theirs", "cpu": "mine"}


@pytest.mark.parametrize("name", ["--push", "big box", "", "9box", "x" * 129])
def test_an_instance_has_a_name_that_buildx_takes(name: str, tmp_path: Path) -> None:
    error = refused(tmp_path, json.dumps({"builders": {"cuda": name}}))
    assert "builders.cuda: expected the name of a buildx instance" in error.message
