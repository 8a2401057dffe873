"""Settings: whose folders are used, which store is shared, and whose signatures are required."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from envbuilder.core import decoding, files, settings, yaml_files
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Settings


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def shared(project: Path, text: str = "", config: str = "", **variables: str) -> Path | None:
    (project / "envbuilder.yaml").write_text(text)
    (project / "config").mkdir(exist_ok=True)
    (project / "config/config.yaml").write_text(config)
    environ = {"ENVBUILDER_CONFIG_DIR": str(project / "config"), **variables}
    return settings.load(environ, project).shared_store


def test_the_shared_store_is_named_by_a_variable_or_a_file(project: Path) -> None:
    assert shared(project) is None
    assert str(shared(project, config="shared_store: /srv/user")) == "/srv/user"
    both = shared(project, "shared_store: /srv/project", "shared_store: /srv/user")
    assert str(both) == "/srv/project"
    named = shared(project, "shared_store: /srv/project", ENVBUILDER_SHARED_STORE="/srv/variable")
    assert str(named) == "/srv/variable"


def test_an_empty_variable_means_no_shared_store(project: Path) -> None:
    assert shared(project, "shared_store: /srv/project", ENVBUILDER_SHARED_STORE="") is None


def test_a_relative_path_is_refused_by_its_place(project: Path) -> None:
    with pytest.raises(InvalidError, match=r"ENVBUILDER_SHARED_STORE: 'srv' is not an absolute"):
        shared(project, ENVBUILDER_SHARED_STORE="srv")
    with pytest.raises(InvalidError, match=r"envbuilder\.yaml:1: shared_store: './x' is not an"):
        shared(project, "shared_store: ./x", "shared_store: /srv/user")


def test_folders_of_ours_are_private(found: Settings) -> None:
    before = os.umask(0)
    try:
        made = settings.require_writable(found.store_dir)
        settings.require_writable(found.records_dir)
    finally:
        os.umask(before)
    folders = (made, found.cache_dir, found.records_dir, found.data_dir)
    assert {stat.S_IMODE(f.stat().st_mode) for f in folders} == {0o700}


@pytest.mark.parametrize("name", ["store", "bases", "layers", "datasets"])
def test_a_cache_that_others_can_write_is_refused(found: Settings, name: str) -> None:
    settings.require_own(found)
    folder = found.cache_dir / name
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    with pytest.raises(
        InvalidError, match=rf"{name} cannot be used: .* is writable by every user"
    ) as caught:
        settings.require_own(found)
    assert f"{files.TRUSTED_VARIABLE}={folder.parent}" in caught.value.hint
    with pytest.raises(InvalidError, match="is writable by every user"):
        settings.require_writable(folder)
    folder.chmod(0o755)
    settings.require_own(found)


def test_a_link_to_a_larger_disk_is_followed(found: Settings, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    found.cache_dir.symlink_to(disk)
    assert settings.require_writable(found.store_dir).is_dir()
    assert (disk / "store").is_dir()
    (tmp_path / "data").symlink_to(tmp_path / "gone")
    with pytest.raises(InvalidError, match="cannot be created"):
        settings.require_writable(replace(found).envs_dir)


INLINE = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"


def read(tmp_path: Path, user: str = "", project: str = "") -> settings.Signatures:
    for name, text in (("user/config.yaml", user), ("project/envbuilder.yaml", project)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    environ = {"ENVBUILDER_CONFIG_DIR": str(tmp_path / "user")}
    return settings.load(environ, tmp_path / "project").configuration.signatures


def test_paths_of_keys_are_relative_to_their_file(tmp_path: Path) -> None:
    text = "signatures:\n  locks: [keys/a.pub, /b.pub, " + repr(INLINE)[1:-1].join('""')
    signatures = read(tmp_path, project=text + "]\n")
    assert signatures.locks == (str(tmp_path / "project/keys/a.pub"), "/b.pub", INLINE)
    assert signatures.bundles is None


def test_a_project_cannot_lift_what_the_user_requires(tmp_path: Path) -> None:
    signatures = read(
        tmp_path,
        user="signatures: {locks: [mine.pub]}\n",
        project="signatures: {locks: [theirs.pub], bundles: [theirs.pub]}\n",
    )
    assert signatures.locks == (str(tmp_path / "user/mine.pub"),)
    assert signatures.bundles == (str(tmp_path / "project/theirs.pub"),)
    signatures = read(tmp_path, user="signatures: {locks: [mine.pub]}\n", project="profile: cpu\n")
    assert signatures.locks == (str(tmp_path / "user/mine.pub"),)


@pytest.mark.parametrize(
    "value", ["[]", "{lock: [a]}", "{locks: []}", "{locks: a.pub}", "{locks: [1]}"]
)
def test_an_empty_or_misspelt_policy_is_an_error(tmp_path: Path, value: str) -> None:
    """Otherwise nothing would be required, in silence."""
    with pytest.raises(InvalidError, match="signatures"):
        read(tmp_path, project=f"signatures: {value}\n")


@pytest.mark.parametrize("file", ["user", "project"])
def test_required_signatures_of_images_are_refused_and_never_ignored(
    tmp_path: Path, file: str
) -> None:
    text = "signatures:\n  locks: [a.pub]\n  images: [a.pub]\n"
    with pytest.raises(InvalidError, match=r"yaml:3: signatures\.images: "):
        read(tmp_path, **{file: text})


HTTP = "http://mirror.example/whl"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("plain_http", "profile: cpu\nplain_http: [ghcr.io]\n"),
        ("plain_http", "profile: cpu\nplain_http: []\n"),
        ("indexes.pytorch-cpu", f"profile: cpu\nindexes: {{pytorch-cpu: '{HTTP}'}}\n"),
    ],
)
def test_a_project_cannot_have_logins_sent_unencrypted(key: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=rf"envbuilder\.yaml:2: {key}: ") as refused:
        read(tmp_path, project=text)
    assert "config.yaml in your configuration folder" in refused.value.hint
    read(tmp_path, user=text)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:8080"])
def test_a_project_may_name_a_server_of_this_machine(host: str, tmp_path: Path) -> None:
    read(tmp_path, project=f"indexes: {{pytorch-cpu: 'http://{host}/whl'}}\n")


def configured(folder: Path, user: str, project: str = "") -> settings.Configuration:
    (folder / "config.yaml").write_text(user)
    (folder / "envbuilder.yaml").write_text(project)
    return settings.load({"ENVBUILDER_CONFIG_DIR": str(folder)}, folder).configuration


@pytest.mark.parametrize(
    "text",
    [
        "mirrors:\n  https://docker.io: m.example",
        "mirrors:\n  dockerhub: m.example",
        "mirrors:\n  registry-1.docker.io: m.example",
        "plain_http:\n- http://lab.example",
        "plain_http:\n- lab",
        "indexes:\n  pytorch_cpu: https://mirror.example/simple",
    ],
)
def test_a_name_that_nothing_can_have_is_refused_by_its_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError) as caught:
        configured(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path}/config.yaml:2: {text.partition(':')[0]}")


def test_names_of_registries(tmp_path: Path) -> None:
    hosts = ("docker.io", "ghcr.io", "localhost", "localhost:5000", "127.0.0.1:5000", "[::1]:5000")
    text = {"mirrors": dict.fromkeys(hosts, "m.example/x"), "plain_http": hosts}
    read = configured(tmp_path, json.dumps(text))
    assert tuple(read.mirrors) == hosts
    assert read.plain_http == hosts


def test_a_projects_base_images_go_before_the_users(tmp_path: Path) -> None:
    read = configured(tmp_path, "base_images: {a: mine, b: mine}", "base_images: {a: theirs}")
    assert read.base_images == {"a": "theirs", "b": "mine"}


class Cache:
    """A project whose parsed file is cached in a folder of the store."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = root / "envbuilder.yaml"
        self.folder = root / "cache/store/derived"
        self.folder.mkdir(parents=True)
        self.parser = Mock(side_effect=yaml_files.load)
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        monkeypatch.setattr(yaml_files, "load", self.parser)
        monkeypatch.setattr(decoding, "LINES", {})

    def load(self, text: str) -> Settings:
        self.file.write_text(text)
        folder = self.file.parent
        environ = {
            "ENVBUILDER_CONFIG_DIR": str(folder / "config"),
            "ENVBUILDER_CACHE_DIR": str(folder / "cache"),
        }
        return settings.load(environ, folder)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return Cache(tmp_path, monkeypatch)


def test_a_projects_file_is_parsed_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# a comment\nprofiles: [cpu]\nrequirements:\n  - rich\n"
    first = cache.load(text)
    monkeypatch.setattr(yaml_files, "lines", Mock(side_effect=AssertionError))
    assert cache.load(text) == first
    assert cache.parser.call_count == 1
    assert decoding.place("f", text, ["requirements", "0"]) == "f:4"
    (copy,) = cache.folder.iterdir()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", [b"", b"{", b'{"of": 1}'])
def test_another_text_and_a_damaged_copy_are_parsed_again(cache: Cache, damage: bytes) -> None:
    cache.load("profiles: [cpu]\n")
    definition = cache.load("profiles: [cuda]\n").definition
    assert definition
    assert definition.profiles == ("cuda",)
    (copy,) = cache.folder.iterdir()
    copy.write_bytes(damage)
    assert cache.load("profiles: [cuda]\n").definition == definition


def test_a_mistake_is_reported_each_time(cache: Cache) -> None:
    """JSON turns days into text, which would hide the mistake."""
    for _ in range(2):
        with pytest.raises(InvalidError, match=r"yaml:2: python: expected text, found date"):
            cache.load("profiles: [cpu]\npython: 2026-11-22\n")


def test_others_decide_nothing(cache: Cache) -> None:
    cache.folder.parent.chmod(0o777)
    for _ in range(2):
        cache.load("profiles: [cpu]\n")
    assert cache.parser.call_count == 2
    assert not [*cache.folder.iterdir()]
