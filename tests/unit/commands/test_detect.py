"""`envbuilder detect`: what is printed, the JSON, and every exit code."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from envbuilder.commands import detect
from envbuilder.core import process
from envbuilder.host import probe
from envbuilder.host.model import Cpu, Gpu, Host, Memory
from envbuilder.project import variants
from tests.support import host_trees
from tests.support.broken_hosts import ADA, ARC, GIB, LINUX, changed, with_gpu
from tests.support.command_line import FILE, Command
from tests.support.shipped import LIBRARY

REAL = probe.host
FAST = changed(ADA, usable_bytes=23 * GIB, bandwidth=1008 * 10**9)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    show(monkeypatch, LINUX)
    monkeypatch.delenv("ENVBUILDER_TARGET_HOST", raising=False)


def show(monkeypatch: pytest.MonkeyPatch, here: Host) -> None:
    monkeypatch.setattr(probe, "host", lambda *arguments, **options: here)


@pytest.fixture
def detected(envbuilder: Command) -> Command:
    return functools.partial(envbuilder, "detect")


def plant(tmp_path: Path, name: str) -> str:
    root = tmp_path / "root"
    root.mkdir()
    return str(host_trees.plant(root, host_trees.load(name)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "huge"], "Write the number of parameters as"),
        (["--model", "7B", "--quant", "q99"], "Known formats: "),
        (["--quant", "q4_k"], "is an unknown weight format"),
    ],
)
def test_what_is_no_model_is_refused_with_a_hint(
    arguments: list[str], said: str, detected: Command
) -> None:
    caught = detected(*arguments, code=2)
    assert caught.out == ""
    assert said in caught.err


def test_a_profile_that_fits_without_a_word_says_so(
    detected: Command,
) -> None:
    lines = detected().out.splitlines()
    (row,) = [line for line in lines if line.split()[:2] == ["✓", "cpu"]]
    assert row.split() == ["✓", "cpu", "fits"]
    profiles = [line for line in lines if line[:1] in ("✓", "!", "✗")]
    for line in profiles:
        assert len(line.split()) > 2


def test_it_ends_with_what_the_accelerators_memory_holds(
    detected: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, with_gpu(FAST))
    assert detected().out.splitlines()[-2:] == [
        "memory for models: 23.0 GiB, 1008 GB/s (NVIDIA GeForce RTX 4090)",
        "  weights of up to 12.3B at bf16 or 43.9B at q4; more with --model SIZE",
    ]


def test_several_gpus_hold_a_model_together(
    detected: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = changed(FAST, bandwidth=900 * 10**9)
    show(monkeypatch, with_gpu(FAST, slower))
    line = detected().out.splitlines()[-2]
    assert line == "memory for models: 46.0 GiB, 900 GB/s each (2 × NVIDIA GeForce RTX 4090)"
    show(monkeypatch, with_gpu(FAST, changed(FAST, bandwidth=None)))
    assert "46.0 GiB, speed unknown (2 × " in detected().out
    show(monkeypatch, with_gpu(FAST, changed(FAST, usable_bytes=None, memory_bytes=None)))
    assert "size unknown (2 × NVIDIA" in detected().out.splitlines()[-1]


def test_a_model_is_judged_below_the_memory(
    detected: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, with_gpu(FAST))
    last = detected("--model", "70B", "--quant", "Q4").out.splitlines()[-4:]
    assert last[0].startswith("memory for models: 23.0 GiB")
    assert last[1] == "70B as q4: 36.7 GiB of weights"
    assert last[2].startswith("split: 23.0 GiB in NVIDIA GeForce RTX 4090")
    assert "more with --model" not in "".join(last)


def test_without_an_accelerator_main_memory_counts(
    detected: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "memory for models: 64.0 GiB, speed unknown (main memory)" in detected().out
    show(monkeypatch, changed(LINUX, memory=Memory()))
    assert detected().out.splitlines()[-1] == "memory for models: size unknown (main memory)"


@pytest.mark.parametrize("model", [None, "7B"])
def test_json_is_one_object_with_everything(
    detected: Command, monkeypatch: pytest.MonkeyPatch, model: str | None
) -> None:
    here = with_gpu(FAST)
    show(monkeypatch, here)
    options = ["--model", model] if model else []
    said = json.loads(detected("--json", *options).out)
    assert set(said) == {
        "schema",
        "host",
        "framework",
        "profile",
        "reason",
        "fits",
        "memory",
        "model",
        "releases",
    }
    assert (said["framework"], said["schema"]) == ("torch", 1)
    newest, *_ = said["releases"]["cuda"]
    assert newest == {"release": "2.15.0", "build": "cu132", "fits": "fits"}
    assert msgspec.convert(said["host"], Host) == here
    assert said["profile"] == "cuda"
    assert {fit["profile"] for fit in said["fits"]} >= {"cpu", "cuda", "mps", "xpu", "zendnn"}
    assert [pool["kind"] for pool in said["memory"]] == ["accelerator", "memory"]
    assert said["memory"][0]["usable_bytes"] == 23 * GIB
    if model is None:
        assert said["model"] is None
    else:
        assert (said["model"]["verdict"], said["model"]["quant"]) == ("fits", "q4")


def test_its_json_can_be_a_target(
    detected: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    show(monkeypatch, with_gpu(ARC))
    path = tmp_path / "laptop.json"
    path.write_text(detected("--json").out)
    show(monkeypatch, LINUX)
    assert json.loads(detected("--json", "--target-host", str(path)).out)["profile"] == "xpu"
    path.write_text("{}")
    detected("--target-host", str(path), code=2)


@pytest.mark.parametrize("name", host_trees.EACH)
def test_every_tree_is_printed_within_80_columns_and_starts_nothing(
    name: str,
    tmp_path: Path,
    detected: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "host", REAL)
    monkeypatch.setattr(process, "run", Mock(side_effect=AssertionError("a process was started")))
    monkeypatch.setattr(variants, "library", lambda *_: LIBRARY)  # is read once for all
    root = plant(tmp_path, name)
    out = detected("--root", root).out
    assert max(map(len, out.splitlines())) <= 80
    assert "memory for models: " in out
    chosen = host_trees.load(name)["chosen"]
    assert f"→ profile {chosen}: " in out or chosen is None
    said = json.loads(detected("--root", root, "--json").out)
    assert said["profile"] == chosen
    assert said["host"] == json.loads((host_trees.FOLDER / f"{name}.json").read_bytes())
    for fit in said["fits"]:
        assert fit["verdict"]


def said(here: Host) -> dict[str, str]:
    return dict(detect.facts(here))


def test_facts_say_what_is_unknown() -> None:
    bare = said(Host(os="linux"))
    assert bare["cores"] == "unknown cores, unknown CPUs; → unknown threads"
    assert bare["memory"] == "unknown, speed unknown"
    assert "instructions unknown" in bare["processor"]
    gpu = Gpu(vendor="unknown", name="unknown", state="unknown", detail="PCI was not listed.")
    assert said(Host(os="linux", gpus=(gpu,)))["GPU 0"] == "unknown – PCI was not listed."


def test_facts_count_in_words() -> None:
    one = Cpu(physical=1, logical=1, affinity=1, quota=0.5, threads=1)
    assert said(Host(os="linux", cpu=one))["cores"] == (
        "1 core, 1 CPU; 1 usable, quota 0.5 → 1 thread"
    )
    mac = Cpu(physical=10, logical=10, threads=10)
    assert said(Host(os="macos", cpu=mac))["cores"] == "10 cores, 10 CPUs; → 10 threads"


def test_facts_promise_no_memory_of_a_gpu_that_does_not_work() -> None:
    shared: Any = changed(ARC, memory_kind="shared", usable_bytes=8 * GIB)
    assert "8.0 GiB usable" in said(with_gpu(shared))["GPU 0"]
    idle = changed(shared, state="present")
    assert "usable" not in said(with_gpu(idle))["GPU 0"]


def test_a_recording_of_this_machine_decides_as_here(
    detected: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "host", REAL)
    folder = tmp_path / "machine"
    said = detected("--record", str(folder)).out
    assert "Check the files before you send them" in said
    assert f"To decide from the recording:\n  envbuilder detect --root {folder}\n" in said
    assert (folder / "proc/cpuinfo").is_file()
    assert "is not empty" in detected("--record", str(folder), code=2).err
    replayed = json.loads(detected("--json", "--root", str(folder)).out)
    assert replayed["host"]["kernel"] == REAL(environ={}).kernel


@pytest.mark.parametrize("command", ["detect", "doctor"])
def test_one_host_is_looked_at(command: str, tmp_path: Path, envbuilder: Command) -> None:
    (tmp_path / "host.json").write_text("{}")
    given = ("--root", str(tmp_path), "--target-host", str(tmp_path / "host.json"))
    assert "--root cannot be combined with --target-host" in envbuilder(command, *given, code=2).err


@pytest.mark.parametrize("more", [["--root", "."], ["--model", "7B"]])
def test_only_this_machine_is_recorded(more: list[str], tmp_path: Path, detected: Command) -> None:
    given = ("--record", str(tmp_path / "machine"))
    assert "--record records only this machine" in detected(*given, *more, code=2).err
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize("name", ["wsl2", "wsl2-nvidia-silent"])
def test_one_cause_is_one_sentence(
    name: str, tmp_path: Path, detected: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "host", REAL)
    lines = detected("--root", plant(tmp_path, name)).out.splitlines()
    rows = [line for line in lines if line[:1] in ("✓", "!", "✗")]
    assert sum("WSL" in row for row in rows) == 1, rows
    assert sum("mps" in row for row in rows) == 1
    assert [row for row in rows if "mps" in row] == [row for row in rows if "xpu-ipex" in row]


def test_a_hidden_gpu_is_in_the_json(
    detected: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "host", REAL)
    said = json.loads(detected("--json", "--root", plant(tmp_path, "rtx5090-gtx1080")).out)
    (cuda,) = [fit for fit in said["fits"] if fit["profile"] == "cuda"]
    assert cuda["environment"]["CUDA_VISIBLE_DEVICES"] == "1"


def test_one_framework_is_shown_and_the_others_are_a_word(detected: Command) -> None:
    out = detected().out
    assert "framework: torch; others: `--framework jax`, `--framework tensorflow`" in out
    assert "jax-cpu" not in out
    jax = detected("--framework", "jax").out
    assert "→ profile jax-cpu: " in jax
    assert "framework: jax; others: `--framework torch`, `--framework tensorflow`" in jax
    fits = json.loads(detected("--framework", "jax", "--json").out)["fits"]
    assert {fit["profile"] for fit in fits} == {"jax-cpu", "jax-cuda", "jax-xpu"}
    FILE.write_text("requirements: [flax]\n")
    project = " ".join(detected().out.split())
    assert "framework: jax, because envbuilder.yaml:1 requires flax; others: " in project
    assert "→ profile cpu: " in detected("--framework", "torch").out


@pytest.mark.parametrize(
    ("framework", "gpu", "line"),
    [
        ("torch", ADA, "releases of PyTorch that work here (cuda): 1.11.0 and later"),
        (
            "torch",
            changed(ADA, sm=None),
            "releases of PyTorch that may work here (cuda): 1.11.0 and later",
        ),
        ("torch", changed(ADA, state="present", obstacle="no-driver"), ""),
        (
            "jax",
            changed(ADA, sm="7.0"),
            "releases of JAX that may work here (cuda): 0.4.30 and later",
        ),
        ("jax", ARC, ""),
        (
            "tensorflow",
            changed(ADA, sm="9.0"),
            "releases of TensorFlow that work here (cuda): 2.16.2 and later",
        ),
    ],
)
def test_which_releases_serve_the_gpu(
    framework: str,
    gpu: Gpu,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    detected: Command,
) -> None:
    show(monkeypatch, with_gpu(gpu, cpu=Cpu(flags=("sse2", "sse4_1", "avx"))))
    out = detected("--framework", framework).out
    lines = [each for each in out.splitlines() if each.startswith("releases of")]
    assert lines == ([line] if line else [])


def test_a_driver_too_old_for_all_releases_is_told_the_oldest_that_would_do(
    monkeypatch: pytest.MonkeyPatch, detected: Command
) -> None:
    show(monkeypatch, with_gpu(changed(ADA, driver_version="390.1")))
    out = " ".join(detected().out.split())
    assert "Driver 450.80.02 or newer is sufficient, for PyTorch 2.7.1 (cu118)." in out
    assert "releases of PyTorch that" not in out


def test_profiles_show_marks_the_builds_that_fit(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    show(monkeypatch, with_gpu(changed(ADA, sm="6.0", driver_version="470.82")))
    lines = [" ".join(line.split()) for line in envbuilder("profiles", "cuda").out.splitlines()]
    assert "2.7.1 ✓ cu118 cu126 cu128 3.9 to 3.13" in lines
    assert "2.14.1 cu126 cu130 cu132 3.10 to 3.14" in lines
    assert "driver 525.60.13 and later: cu121, cu124, cu126, cu128, cu129" in lines
    builds = json.loads(envbuilder("profiles", "cuda", "--json").out)["releases"]
    fitting = {each["build"] for each in builds if each["fits"] == "fits"}
    assert fitting == {"cu102", "cu113", "cu115", "cu116", "cu117", "cu118"}


def test_another_framework_lists_its_own_releases(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    show(monkeypatch, with_gpu(changed(ADA, sm="7.5"), cpu=Cpu(flags=("sse2", "sse4_1", "avx"))))
    shown = envbuilder("profiles", "jax-cuda").out.splitlines()
    out = [" ".join(line.split()) for line in shown]
    assert "0.12.0.1 ✓ cuda12 ✓ cuda13 3.12 to 3.15" in out
    assert "driver 580.65.06 and later: cuda13" in out
    assert "builds (" not in envbuilder("profiles", "jax-xpu").out
