"""PyTorch behind the interface, and the checks that only it has."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload import checks, torch_checks
from envbuilder.payload.frameworks import torch_
from envbuilder.payload.frameworks.torch_ import Torch
from envbuilder.payload.numerics import arithmetic, compilers
from envbuilder.payload.report import PASSED, WARNING, CheckError
from envbuilder.payload.training import eager
from tests.support.recorded import replaced
from tests.unit.payload.test_checks import a_run

TORCH: Any = SimpleNamespace(__version__="2.13.0+cpu", set_num_threads=lambda count: None)


@pytest.mark.parametrize(("names", "loaded"), [(("ipex",), True), (("zentorch",), False)])
def test_only_ipex_is_loaded_with_torch(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], loaded: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch", TORCH)
    ipex = replaced(monkeypatch, torch_.facts, "load_extension", "the extension")
    run = a_run(extensions=names)
    run.threads = {"OMP_NUM_THREADS": "2"}
    assert checks.check_import(run) == (PASSED, "torch 2.13.0+cpu")
    assert run.framework.torch is TORCH
    assert run.framework.ipex == ("the extension" if loaded else None)
    assert ipex.calls == ([("ipex",)] if loaded else [])


@pytest.mark.parametrize("bad", [(), ("bfloat16",), ("float32", "float16")])
def test_arithmetic_is_checked_in_every_dtype(
    monkeypatch: pytest.MonkeyPatch, bad: tuple[str, ...]
) -> None:
    asked: list[Any] = []

    def errors(torch: Any, accelerator: str, dtype: str, stated: str) -> Any:
        asked.append((accelerator, dtype, stated))
        wrong = [f"conv in {dtype}"] if dtype in bad else []
        return SimpleNamespace(wrong=lambda: wrong, phrase=lambda: f"{dtype} 1e-7")

    monkeypatch.setattr(arithmetic, "errors", errors)
    ready = Torch(TORCH, "cpu")
    run = a_run("xpu", precision="tf32")
    dtypes = ("float32", *arithmetic.HALVES)
    phrases = "; ".join(f"{dtype} 1e-7" for dtype in dtypes)
    if bad:
        with pytest.raises(CheckError) as caught:
            torch_checks.check_arithmetic(run, ready)
        named = ", ".join(f"conv in {dtype}" for dtype in dtypes if dtype in bad)
        assert str(caught.value) == f"wrong numbers against float64: {named}; of {phrases}"
    else:
        assert torch_checks.check_arithmetic(run, ready) == (PASSED, f"against float64: {phrases}")
    assert asked == [("xpu", dtype, "tf32") for dtype in dtypes]


@pytest.mark.parametrize("name", ["self_device_time_total", "self_cuda_time_total"])
def test_the_profilers_times_have_another_name_before_torch_2_4(name: str) -> None:
    torch = SimpleNamespace(autograd=SimpleNamespace(DeviceType=SimpleNamespace(CPU=0)))
    events = [
        SimpleNamespace(key="conv", device_type=number, self_cpu_time_total=1, **{name: 2})
        for number in range(2)
    ]
    profiler = SimpleNamespace(key_averages=lambda: events)
    kernels = eager._kernels(torch, profiler)
    assert [(k.microseconds, k.on_device) for k in kernels] == [(1.0, False), (2.0, True)]


def test_a_release_without_compilation_is_not_judged() -> None:
    bench: Any = SimpleNamespace(torch=SimpleNamespace(__version__="1.13.1"))
    outcome = compilers.measure(bench, "inductor", lambda done, total: None)
    status, detail = compilers.verdict(outcome, 1.0)
    assert (status, "torch 1.13.1 cannot compile: No module named" in detail) == (WARNING, True)


# ---- extensions: the integration tests try the subprocess; here, what is made of its end


def ending(monkeypatch: pytest.MonkeyPatch, code: int, stdout: str = "", stderr: str = "") -> None:
    done = subprocess.CompletedProcess((), code, stdout, stderr)
    replaced(monkeypatch, subprocess, "run", done)


def test_an_extension_that_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    ending(monkeypatch, 0, f"banner\n{torch_checks.MARK} 2.8.0\nfarewell\n")
    found = torch_checks.check_extension("ipex")
    assert found == (PASSED, "intel_extension_for_pytorch 2.8.0 imports with this torch")


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "words"),
    [
        (127, "ERROR! needs torch 2.7\n", "", r"\(exit 127\): ERROR! needs torch 2.7"),
        (1, "", "Traceback\nImportError: another minor\n", "ImportError: another minor"),
        (-11, "", "", r"\(exit -11\): no output"),
        (0, "banner\n", "", "banner"),
        (1, "needs torch 2.7\n", "a warning\n", "needs torch 2.7; a warning"),
        (0, "", f"{torch_checks.MARK} 2.8.0\n", "exit 0"),
        (3, f"{torch_checks.MARK} 2.8.0\n", "", "exit 3"),
    ],
)
def test_an_import_that_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, code: int, stdout: str, stderr: str, words: str
) -> None:
    ending(monkeypatch, code, stdout, stderr)
    with pytest.raises(CheckError, match=words):
        torch_checks.check_extension("ipex")


def test_an_import_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(CheckError, match="did not finish importing in 3 s"):
        torch_checks.check_extension("zentorch", 3)
