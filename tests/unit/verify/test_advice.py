"""What a page advises to do next, and what it never says."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from envbuilder import cli
from envbuilder.payload.report import REQUIRED
from envbuilder.verify import advice
from envbuilder.verify.report import model
from tests.support.pages import changed, failing, page, whole


def advised(data: dict[str, Any]) -> tuple[advice.Advice, ...]:
    return advice.advise(model.check(data))


def commands(data: dict[str, Any]) -> list[str]:
    return [a.command for a in advised(data) if a.command]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("import", "envbuilder build --profile cuda --backend venv --rebuild"),
        ("extension ipex", "envbuilder build --profile cuda --backend venv --rebuild"),
        ("device", "envbuilder doctor --profile cuda"),
        ("arithmetic", "envbuilder doctor --profile cuda"),
        ("blind test", "envbuilder verify --profile cuda --backend venv"),
        ("run", "envbuilder verify --profile cuda --backend venv"),
        ("isolation", "envbuilder build --profile cuda --backend venv --rebuild"),
        ("something new", "envbuilder verify --profile cuda --backend venv"),
    ],
)
def test_a_failed_check_has_a_next_step(name: str, said: str) -> None:
    found = commands(failing(name))
    assert (found[0], found[-1]) == (said, "envbuilder verify --profile cuda --backend venv")
    assert len(found) == len(set(found))


def test_devices_that_do_not_train_together_are_verified_alone() -> None:
    assert commands(failing("several devices"))[0].endswith("--backend venv --devices 0")


def test_every_check_of_a_verification_has_advice() -> None:
    assert set(REQUIRED) <= (set(advice._STEPS) | {"extension", "compile"})


def test_a_changed_environment_is_rebuilt_not_tried_again() -> None:
    first = advised(failing("run", "/envs/cpu was changed after the build: bin/tool (added)"))[0]
    assert first.command == "envbuilder build --profile cuda --backend venv --rebuild"
    assert "Try again" not in first.sentence


def test_an_interpreter_of_others_is_not_rebuilt() -> None:
    artifact = {"kind": "interpreter", "ref": "/opt/mine/bin/python"}
    data = failing("import", backend="external", artifact=artifact)
    found = commands(data)
    assert found == [
        "envbuilder build --profile cuda",
        "envbuilder verify --profile cuda --python /opt/mine/bin/python",
    ]


def test_a_quick_look_promises_no_comparison() -> None:
    assert "CPU" not in str(advised(changed(quick=True)))


def test_an_image_of_apptainer_is_verified_again_by_its_file() -> None:
    artifact = {"kind": "image", "ref": "/shared/cuda.sif"}
    data = failing("import", backend="apptainer", artifact=artifact)
    assert commands(data)[-1] == "envbuilder verify --profile cuda --sif /shared/cuda.sif"
    passed = changed(backend="apptainer", artifact=artifact)
    assert "The image works. Use it as it is." in [a.sentence for a in advised(passed)]
    assert not [c for c in commands(passed) if "envbuilder run" in c]


def test_memory_that_ran_out_is_the_advice() -> None:
    found = advised(failing("run", "CUDA out of memory. Tried"))
    assert found[0].sentence.startswith("Memory ran out")
    assert found[0].checks == ("run",)


def test_a_regression_is_no_wrong_number() -> None:
    slower = failing("against", "warm epoch 2.0 s against 1.0 s")
    assert "as requested, but slower or less accurate than before" in page(slower).text
    assert commands(slower) == ["envbuilder verify --profile cuda --backend venv"]


def test_a_traceback_is_spoken_of_only_where_there_is_one() -> None:
    assert "traceback" not in page(failing("run", "killed")).text.lower()
    assert "traceback at the end" in page(failing("run", traceback="T")).text


@pytest.mark.parametrize(
    ("name", "warned"),
    [("shared memory", True), ("dataset", True), ("matmul rate", True), ("clock", False)],
)
def test_which_warnings_call_for_something(name: str, warned: bool) -> None:
    check = {"name": name, "status": "warning", "seconds": 0.1, "detail": "small"}
    found = advised(changed(checks=[*whole()["checks"], check]))
    assert any(a.checks == (name,) for a in found) is warned


def test_compile_advice_does_not_praise_eager_mode_that_failed_too() -> None:
    warned = {"name": "compile inductor", "status": "warning", "seconds": 1, "detail": "wrong"}
    good = advised(changed(checks=[*whole()["checks"], warned]))
    assert good[0].sentence.endswith("Without `torch.compile`, the results were right.")
    bad = failing("arithmetic")
    bad["checks"].append(warned)
    assert not [a for a in advised(bad) if "were right" in a.sentence]


@pytest.mark.parametrize("value", ["x; rm -rf /", "$(x)", "a b", "-x", "../x", "`x`", "x\n", None])
def test_no_report_puts_words_into_commands(value: Any) -> None:
    data = failing("device", profile=value, backend=value, artifact={"ref": value})
    data["checks"].append(
        {"name": f"compile {value}", "status": "failed", "seconds": 0, "detail": "x"}
    )
    external = {**failing("import", profile=value), "backend": "external"}
    external["artifact"] = {"ref": value}
    for command in [*commands(data), *commands(external)]:
        words = shlex.split(command)
        assert words[0] == "envbuilder"
        for w in words[1:]:
            assert re.fullmatch(r"--python|PYTHON|doctor|detect|verify|build", w)


def test_advice_names_only_commands_that_exist() -> None:
    names = ["import", "device", "device used", "arithmetic", "blind test", "dataset", "kernels"]
    found = {c for name in names for c in commands(failing(name))} | set(commands(whole()))
    known = set(cli.COMMANDS)
    assert {c.split()[1] for c in found} <= known
