"""The builder `layers`: what it plans, what it needs, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.builds import plan
from envbuilder.builds.backends import docker
from envbuilder.builds.image import base as image_base
from envbuilder.builds.project_layer import ProjectLayer
from envbuilder.builds.request import Request
from envbuilder.containers.engine import connection
from envbuilder.containers.engine.interface import BuildCommand
from envbuilder.core import types
from envbuilder.core.errors import BuildError, InvalidError, ToolError
from envbuilder.core.settings import Configuration, Settings
from envbuilder.host.model import Host
from envbuilder.profiles import lock as lockfile
from tests.support import project_layers
from tests.support.command_line import Command
from tests.support.engines import BUILDAH, BUILDKIT, FakeEngine
from tests.support.images import image
from tests.support.pipeline import a_build
from tests.support.shipped import shipped_lock, shipped_profile

LOCK = shipped_lock("cpu")
TARGET = lockfile.select(LOCK, "linux/amd64", "3.11")
BASE = image_base.Base(ref="base:1", identity="sha256:" + "1" * 64, folder="/base")


def planned(
    found: Settings,
    name: str = "cpu",
    base: image_base.Base = BASE,
    build: BuildCommand | None = BUILDKIT,
    own: types.Platform | None = "linux/amd64",
    platform: str = "linux/amd64",
    project: ProjectLayer | None = None,
    **options: Any,
) -> plan.Plan:
    asked = a_build(found, name, request=Request(profile=name, **options))
    target = lockfile.select(asked.lock, platform, "3.11")
    return docker.plan_layers(asked, target, base, own, build, project)


def test_a_projects_files_are_in_the_plan_and_decide(found: Settings, tmp_path: Path) -> None:
    bare = planned(found)
    assert b'"project"' not in msgspec.json.encode(bare)
    project = project_layers.lay(tmp_path, {"a.py": b"1", "b.py": b"2"}, python_path=("src",))
    first = planned(found, project=project)
    assert plan.project_of(first) == project
    assert assembled(first).variables["PYTHONPATH"] == "/work/src"
    others = [
        project_layers.lay(tmp_path, {"a.py": b"1", "b.py": b"3"}, python_path=("src",)),
        replace(project, python_path=()),
        replace(project, command=("x",)),
        replace(project, ports=(1,)),
    ]
    prints = {planned(found, project=p).fingerprint for p in (None, project, *others)}
    assert len(prints) == 6
    moved = replace(project, folder="/elsewhere")
    assert planned(found, project=moved).fingerprint == first.fingerprint
    assert msgspec.json.decode(msgspec.json.encode(first), type=plan.Plan) == first


def assembled(made: plan.Plan) -> plan.Assemble:
    return next(s for s in made.steps if isinstance(s, plan.Assemble))


def test_everything_that_decides_changes_the_fingerprint(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned(found).fingerprint
    other = replace(BASE, identity="sha256:" + "2" * 64)
    assert planned(found, base=other).fingerprint != first
    assert planned(found, "zendnn").fingerprint != first
    moved = replace(BASE, ref="mirror/base:1", folder="/elsewhere")
    assert planned(found, base=moved).fingerprint == first, "the same base elsewhere"
    assert planned(found, tag="me/x:1", rebuild=True).fingerprint == first
    assert planned(found, output="/x.tar", build=None).fingerprint == first
    monkeypatch.setattr("envbuilder.containers.oci.layer._LEVEL", 4)
    assert planned(found).fingerprint != first


def test_packages_that_are_only_files_need_no_engine(found: Settings) -> None:
    made = planned(found, build=None, output="oci:/out")
    assert assembled(made).system is None
    assert {f.name for f in assembled(made).debs} == {"libtcmalloc-minimal4"}
    assert made.artifact == plan.Artifact(kind="layout", ref="/out")
    assert isinstance(made.steps[-1], plan.Save)


def test_only_an_engine_that_keeps_layers_as_they_came_gets_some_ahead(found: Settings) -> None:
    keeps = replace(BUILDKIT, keeps_blobs=True)
    made = planned(found, build=keeps)
    assert made.builder == "layers"
    assert assembled(made).ahead == f"envbuilder/ahead:{made.fingerprint[:12]}"
    last = made.steps[-1]
    assert isinstance(last, plan.Load)
    assert last.ahead == assembled(made).ahead
    assert last.ahead not in last.names
    for options in ({"output": "oci:/x"}, {"push": "host/x:1"}):
        assert not assembled(planned(found, build=keeps, **options)).ahead
    for other in (replace(BUILDKIT, keeps_blobs=False), BUILDAH):
        assert not assembled(planned(found, build=other)).ahead


def test_a_builder_that_writes_layouts_keeps_no_image_of_the_system_packages(
    found: Settings,
) -> None:
    build = replace(BUILDKIT, layout_argv=("docker", "--output", "type=oci,dest="))
    system = assembled(planned(found, "zendnn", build=build)).system
    (run,) = (step for step in system.steps if isinstance(step, plan.Run))
    assert run.argv[:2] == ("docker", "--output")
    assert run.argv[2] == f"type=oci,dest={system.exported}"
    assert "--tag" not in run.argv
    assert system.ref == ""


def test_packages_with_scripts_are_installed_by_an_engine(found: Settings) -> None:
    system = assembled(planned(found, "zendnn")).system
    write, run = system.steps[1:]
    assert isinstance(write, plan.Write)
    assert "dpkg --install" in write.text
    assert "pip download" not in write.text
    assert isinstance(run, plan.Run)
    assert "BASE_IMAGE=base:1" in run.argv
    assert system.ref in run.argv
    on_disk = replace(BASE, ref="oci:/base")
    for options in ({"build": None}, {"base": on_disk}):
        with pytest.raises(ToolError, match="run scripts during installation"):
            planned(found, "zendnn", **options)


def test_a_new_envbuilder_does_not_install_the_packages_again(found: Settings) -> None:
    """The stage's text decides, not the wheels, the payload or the profile's later layers."""
    one, other = (assembled(planned(found, "zendnn", tag=t)).system for t in (None, "a:1"))
    assert one.recipe == other.recipe


@pytest.mark.parametrize("own", types.PLATFORMS)
@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm64"])
def test_the_uv_of_the_machine_that_builds_is_fetched_and_installs(
    found: Settings, own: types.Platform, platform: str
) -> None:
    """A Mac makes an image for Linux, and nothing is asked of what is installed there."""
    made = planned(found, own=own, platform=platform)
    uv = LOCK.tools[own]
    assert assembled(made).uv == uv
    assert [f for f in made.files if f.kind == "tool"] == [uv]
    assert assembled(made).platform == platform
    assert made.fingerprint == planned(found, own="linux/amd64", platform=platform).fingerprint


def test_a_machine_without_a_locked_uv_is_refused_before_an_engine_is_asked(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Intel Mac, say."""
    monkeypatch.setattr(docker, "own_platform", lambda: None)
    monkeypatch.setattr(connection, "connect", lambda: pytest.fail("an engine was asked"))
    profile = shipped_profile("cpu")
    here = Host(os="darwin", machine="x86_64", platform=None)
    request = Request(profile="cpu", builder="layers")
    with pytest.raises(ToolError, match="not for this machine") as caught:
        docker.prepare(a_build(found, profile, LOCK, host=here, request=request))
    assert caught.value.exit_code == 4
    assert "--builder buildkit" in caught.value.hint
    assert why_not() == "the lock has no uv for this machine"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"builder": "layers"}, True),
        ({"output": "oci:/x"}, True),
        ({"base_image": "oci:/x"}, True),
        ({"base_image": "/x.tar"}, True),
        ({"push": "ghcr.io/me/cpu:1"}, True),
        ({"builder": "buildkit"}, False),
    ],
)
def test_what_asks_for_layers(options: dict[str, Any], wanted: bool) -> None:
    assert docker.needs_layers(Request(**options)) == wanted


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"output": "oci:/x"}, ""),
        ({"base_image": "/x.tar"}, ""),
        ({"push": "ghcr.io/me/cpu:1"}, "--push "),
    ],
)
def test_buildkit_cannot_do_what_only_layers_can(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidError, match=f"{what}requires the builder layers"):
        docker.needs_layers(Request(builder="buildkit", **options))


def test_a_base_on_disk_needs_no_engine(found: Settings, tmp_path: Path) -> None:
    layout = image(tmp_path / "base")
    request = Request(base_image=f"oci:{layout.folder}", output="oci:/x")
    base = image_base.find(TARGET, None, request, found, scripts=False)
    assert base.identity == layout.manifest("linux/amd64").config.digest
    assert base.folder == str(layout.folder)


def test_a_configured_base_is_taken(found: Settings) -> None:
    configured = Configuration(base_images={TARGET.base.ref: "base:1"})
    there = replace(found, configuration=configured)
    request = Request(dry_run=True, output="oci:/x")
    assert image_base.find(TARGET, None, request, there, scripts=False).ref == "base:1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "folder"], "neither oci:DIR nor FILE.tar"),
        (["--output", "oci:"], "neither oci:DIR nor FILE.tar"),
        (["--base-image", "oci:none"], "does not exist"),
        (["--base-image", "none.tar"], "does not exist"),
        (["--builder", "other"], "is not one of"),
    ],
)
def test_arguments_are_checked_first(arguments: list[str], said: str, envbuilder: Command) -> None:
    assert said in envbuilder("build", "--profile", "cpu", *arguments, code=2).err


def test_a_base_named_by_digest_is_pulled_where_the_engine_lacks_it(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(ref: str, platform: str) -> None:
        raise BuildError(f"{ref}: cannot be pulled for {platform}: unauthorized")

    engine = FakeEngine()
    monkeypatch.setattr(engine, "pull_name", lambda ref: f"docker.io/{ref}")
    monkeypatch.setattr(engine, "pull", pull)
    request = Request(base_image=f"me/x@sha256:{'1' * 64}")
    with pytest.raises(BuildError, match=r"docker.io/me/x@sha256:1.*linux/amd64: unauthorized"):
        image_base.find(TARGET, engine, request, found, scripts=False)


def why_not(
    name: str = "cpu",
    build: BuildCommand = BUILDKIT,
    platform: str = "linux/amd64",
    **changes: Any,
) -> str:
    profile = shipped_profile(name)
    lock = shipped_lock(name)
    target = lockfile.select(lock, platform, "3.11")
    return docker.unsuitable(build, profile, replace(target, **changes))


def test_it_is_the_default_where_it_can_make_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "own_platform", lambda: "linux/amd64")
    assert why_not() == ""
    assert why_not("zendnn") == ""
    old = replace(BUILDKIT, docker_version="24.0.9", exports_layouts=False)
    assert "Docker 24.0.9 cannot export" in why_not(build=old)
    assert why_not(build=BUILDAH) == ""
    assert why_not(platform="linux/arm64") == "compiling modules requires linux/arm64"


def test_scripts_of_another_platform_are_left_to_an_engine_that_can_run_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docker, "own_platform", lambda: "linux/arm64")
    assert "run scripts, which requires linux/amd64" in why_not("zendnn")
    assert "run scripts" not in why_not("cpu")
    assert "run scripts" in why_not("cpu", system_packages={"libgomp1": ("lightgbm",)})
