"""Docker's own answers, options and failures, with a client of its SDK that is none."""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from docker.errors import APIError, ImageNotFound, NotFound
from docker.tls import TLSConfig
from msgspec.structs import replace
from requests import ReadTimeout

from envbuilder.containers.engine.container import Container, Devices, Limits, Volume
from envbuilder.containers.engine.docker import DockerEngine
from envbuilder.containers.engine.interface import VOLUME_LABEL, Endpoint, Image, StoredVolume
from envbuilder.core import process
from envbuilder.core.errors import BuildError, InvalidError, ToolError
from tests.support import debs
from tests.support.engines import BARE
from tests.unit.containers.engine.conftest import Programs, started

LIMIT = 1 << 20


HERE = Endpoint(url="unix:///x")
THERE = Endpoint(url="tcp://there:2375", flags=("--host", "tcp://there:2375"))


def engine(version: str = "26.1.5", endpoint: Endpoint = HERE, **client: Any) -> DockerEngine:
    sdk: Any = SimpleNamespace(close=lambda: None, **{"api": None, **client})
    return DockerEngine(sdk, version, endpoint)


@pytest.mark.parametrize(
    ("status", "keeps"),
    [([["driver-type", "io.containerd.snapshotter.v1"]], True), ([["Backing", "ext"]], False)],
)
def test_the_containerd_store_keeps_layers_as_they_came(
    status: list[list[str]], keeps: bool
) -> None:
    build = engine(info=lambda: {"DriverStatus": status}).build_command
    assert build.keeps_blobs is keeps
    assert ("compression=zstd" in " ".join(build.argv)) is keeps
    assert [word[-5:] for word in build.layout_argv[-1:]] == (["dest="] if keeps else [])


def test_a_build_goes_to_the_endpoint() -> None:
    info = {"DockerRootDir": "/var/lib/docker"}
    build = engine("24.0.9", THERE, info=lambda: info).build_command
    assert build.argv[:5] == ("docker", *THERE.flags, "buildx", "build")
    assert build.version_argv == ("docker", *THERE.flags, "buildx", "inspect", "default")
    assert (build.docker_version, build.exports_layouts) == ("24.0.9", False)
    assert build.storage == "", "on another machine"
    here = engine(info=lambda: info).build_command
    assert here.storage == "/var/lib/docker"
    assert here.exports_layouts


@pytest.mark.parametrize(
    ("endpoint", "socket"), [(HERE, Path("/x")), (THERE, None)], ids=["here", "there"]
)
def test_its_socket_is_known_if_it_is_on_this_machine(
    endpoint: Endpoint, socket: Path | None
) -> None:
    assert engine(endpoint=endpoint).socket == socket


def test_an_image_gets_a_further_name() -> None:
    named = list[tuple[str, ...]]()
    image = Image(id="sha256:1", tags=(), labels={})
    there = engine(api=SimpleNamespace(tag=lambda *words: named.append(words)))
    for name in ("me/x", "host:5000/x:1"):
        there.tag(image, name)
    assert named == [("sha256:1", "me/x", None), ("sha256:1", "host:5000/x", "1")]

    with pytest.raises(BuildError, match="the engine cannot tag sha256:1 as x:1: No such image"):
        engine(
            api=SimpleNamespace(tag=MagicMock(side_effect=NotFound("No such image: sha256:1")))
        ).tag(image, "x:1")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (APIError("conflict", explanation="it is used by a container"), "used by a container"),
        (ReadTimeout("Read timed out."), "Read timed out"),
    ],
)
def test_an_image_that_cannot_be_removed_is_1(error: Exception, said: str) -> None:
    def remove(ref: str, *, noprune: bool) -> None:
        assert noprune, "Docker's walk over parents may never end"
        assert api.timeout == 600, "it waits for running builds"
        raise error

    api = SimpleNamespace(remove_image=remove, timeout=60)
    with pytest.raises(BuildError, match=f"x:1: cannot be removed: .*{said}"):
        engine(api=api).remove("x:1")
    assert api.timeout == 60


@pytest.mark.parametrize("ref", ["x:1", "sha256:" + "1" * 64])
def test_an_image_is_what_docker_says_of_it(ref: str) -> None:
    def inspect(asked: str) -> dict[str, Any]:
        if asked != ref:
            raise ImageNotFound(asked)
        config = {"Labels": {"a": "b"}, "Env": ["PATH=/bin"]}
        return {"Id": "sha256:1", "RepoTags": ["x:1", "<none>:<none>"], "Config": config}

    found = engine(api=SimpleNamespace(inspect_image=inspect))
    assert found.image(ref) == Image(id="sha256:1", tags=("x:1",), labels={"a": "b"})
    assert found.variables(ref) == ("PATH=/bin",)
    assert found.image("y:1") is None
    assert found.variables("y:1") == ()


def test_labelled_images_come_once_and_in_order() -> None:
    listed = [
        {"Id": "sha256:2", "RepoTags": None, "Labels": None},
        {"Id": "sha256:1", "RepoTags": ["<none>:<none>"], "Labels": {"a": "b"}},
        {"Id": "sha256:2", "RepoTags": ["x:1"]},
    ]
    found = engine(api=SimpleNamespace(images=lambda filters: listed)).labelled()
    assert [i.id for i in found] == ["sha256:1", "sha256:2"]
    assert [i.tags for i in found] == [(), ("x:1",)]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ([], ["--user", "7:8"]),
        (["name=seccomp,profile=builtin", "name=cgroupns"], ["--user", "7:8"]),
        (["name=userns"], ["--user", "7:8", "--userns", "host"]),
        (["name=seccomp,profile=builtin", "name=rootless"], ["--user", "0:0"]),
    ],
)
def test_a_projects_user_is_the_hosts_however_docker_maps_users(
    options: list[str], flags: list[str]
) -> None:
    docker_engine = engine(info=lambda: {"SecurityOptions": options})
    made = replace(BARE, user="7:8", project=("/p", "/work"))
    argv = docker_engine.run_command(made, terminal=False)
    start = argv.index("--user")
    assert list(argv[start : start + len(flags)]) == flags
    assert ("--userns" in argv) == ("--userns" in flags)
    assert argv[-1] == "x:1"


@pytest.mark.parametrize(
    ("gpus", "flags"),
    [("", set()), ("all", {"--gpus", "all"}), ("device=0", {"--gpus", "device=0"})],
)
def test_gpus_are_named_as_docker_names_them(gpus: str, flags: set[str]) -> None:
    devices = Devices(gpus=gpus, shm_size="1g")
    made = replace(BARE, devices=devices)
    argv = set(engine().run_command(made, terminal=True))
    assert {"--gpus", "all", "device=0"} & argv == flags
    assert "--tty" in argv


@pytest.mark.parametrize(
    ("info", "limits"),
    [
        (
            {"MemTotal": 8 << 30, "NCPU": 4, "MemoryLimit": True, "PidsLimit": True},
            Limits(memory=15 << 29, processes=4096),
        ),
        ({"MemTotal": 8 << 30, "NCPU": 4, "MemoryLimit": False, "PidsLimit": False}, Limits()),
    ],
)
def test_limits_are_those_that_docker_can_set(info: dict[str, Any], limits: Limits) -> None:
    assert engine(info=lambda: info).limits == limits


@pytest.mark.parametrize(
    ("info", "names"),
    [
        ({}, set()),
        (
            {
                "DiscoveredDevices": [
                    {"Source": "cdi", "ID": "amd.com/gpu=all"},
                    {"Source": "other", "ID": "amd.com/gpu=0"},
                ]
            },
            {"amd.com/gpu=all"},
        ),
    ],
)
def test_docker_lists_its_cdi_devices(info: dict[str, Any], names: set[str]) -> None:
    assert engine(info=lambda: info).cdi_devices() == names


def test_earlier_versions_of_docker_only_name_their_folders(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: all\n")
    info = {"CDISpecDirs": [str(tmp_path), "/nonexistent"]}
    assert engine(info=lambda: info).cdi_devices() == {"nvidia.com/gpu=all"}
    listed = info | {"DiscoveredDevices": []}
    assert engine(info=lambda: listed).cdi_devices() == set()
    remote = engine(endpoint=THERE, info=lambda: info)
    assert remote.cdi_devices() == set(), "its files are on another machine"


def test_the_client_adds_nothing_of_its_own_settings_to_a_verification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its configuration may hold proxies, and lead it elsewhere."""
    monkeypatch.setattr(process, "which", lambda program: f"/usr/bin/{program}")
    calls = started(monkeypatch)
    home = replace(BARE, user="1000:1001", home="/home/env")
    tls = TLSConfig(client_cert=(__file__, __file__), ca_cert=__file__, verify=True)
    there = engine(endpoint=Endpoint(url="tcp://there:2376", tls=tls, builder="a"))
    for used, flags in (
        (engine(), ["--host", "unix:///x", "run"]),
        (
            there,
            [
                "--host",
                "tcp://there:2376",
                "--tlsverify",
                "--tlscacert",
                __file__,
                "--tlscert",
                __file__,
                "--tlskey",
                __file__,
                "run",
            ],
        ),
    ):
        used.run(home, print, 60)
        (argv, options), (removal, _) = calls
        calls.clear()
        assert list(argv[1 : 1 + len(flags)]) == flags
        assert "/home/env:uid=1000,gid=1001" in argv
        assert options["env"] == {
            "DOCKER_CONFIG": str(options["cwd"]),
            "DOCKER_TLS": "",
            "DOCKER_TLS_VERIFY": "",
        }
        assert removal[:3] == ["docker", "rm", "--force"]
    monkeypatch.setattr(process, "which", lambda program: None)
    with pytest.raises(ToolError, match="the docker client is not on PATH"):
        engine().run(home, print, 60)


def api_with(answers: Any) -> MagicMock:
    """Docker's interface, with one image, and these answers of `get_archive` by path."""
    api = MagicMock()
    api.inspect_image.return_value = {"Id": "sha256:1", "Os": "linux", "Architecture": "amd64"}
    api.get_archive.side_effect = answers
    return api


def packed(files: dict[str, bytes]) -> tuple[list[bytes], dict[str, str]]:
    data = debs.tar(files)
    return [data[:700], data[700:]], {}


def files(api: MagicMock, platform: str = "linux/amd64", limit: int = LIMIT) -> Any:
    found = engine(api=api).files("base:1", platform, ["a/file", "a/folder", "a/none"], limit)
    assert api.remove_container.call_count == api.create_container.call_count
    return found


def test_files_of_an_image_are_read_and_nothing_is_left() -> None:
    folder = packed({"folder/x": b"2", "folder/y": b"3"})
    found = files(api_with([packed({"file": b"1"}), folder, NotFound("a/none")]))
    assert {posixpath.normpath(path): data for path, data in found.items()} == {
        "a/file": b"1", "a/folder/x": b"2", "a/folder/y": b"3"
    }  # fmt: skip


def test_files_of_another_image_or_platform_are_none() -> None:
    assert files(api_with([]), platform="linux/arm64") is None
    api = api_with([])
    api.inspect_image.side_effect = ImageNotFound("base:1")
    assert files(api) is None


@pytest.mark.parametrize(
    ("limit", "answer", "kind", "said"),
    [
        (LIMIT, APIError("gone"), ToolError, "the engine does not answer: gone"),
        (LIMIT, ReadTimeout("Read timed out."), ToolError, "the engine does not answer: Read"),
        (LIMIT, ([b"x" * 2048], {}), ToolError, "a damaged archive of /a/file"),
        (99, ([b"x" * 100], {}), InvalidError, "/a/file is larger than the limit of 99 bytes"),
    ],
)
def test_files_that_cannot_be_read_leave_no_container(
    limit: int, answer: Any, kind: type[Exception], said: str
) -> None:
    api = api_with([answer])
    with pytest.raises(kind, match=said):
        files(api, limit=limit)
    api.remove_container.assert_called_once()


@pytest.fixture
def require(programs: Programs) -> Callable[..., None]:
    def check(text: str | None = None, code: int = 0) -> None:
        programs.clear()
        if text is not None:
            programs["docker buildx version"] = (code, text, "")
        engine().require_builder()

    return check


def test_a_client_without_a_recent_buildx_is_4(require: Callable[..., None]) -> None:
    require("github.com/docker/buildx v0.13.1+ds1 1.13.1\n")
    for arguments, said in (
        ((), "the docker client is not on PATH"),
        (("", 1), "has no buildx plugin"),
        (("github.com/docker/buildx v0.8.2 abc\n",), r"buildx v0\.8\.2 is too old"),
        (("buildx\n",), r"buildx \(unknown\) is too old"),
    ):
        with pytest.raises(ToolError, match=said) as caught:
            require(*arguments)
        assert "docker-buildx" in caught.value.hint


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (APIError("400 Client Error", explanation="invalid reference format"), "400 Client Error"),
        (ReadTimeout("Read timed out."), "Read timed out"),
    ],
)
def test_an_engine_that_fails_to_look_for_an_image_is_4(error: Exception, said: str) -> None:
    failing = engine(api=SimpleNamespace(inspect_image=MagicMock(side_effect=error)))
    for ask in (failing.image, failing.variables):
        with pytest.raises(ToolError, match=f"the engine cannot inspect x:1: {said}"):
            ask("x:1")


def test_an_image_s_own_share_is_what_no_other_image_has() -> None:
    images = [
        {"Id": "sha256:a", "Size": 100, "SharedSize": 60},
        {"Id": "sha256:b", "Size": 100, "SharedSize": -1},
        {"Id": "sha256:c"},
    ]
    api = SimpleNamespace(df=lambda: {"Images": images})
    assert engine(api=api).shares() == {"sha256:a": 40}
    assert engine(api=SimpleNamespace(df=lambda: {"Images": None})).shares() == {}


LABELS = {VOLUME_LABEL: "1000"}


VOLUME = Container(
    image="sha256:1",
    user="1000:1001",
    limits=Limits(),
    project=("/p", "/work"),
    volumes=(Volume(source="v", target="/data"), Volume(source="/folder", target="/folder")),
)


def test_the_images_of_running_containers_are_used() -> None:
    api = MagicMock()
    api.containers.return_value = [{"ImageID": "sha256:1"}, {"ImageID": "sha256:2"}]
    assert engine(api=api).used() == {"sha256:1", "sha256:2"}
    api.containers.side_effect = APIError("it is broken")
    with pytest.raises(ToolError, match="cannot list its containers: it is broken"):
        engine(api=api).used()


def test_a_volume_is_made_once_as_its_users_own() -> None:
    api = MagicMock()
    api.inspect_volume.side_effect = [NotFound("no such volume"), {}]
    api.volumes.return_value = {"Volumes": [{"Name": "v", "Labels": LABELS}]}
    made = engine(api=api, info=lambda: {"SecurityOptions": ["name=userns"]})
    for _ in range(2):
        made.make_volumes(VOLUME, LABELS)
    api.create_volume.assert_called_once_with("v", labels=LABELS)
    (mount,) = api.create_host_config.call_args.kwargs["mounts"]
    assert (mount["Source"], mount["Target"]) == ("v", "/volume")
    assert api.create_host_config.call_args.kwargs["userns_mode"] == "host"
    _, path, data = api.put_archive.call_args.args
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        (folder,) = archive.getmembers()
    assert (path, folder.name, folder.isdir(), folder.mode) == ("/", "volume", True, 0o700)
    assert (folder.uid, folder.gid) == (1000, 1001)
    api.remove_container.assert_called_once()
    api.remove_volume.assert_not_called()
    assert made.volumes() == (StoredVolume(name="v", labels=LABELS),)


def test_a_half_made_volume_is_not_left_behind() -> None:
    api = MagicMock()
    api.inspect_volume.side_effect = NotFound("no such volume")
    api.put_archive.side_effect = APIError("no space")
    made = engine(api=api, info=dict)
    with pytest.raises(ToolError, match="cannot create the volume v: no space"):
        made.make_volumes(VOLUME, LABELS)
    api.remove_container.assert_called_once()
    api.remove_volume.assert_called_once_with("v")
    api.remove_volume.side_effect = APIError("conflict", explanation="volume is in use")
    with pytest.raises(BuildError, match="v: cannot be removed: volume is in use"):
        made.remove_volume("v")
