"""`fleet.yaml`, and which node is to prove what."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError
from envbuilder.fleet import model, planning
from envbuilder.profiles.library import Library
from tests.support.fleets import RUN, STARTED, node
from tests.support.shipped import LIBRARY

EXAMPLE = """\
profiles:
  - {feature: h100, profile: cuda}
  - {gres: "gpu:xe", profile: xpu}
  - {node: "epyc*", gres: nvme, profile: zendnn}
sbatch: ["--account=ml", "-q low"]
setup: ["module load gcc"]
command: [/shared/bin/envbuilder]
sif: {cuda: /shared/cuda.sif}
"""
H100 = node(
    "gpu1", features=("h100",), resources=(model.Resource(name="gpu", type="h100", count=8),)
)
XE = node("arc1", resources=(model.Resource(name="gpu", type="xe"),))
EPYC = node("epyc7", resources=(model.Resource(name="nvme"),))
REQUEST = planning.Request(
    profile=None,
    patterns=(),
    arguments=("--quick",),
    quick=True,
    limit_seconds=900,
)


def read(folder: Path, text: str) -> planning.FleetSettings:
    path = folder / "fleet.yaml"
    path.write_text(text)
    return planning.read_settings(path)


def planned(
    nodes: list[model.Node], site: planning.FleetSettings, **changes: object
) -> planning.Plan:
    request = replace(REQUEST, **changes)
    return planning.plan(RUN, nodes, site, request, LIBRARY)


def test_the_first_rule_that_applies_decides(tmp_path: Path) -> None:
    other = node("epyc8")
    drained = node("gpu2", features=("h100",), usable=False, state="drained")
    plan = planned([H100, XE, EPYC, other, drained], read(tmp_path, EXAMPLE))
    assert [(p.node, p.profile, p.why, p.gpus) for p in plan.promises] == [
        ("gpu1", "cuda", "feature h100", 8),
        ("arc1", "xpu", "gres gpu:xe", 1),
        ("epyc7", "zendnn", "gres nvme, node epyc*", 0),
    ]
    assert [(e.node, e.outcome, e.detail) for e in plan.left_out] == [
        ("epyc8", "unmapped", "no rule in fleet.yaml matches it"),
        ("gpu2", "drained", "drained: no reason is stated"),
    ]


def test_without_rules_the_node_decides_and_a_profile_is_for_all() -> None:
    plan = planned([H100, EPYC], planning.FleetSettings())
    assert {p.profile for p in plan.promises} == {None}
    plan = planned([H100, EPYC], planning.FleetSettings(), profile="cpu")
    assert {p.profile for p in plan.promises} == {"cpu"}


def test_an_image_is_for_a_profile_that_is_promised(tmp_path: Path) -> None:
    site = read(tmp_path, "sif: {cpu: /shared/cpu.sif}\n")
    with pytest.raises(InvalidError, match="no rules assign profiles to nodes") as raised:
        planned([EPYC], site)
    assert "--profile" in raised.value.hint
    plan = planned([EPYC], site, profile="cpu")
    each = planning.common(RUN, tmp_path, site, REQUEST, ("envbuilder",), {})
    (text,) = planning.scripts(plan, each).values()
    assert text.endswith("-- --profile cpu --sif /shared/cpu.sif --quick\n")


def test_a_run_is_named_after_its_start() -> None:
    run = model.new_run(STARTED)
    assert run != model.new_run(STARTED)
    assert decoding.convert(run, model.RunId) == run
    assert model.started(run) == STARTED


def test_nodes_by_pattern() -> None:
    plan = planned([H100, XE, EPYC], planning.FleetSettings(), patterns=("epyc*", "arc1"))
    assert [p.node for p in plan.promises] == ["arc1", "epyc7"]
    with pytest.raises(InvalidError, match="no node matches power"):
        planned([H100], planning.FleetSettings(), patterns=("power*",))


def test_a_cluster_without_nodes_is_an_error() -> None:
    with pytest.raises(InvalidError, match="lists no node"):
        planned([], planning.FleetSettings())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile: cpu\n", "fleet.yaml:1: profile: unknown key"),
        (
            "profiles:\n  - {profile: cpu}\n",
            "fleet.yaml:2: profiles.0: the rule applies to no node",
        ),
        ("profiles:\n  - {featur: a, profile: cpu}\n", "fleet.yaml:2: "),
        ("profiles:\n  - {feature: 'a b', profile: cpu}\n", "fleet.yaml:2: "),
        ("profiles:\n  - {feature: a, profile: ../x}\n", "fleet.yaml:2: "),
        ("sbatch:\n  - '--nodelist=a'\n", "fleet.yaml:2: sbatch.0: envbuilder itself sets"),
        ("sbatch:\n  - '--job-name x'\n", "envbuilder itself sets"),
        ("sbatch:\n  - '-wnode'\n", "envbuilder itself sets"),
        ('sbatch:\n  - "--comment=a\\nrm -rf /"\n', "fleet.yaml:2: "),
        ('setup:\n  - "a\\nb"\n', "fleet.yaml:2: "),
        ("sif:\n  cuda: cuda.sif\n", "fleet.yaml:2: "),
        ("sif:\n  cuda: '/a b.sif'\n", "fleet.yaml:2: "),
        (
            "command: [.venv/bin/envbuilder]\n",
            "fleet.yaml:1: command.0: .venv/bin/envbuilder is not",
        ),
        ("command: []\nextra: 1\n", "fleet.yaml:2: extra: unknown key"),
    ],
)
def test_mistakes_are_errors_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError) as caught:
        read(tmp_path, text)
    assert message in caught.value.message


def test_scripts(tmp_path: Path, repository: Path, rewrite_golden: bool) -> None:
    """Of two nodes, one with GPUs."""
    site = read(tmp_path, EXAMPLE)
    plan = planned([H100, EPYC], site)
    environ = {
        "PATH": "/usr/bin",
        "HOME": "/home/u",
        "ENVBUILDER_SHARED_STORE": "/shared/it's here",
        "ENVBUILDER_KEY_PASSPHRASE": "secret",
        "PIP_INDEX_URL": "https://user:secret@index.example/simple",
    }
    folder = Path("/shared/fleet-1")
    each = planning.common(RUN, folder, site, REQUEST, ("envbuilder",), environ)
    scripts = planning.scripts(plan, each)
    assert list(scripts) == ["gpu1", "epyc7"]
    for name, text in scripts.items():
        path = repository / f"tests/golden/fleet/{name}.sbatch"
        if rewrite_golden:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()
        assert "secret" not in text


def test_lines_of_shell_that_others_can_write_are_refused(tmp_path: Path) -> None:
    read(tmp_path, EXAMPLE)
    (tmp_path / "fleet.yaml").chmod(0o666)
    with pytest.raises(InvalidError, match=r"fleet\.yaml is writable by every user"):
        planning.read_settings(tmp_path / "fleet.yaml")


@pytest.mark.parametrize(
    ("profile", "covered", "devices"),
    [
        ("cuda", 8, True),
        ("jax-cuda", 1, False),
        ("tensorflow-cuda", 1, False),
        ("cpu", 0, False),
        ("jax-cpu", 0, False),
        # It may be any of them, and all GPUs are expected of it.
        (None, 8, True),
    ],
)
def test_several_gpus_are_verified_with_pytorch_alone(
    profile: str | None, covered: int, devices: bool, tmp_path: Path
) -> None:
    site = planning.FleetSettings()
    plan = planned([H100, XE], site, profile=profile)
    assert [p.gpus_to_prove for p in plan.promises] == [covered, min(covered, 1)]
    each = planning.common(RUN, tmp_path, site, REQUEST, ("envbuilder",), {})
    scripts = planning.scripts(plan, each)
    assert ("--devices all" in scripts["gpu1"]) == devices
    assert "--devices" not in scripts["arc1"]
    # It has all of the node nonetheless.
    assert "#SBATCH --gres=gpu:8\n" in scripts["gpu1"]


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_a_node_of_a_project_for_another_framework_decides_itself(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Library, "framework", (framework, "envbuilder.yaml"))
    (promise,) = planned([H100], planning.FleetSettings()).promises
    assert (promise.profile, promise.gpus_to_prove) == (None, 1)


def test_a_profile_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    site = read(tmp_path, "profiles: [{feature: h100, profile: cudda}]\n")
    with pytest.raises(InvalidError, match="cudda") as caught:
        planned([H100], site)
    assert caught.value.exit_code == 2
    # A file may be for more nodes, and other projects.
    assert planned([EPYC], site).promises == ()


def test_nodes_see_the_project_that_a_run_is_for(tmp_path: Path) -> None:
    site = planning.FleetSettings(setup=("module load gcc",))
    project = tmp_path / "my project"
    plan = planned([EPYC], site, profile="cpu")
    each = planning.common(RUN, tmp_path, site, REQUEST, ("envbuilder",), {}, project)
    (text,) = planning.scripts(plan, each).values()
    lines = text.splitlines()
    place = lines.index(f"cd '{project}' || exit 1")
    assert lines.index("module load gcc") < place
    assert lines[place + 1].startswith("envbuilder fleet node ")
