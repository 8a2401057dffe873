from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.payload import arguments, cli, events, trial, tuning
from envbuilder.payload.numerics.compilers import CACHES
from envbuilder.payload.training import model


def options(*given: str) -> Any:
    return arguments.parser().parse_args(["trial", *given])


class ReplacedError(Exception):
    """The process has become another one."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the process became: its command and variables."""
    seen: list[Any] = []

    def execve(path: str, command: list[str], environ: dict[str, str]) -> None:
        seen.extend([path, command, environ])
        raise ReplacedError

    monkeypatch.setattr(tuning.os, "execve", execve)
    return seen


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Events instead of this process's own stdout."""
    stream = io.StringIO()
    monkeypatch.setattr(events, "take_stdout", lambda: stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_other_batches_see_as_many_images() -> None:
    settings = {
        size: trial.Setting("cpu", model.PUBLISHED, 150, 30, batch=size) for size in (64, 256, 100)
    }
    assert settings[64].samples == 180 * 64
    assert settings[256].samples == 180 * 64
    assert settings[100].samples == 11_500
    assert [settings[size].untimed for size in (64, 256, 100)] == [30, 7, 19]


def test_the_form_is_the_accelerators_own_unless_it_is_named() -> None:
    assert tuning.setting(options()).form == model.fastest("cpu")
    contiguous = tuning.setting(options("--layout", "contiguous")).form
    assert contiguous == replace(model.fastest("cpu"), channels_last=False)
    compiled = tuning.setting(options("--compile", "inductor")).form
    assert compiled == replace(model.fastest("cpu"), byte_masks=False) != model.fastest("cpu")
    one = tuning.setting(options("--device", "cuda", "--layout", "channels_last"))
    assert one.form == model.Form(pool_first=True, channels_last=True)


def test_variables_are_in_place_before_anything_is_imported(
    became: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ["trial", "--set", "OMP_NUM_THREADS=1", "--seed", "3", "--set=LD_PRELOAD="]
    monkeypatch.setattr(sys, "argv", ["payload.pyz", *own])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "payload.pyz", *own])
    monkeypatch.setenv("LD_PRELOAD", "libold.so")
    monkeypatch.setenv("KEPT", "")
    with pytest.raises(ReplacedError):
        cli.main(own)
    path, command, environ = became
    assert path == sys.executable
    assert command == [sys.executable, "-X", "dev", "payload.pyz", "trial", "--seed", "3"]
    assert environ["OMP_NUM_THREADS"] == "1"
    assert "LD_PRELOAD" not in environ, "an empty value removes a variable"
    assert environ["KEPT"] == "", "empty variables of others stay"


@pytest.mark.parametrize(
    ("original", "shown", "expected"),
    [
        ([], ["/x/payload.pyz", "trial"], ["/x/payload.pyz"]),
        (["p", "/x/payload.pyz", "trial"], ["/x/payload.pyz", "trial"], ["/x/payload.pyz"]),
        (["p", "-m", "payload", "trial"], ["/x/__main__.py", "trial"], ["-m", "payload"]),
        (["p", "-c", "code", "trial"], ["-c", "trial"], ["-c", "code"]),
    ],
)
def test_the_process_starts_again_as_it_was_started(
    original: list[str], shown: list[str], expected: list[str]
) -> None:
    assert tuning.started(original, shown) == [sys.executable, *expected]


def test_a_failure_is_an_event_and_a_code(
    said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trial, "run", Mock(side_effect=RuntimeError("no such thing here")))
    monkeypatch.setattr(tuning.dataset, "load", lambda folder: None)
    assert cli.main(["trial", "--data", str(tmp_path)]) == 5
    assert said() == [{"event": "error", "message": "RuntimeError: no such thing here"}]


def test_a_trial_compiles_into_a_new_folder_and_only_that_is_trusted(
    said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, str] = {}

    def run(asked: Any, data: Any) -> dict[str, Any]:
        # ROCm's, too: MIOpen and the driver's compiler keep what they compile.
        folders = {os.environ[name] for name in (*CACHES, "MIOPEN_CUSTOM_CACHE_DIR")}
        (seen["used"],) = folders
        return {}

    def require(start: Any, cache: str = "") -> None:
        seen["trusted"] = cache

    for name in CACHES:
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(trial, "run", run)
    monkeypatch.setattr(tuning.dataset, "load", lambda folder: None)
    monkeypatch.setattr(tuning.origins, "require", require)
    assert cli.main(["trial", "--data", str(tmp_path)]) == 0
    assert seen["used"] == seen["trusted"] != str(tmp_path)


def test_damaged_data_is_a_usage_error(said: Any, tmp_path: Path) -> None:
    assert cli.main(["trial", "--data", str(tmp_path)]) == 2
    assert "is missing" in said()[0]["message"]


@pytest.mark.parametrize("given", [(), ("--data", ".", "--check-compile")])
def test_what_is_missing_is_named(said: Any, given: tuple[str, ...]) -> None:
    assert cli.main(["trial", *given]) == 2
    assert said()[0]["event"] == "error"


def test_the_survey_needs_neither_data_nor_torch(said: Any) -> None:
    before = set(sys.modules)
    assert cli.main(["trial", "--survey"]) == 0
    report = said()[0]["report"]
    assert report["threads"]["decided"] >= 1
    assert "torch" not in set(sys.modules) - before


def test_allocators_are_found_by_name_the_nearest_first(tmp_path: Path) -> None:
    near = tmp_path / "near"
    far = tmp_path / "far"
    for folder in (near, far):
        folder.mkdir()
    (far / "libtcmalloc_minimal.so.4").touch()
    (far / "libjemalloc.so.2").touch()
    (near / "libtcmalloc.so").touch()
    (near / "libtcmalloc.so.4.5").touch()
    (near / "libnotjemalloc.so.2").touch()
    assert tuning.find_allocators([tmp_path / "absent", near, far]) == {
        "tcmalloc": str(near / "libtcmalloc.so.4.5"),
        "jemalloc": str(far / "libjemalloc.so.2"),
    }


def test_the_survey_tells_allocators_from_other_preloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/a/libtcmalloc.so.4:/b/libfaketime.so.1 libjemalloc.so.2")
    assert tuning.survey()["preload"] == ["/b/libfaketime.so.1"]
