from __future__ import annotations

import subprocess
import sys
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

from envbuilder.payload import cli, start
from envbuilder.payload.parallel import launch
from envbuilder.payload.report import CheckError
from envbuilder.payload.start import ActualStart, Start
from tests.support.repositories import lay

PROMISE = Start(
    as_found=False,
    prefix="/envs/cpu",
    executable="/envs/cpu/bin/python",
    bytecode="/tmp/ours/bytecode",
    variables={"LD_PRELOAD": "libtcmalloc_minimal.so.4"},
)


def seen(**changes: Any) -> ActualStart:
    fields: dict[str, Any] = {
        "environ": {"LD_PRELOAD": "libtcmalloc_minimal.so.4", "HOME": "/root"},
        "isolated": True,
        "bytecode": "/tmp/ours/bytecode",
        "prefix": "/envs/cpu",
        "executable": "/envs/cpu/bin/python",
        "binary": "/envs/cpu/bin/python",
    }
    return ActualStart(**{**fields, **changes})


def test_a_start_as_promised_has_no_problems() -> None:
    assert start.problems(PROMISE, seen()) == []
    # Conda's venv lies in the prefix.
    assert start.problems(PROMISE, seen(prefix="/envs/cpu/venv")) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"isolated": False}, "not isolated: it was started without -I"),
        ({"bytecode": None}, "bytecode is read from the environment"),
        ({"prefix": "/envs/other"}, "the interpreter's prefix is /envs/other, not /envs/cpu"),
        ({"prefix": "/envs/cpu-2"}, "the interpreter's prefix is /envs/cpu-2"),
        ({"binary": "/usr/bin/python3"}, "/envs/cpu/bin/python is not the interpreter that ran"),
        ({"binary": None, "executable": "/usr/bin/python3"}, "is not the interpreter that ran"),
    ],
)
def test_another_interpreter_is_named(changes: dict[str, Any], words: str) -> None:
    (problem,) = start.problems(PROMISE, seen(**changes))
    assert words in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "/tmp/foreign.so"),
        ("LD_PRELOAD", "libtcmalloc_minimal.so.4:/tmp/foreign.so"),
        ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64"),
        ("LD_LIBRARY_PATH", "/envs/cpu/lib:/opt/other/lib"),
        ("LD_LIBRARY_PATH", "."),
        ("LD_AUDIT", "/tmp/audit.so"),
        ("GLIBC_TUNABLES", "glibc.malloc.check=3"),
        ("DYLD_INSERT_LIBRARIES", "/tmp/foreign.dylib"),
        ("PYTHONPATH", "/tmp/modules"),
        ("PYTHONWARNINGS", "error::foreign.Warning"),
        ("CUDA_INJECTION64_PATH", "/tmp/injected.so"),
        ("OMP_TOOL_LIBRARIES", "/tmp/tool.so"),
    ],
)
def test_a_variable_that_was_not_promised_is_named(name: str, value: str) -> None:
    (problem,) = start.problems(PROMISE, seen(environ={name: value}))
    assert problem == f"{name}={value} was set for the interpreter, not by the profile"


@pytest.mark.parametrize(
    "environ",
    [
        {"PYTHONPATH": "", "LD_PRELOAD": "", "PYTHONHOME": ""},
        {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "PYTHON_VERSION": "3.11.16"},
        # What conda's packages set when they are activated lies in the prefix.
        {"LD_PRELOAD": "/envs/cpu/lib/envbuilder/libtcmalloc_minimal.so.4"},
        {"LD_LIBRARY_PATH": "/envs/cpu/lib:/usr/local/nvidia/lib64:/usr/lib/wsl/lib"},
        {"LDFLAGS": "-L/opt/lib", "PYTHONIC": ""},
    ],
)
def test_variables_of_the_environment_and_of_drivers_are_right(environ: dict[str, str]) -> None:
    assert start.problems(PROMISE, seen(environ=environ)) == []


def test_links_are_resolved_where_paths_are_compared(tmp_path: Path) -> None:
    lay(tmp_path, {"real/bin/python3.11": ""})
    (tmp_path / "real/bin/python").symlink_to("python3.11")
    (tmp_path / "link").symlink_to("real")
    promise = Start(
        as_found=False,
        prefix=str(tmp_path / "link"),
        executable=str(tmp_path / "link/bin/python"),
    )
    binary = str(tmp_path / "real/bin/python3.11")
    assert (
        start.problems(promise, seen(environ={}, prefix=str(tmp_path / "real"), binary=binary))
        == []
    )
    assert not start.below(str(tmp_path / "real/../other"), str(tmp_path / "real"))
    assert not start.below("relative", "/")


def test_the_real_start_is_read_not_what_became_of_it(tmp_path: Path) -> None:
    place = tmp_path / "environ"
    place.write_bytes(b"A=1\0LD_PRELOAD=/x=y.so\0BROKEN\0\0")
    assert start.environment(place) == {"A": "1", "LD_PRELOAD": "/x=y.so", "BROKEN": ""}


def test_a_promise_goes_through_the_command_line() -> None:
    assert start.parse(PROMISE.text()) == PROMISE
    for text in ("", "[]", "{}", '{"as_found": true}', "nonsense"):
        with pytest.raises(ValueError):
            start.parse(text)


def test_as_found_is_a_warning_that_names_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "look", lambda: seen(environ={"PYTHONPATH": "/modules", "A": "b"}))
    start.AS_FOUND.require()
    assert start.AS_FOUND.check() == (
        "warning",
        "as found, not isolated; variables: PYTHONPATH",
    )
    with pytest.raises(CheckError, match="PYTHONPATH=/modules was set"):
        PROMISE.require()


@pytest.mark.parametrize("command", ["trial", "parallel"])
def test_no_command_works_in_another_start(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    arguments = ("--device", "cpu", "--data", "/nowhere")
    assert cli.main(["--promise", PROMISE.text(), command, *arguments]) == 5
    assert "is not the interpreter that ran" in capsys.readouterr().err


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "options", lambda: ["-I", "-X", "pycache_prefix=/ours"])


@pytest.mark.parametrize(
    ("command", "started"),
    [
        (["python", "-c", "pass"], ["python", "-I", "-X", "pycache_prefix=/ours", "-c", "pass"]),
        (("python", "a.py"), ["python", "-I", "-X", "pycache_prefix=/ours", "a.py"]),
        (["python", "-I", "-X", "pycache_prefix=/ours", "a"], None),
        (["g++", "python"], None),
        ("python -c pass", None),
        ([], None),
        ([b"python", "x"], None),
    ],
)
def test_commands_for_this_interpreter_get_the_options(command: Any, started: Any) -> None:
    added = ["-I", "-X", "pycache_prefix=/ours"]
    assert start.isolated(command, "python", added) == (command if started is None else started)


def test_libraries_start_isolated_children(isolated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del isolated
    begun: list[Any] = []
    internals: Any = subprocess
    monkeypatch.setattr(internals, "_args_from_interpreter_flags", lambda: ["-I"])
    monkeypatch.setattr(util, "_args_from_interpreter_flags", None)

    class Popen:
        def __init__(self, args: Any, **named: Any) -> None:
            begun.append((args, named))

    monkeypatch.setattr(subprocess, "Popen", Popen)
    start.isolate_children()
    patched: Any = vars(util)["_args_from_interpreter_flags"]
    assert patched() == ["-I", "-X", "pycache_prefix=/ours"]
    Popen(args=[sys.executable, "worker.py"], close_fds=True)
    expected = [sys.executable, "-I", "-X", "pycache_prefix=/ours", "worker.py"]
    assert begun == [(expected, {"close_fds": True})]


def test_our_own_children_are_started_isolated(
    isolated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del isolated
    monkeypatch.setattr(sys, "argv", ["/x/payload.pyz", "parallel"])
    expected = [sys.executable, "-I", "-X", "pycache_prefix=/ours", "/x/payload.pyz"]
    assert launch._program() == expected
