"""Apptainer's command line, and what it answers as recorded from 1.4.5."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers import apptainer
from envbuilder.containers.apptainer import Execution
from envbuilder.containers.engine.container import Devices
from envbuilder.core import process
from envbuilder.core.errors import InvalidError, ToolError
from tests.support.programs import completed
from tests.support.recorded import replaced

Answers = Callable[..., None]

LABELS = {
    "data": {
        "attributes": {
            "labels": {"io.envbuilder.profile": "cpu", "org.label-schema.schema-version": "1.0"}
        }
    },
    "type": "container",
}
IMAGE = Path("/shared/cpu.sif")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """An Apptainer on PATH that answers everything with this."""

    def answer(out: str = "", code: int = 0, err: str = "") -> None:
        monkeypatch.setattr(process, "which", lambda program: f"/usr/bin/{program}")
        replaced(monkeypatch, process, "run", completed(code, out, err))

    return answer


def execution(**changes: Any) -> Execution:
    facts: dict[str, Any] = {
        "image": IMAGE,
        "argv": ("python", "-I"),
        "variables": {"LD_PRELOAD": "", "CUDA_VISIBLE_DEVICES": "0,1"},
        "mounts": {"/home/me/a,b": "/data"},
        "devices": Devices(shm_size="1g"),
        "scratch": Path("/tmp/ours"),
    }
    return Execution(**{**facts, **changes})


def test_nothing_of_the_host_is_in_the_container_but_what_is_named() -> None:
    command = execution().command
    assert command == (
        "apptainer",
        "--quiet",
        "exec",
        "--containall",
        "--no-mount",
        "bind-paths",
        "--no-eval",
        "--net",
        "--network",
        "none",
        "--workdir",
        "/tmp/ours/work",
        "--pwd",
        "/tmp",
        "--mount",
        'type=bind,"source=/home/me/a,b",target=/data,readonly',
        "/shared/cpu.sif",
        "python",
        "-I",
    )


def test_gpus_are_reached_by_the_driver_or_by_their_nodes() -> None:
    assert "--nv" in execution(devices=Devices(gpus="all", shm_size="1g")).command
    nodes = Devices(
        nodes=("/dev/kfd", "/dev/dri"), volumes=("/dev/dri/by-path", "/opt/x"), shm_size="1g"
    )
    command = execution(devices=nodes, mounts={}).command
    assert [word for word in command if word.startswith("type=")] == [
        "type=bind,source=/dev/kfd,target=/dev/kfd",
        "type=bind,source=/dev/dri,target=/dev/dri",
        "type=bind,source=/opt/x,target=/opt/x,readonly",
    ]
    assert not {"--nv", "--rocm"} & {*command}


def test_variables_of_the_caller_neither_bind_nor_reach_the_container() -> None:
    caller = {
        "APPTAINER_BIND": "/mine:/opt/env",
        "APPTAINERENV_PYTHONPATH": "/mine",
        "SINGULARITYENV_LD_PRELOAD": "/mine.so",
        "APPTAINER_TMPDIR": "/scratch",
        "APPTAINER_CACHEDIR": "/cache",
        "APPTAINER_CONFIGDIR": "",
    }
    assert execution().environment({"PATH": "/usr/bin"}, caller) == {
        "PATH": "/usr/bin",
        "APPTAINER_CACHEDIR": "/cache",
        "APPTAINER_TMPDIR": "/tmp/ours",  # which is below the caller's
        "APPTAINERENV_LD_PRELOAD": "",
        "APPTAINERENV_CUDA_VISIBLE_DEVICES": "0,1",
    }


def test_without_apptainer_a_tool_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda program: None)
    with pytest.raises(ToolError, match="apptainer not found") as raised:
        apptainer.require()
    assert "module" in raised.value.hint


@pytest.mark.parametrize("stated", ["apptainer version 1.4.5\n", "apptainer version 2.0.0-rc.1"])
def test_a_recent_one_is_taken(stated: str, answers: Answers) -> None:
    answers(stated)
    apptainer.require()


@pytest.mark.parametrize("stated", ["apptainer version 1.1.9", "singularity", ""])
def test_one_that_is_too_old_or_unknown_is_refused(stated: str, answers: Answers) -> None:
    answers(stated)
    with pytest.raises(ToolError, match="too old") as raised:
        apptainer.require()
    assert "1.2" in raised.value.hint


def test_labels_are_read(answers: Answers) -> None:
    answers(json.dumps(LABELS))
    assert apptainer.labels(IMAGE)["io.envbuilder.profile"] == "cpu"


@pytest.mark.parametrize("attributes", [{}, {"labels": None}, {"labels": {"a": 5}}])
def test_an_image_without_labels_has_none(attributes: dict[str, Any], answers: Answers) -> None:
    answers(json.dumps({"data": {"attributes": attributes}}))
    assert apptainer.labels(IMAGE) == {}


@pytest.mark.parametrize("answer", ["", "[]", '{"data": 5}', '{"data": {}, "data": {}}', "{"])
def test_another_answer_is_an_error(answer: str, answers: Answers) -> None:
    answers(answer)
    with pytest.raises(InvalidError, match=r"cpu\.sif: the image's labels cannot be read"):
        apptainer.labels(IMAGE)


def test_what_is_no_image_is_an_error_in_one_line(answers: Answers) -> None:
    fatal = "FATAL:   Failed to open image cpu.sif: image format not recognized"
    answers(code=255, err=f"WARNING: something\n{fatal}\n")
    with pytest.raises(InvalidError) as raised:
        apptainer.labels(IMAGE)
    assert raised.value.message == (
        "/shared/cpu.sif: Apptainer cannot read this image: Failed to open image cpu.sif: image"
        " format not recognized"
    )


def test_a_failure_without_a_word_has_a_reason_too() -> None:
    assert apptainer.reason(" \n") == "it printed nothing"
    assert apptainer.reason("a\nb\x1b[31m\n").startswith("b")
