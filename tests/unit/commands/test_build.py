"""`build --profile A,B`: what is refused, printed and returned."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from envbuilder.builds import pipeline
from envbuilder.builds.plan import Artifact, BuildResult
from envbuilder.builds.request import Request
from envbuilder.core.errors import BuildError, EnvbuilderError, HostError
from tests.support.command_line import Command

LONG = "/home/somebody/.local/share/envbuilder/envs/" + "zendnn-" * 20


def result(profile: str, status: str = "built", ref: str = "envbuilder/x:1") -> BuildResult:
    return BuildResult(
        status=status,
        profile=profile,
        backend="docker",
        builder="layers",
        artifact=Artifact(kind="image", ref=ref),
        fingerprint="0" * 64,
        seconds=12.34 if status == "built" else 0.0,
    )


class Profile(NamedTuple):
    """What happens to a profile's build."""

    result: BuildResult
    planning: EnvbuilderError | None = None
    building: EnvbuilderError | None = None


PROFILES = {
    "cpu": Profile(result("cpu", "reused")),
    "zendnn": Profile(result("zendnn", ref=LONG)),
    "rocm": Profile(
        result("rocm"),
        building=BuildError("wrong hash\nof a\x1b[31m wheel", "Run it again."),
    ),
    "cuda": Profile(result("cuda"), planning=HostError("no GPU: " + "x" * 500)),
}
ALL = ("build", "--profile", ",".join(PROFILES))


def prepare(request: Request, settings: Any, progress: Any, *, running: bool) -> Any:
    profile = PROFILES[str(request.profile)]
    progress.note("is planned")
    if profile.planning:
        raise profile.planning
    plan = {"profile": request.profile}
    return SimpleNamespace(backend="docker", plan=plan, request=request)


def finish(build: Any) -> Any:
    profile = PROFILES[build.request.profile]
    if profile.building:
        raise profile.building
    return SimpleNamespace(result=profile.result)


@pytest.fixture(autouse=True)
def building(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds go as above."""
    monkeypatch.setattr(pipeline, "prepare", prepare)
    monkeypatch.setattr(pipeline, "finish", finish)


def test_one_table_and_each_error_in_full(envbuilder: Command) -> None:
    # The host is checked before anything is built.
    _, out, err = envbuilder(*ALL, code=3)
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["profile", "status", "backend", "seconds", "result"]
    assert lines[1].split() == ["cpu", "reused", "docker", "0.0", "envbuilder/x:1"]
    assert "12.3" in out
    assert "failed" in out
    assert "wrong hash" in out
    assert "\x1b" not in out + err
    assert "error: rocm: wrong hash\n  of a" in err
    assert "error: cuda: no GPU" in err
    assert "Run it again." in err
    assert len(err) > 500
    assert "cpu: is planned" in err


def test_as_json_each_build_is_an_object(envbuilder: Command) -> None:
    data = json.loads(envbuilder(*ALL, "--json", code=3).out)
    assert data["schema"] == 1
    assert [build["status"] for build in data["builds"]] == ["reused", "built", "failed", "failed"]
    rocm, cuda = data["builds"][2:]
    assert (rocm["backend"], rocm["error"]["exit_code"]) == ("docker", 1)
    assert rocm["error"]["hint"] == "Run it again."
    assert ("backend" in cuda, cuda["error"]["exit_code"]) == (False, 3)


def test_a_dry_run_prints_the_plans_that_there_are(
    envbuilder: Command,
) -> None:
    plans = json.loads(envbuilder(*ALL, "--dry-run", code=3).out)["plans"]
    assert [plan["profile"] for plan in plans] == ["cpu", "zendnn", "rocm"]


def test_the_exit_code_is_0_if_all_are_built_and_that_of_the_failure_if_one_is_not(
    envbuilder: Command,
) -> None:
    envbuilder("build", "--profile", "cpu,zendnn")
    envbuilder("build", "--profile", "cpu,rocm", code=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "--profile", "cpu,cpu"], "names cpu twice"),
        (["build", "--profile", "cpu,,cuda"], "has an empty name"),
        (["build", "--profile", ""], "has an empty name"),
        (["build", "--profile", "cpu,cuda", "--tag", "me/x"], "envbuilder build --profile cpu --"),
        (
            ["build", "--profile", "cpu,cuda", "--output", "x.tar"],
            "--output applies to a single image",
        ),
        (
            ["build", "--profile", "cpu,cuda", "--push", "ghcr.io/a/b:1"],
            "--push applies to a single image",
        ),
        (["verify", "--profile", "cpu,cuda"], "names more than one profile"),
        (["render", "--profile", "cpu,cuda"], "only --target bake accepts several"),
        (["lock", "--profile", "cpu,cuda"], "only build, bundle and render --target bake"),
    ],
)
def test_what_several_profiles_cannot_mean_is_2(
    arguments: list[str], said: str, envbuilder: Command
) -> None:
    ended = envbuilder(*arguments, code=2)
    assert ended.out == ""
    assert said in ended.err


def test_an_unknown_profile_is_2_before_anything_is_planned(
    envbuilder: Command,
) -> None:
    err = envbuilder("build", "--profile", "cpu,zendn", "--dry-run", code=2).err
    assert "Did you mean 'zendnn'?" in err
    assert "cpu:" not in err


def test_a_bake_file_is_printed_for_several_profiles(
    envbuilder: Command,
) -> None:
    rendered = envbuilder("render", "--profile", "cpu,cuda", "--target", "bake")
    assert rendered.err == ""
    assert 'target "cuda-linux-arm64" {' in rendered.out
