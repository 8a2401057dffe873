"""The payload in environments with old releases: what one cannot do is not judged, and no pass."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import envbuilder
from envbuilder.core import resources
from tests.conftest import missing, ran
from tests.support import warm
from tests.support.old_releases import OLD, Release
from tests.support.overlays import Bench, Words
from tests.support.user_index import ask_uv

MODULES = Path(__file__).with_name("sabotage")
TORCH_1_13 = Release("torch", "1.13.1", "3.8", OLD)
TORCH_2_1 = Release("torch", "2.1.2", "3.10", OLD)
PROFILER = {"device used": "cannot read what its profiler records"}
PROFILES = {"torch": "cpu", "jax": "jax-cpu", "tensorflow-cpu": "tensorflow-cpu"}
OLDEST = {TORCH_1_13: {}}
RARELY = {
    TORCH_2_1: {},
    Release("torch", "2.0.1", "3.11", OLD): {},
    Release("torch", "2.4.1", "3.8", ("numpy<2",)): {},
    Release("torch", "2.7.1", "3.9", ("numpy>=2",)): {},
    Release("torch", "2.10.0", "3.12", ("numpy>=2",)): {},
    Release("torch", "2.15.0", "3.13", ("numpy>=2",)): {},
    Release("jax", "0.4.30", "3.9"): PROFILER,
    Release("jax", "0.4.35", "3.10"): PROFILER,
    Release("jax", "0.7.2", "3.11"): {},
    Release("jax", "0.12.0.1", "3.13"): {},
    Release("tensorflow-cpu", "2.16.2", "3.10"): {},
    Release("tensorflow-cpu", "2.19.0", "3.11"): {},
    Release("tensorflow-cpu", "2.21.0", "3.13"): {},
}

Prefix = Callable[[Release], Path]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory, session_environment: dict[str, str]) -> Prefix:
    """A function that returns the environment of a release, made once, with bytecode beside it."""
    made = dict[Release, Path]()

    def prefix(release: Release) -> Path:
        if release not in made:
            folder = tmp_path_factory.mktemp("release") / "environment"
            release.install(folder, partial(install, environment=session_environment))
            warm.keep(folder, release.framework.removesuffix("-cpu"), folder.with_name("kept"))
            made[release] = folder
        return made[release]

    return prefix


def bench_of(prefix: Path, folder: Path, environment: dict[str, str]) -> Bench:
    return Bench(folder, prefix, environment, prefix.with_name("kept"), MODULES)


def install(*arguments: str, environment: dict[str, str]) -> None:
    done = ask_uv(*arguments, environment=environment)
    if done.returncode != 0:
        missing("network", f"an old release cannot be installed: {done.stderr[-300:]}")


def cases() -> list[object]:
    rarely = [pytest.param(release, id=str(release), marks=pytest.mark.soak) for release in RARELY]
    return [*(pytest.param(release, id=str(release)) for release in OLDEST), *rarely]


@pytest.mark.soak
@pytest.mark.parametrize("release", cases())
def test_a_release_is_verified_as_far_as_it_goes(
    prefix: Prefix, release: Release, tmp_path: Path, session_environment: dict[str, str]
) -> None:
    bench = bench_of(prefix(release), tmp_path, session_environment)
    found = bench.verify(bench.overlay, profile=PROFILES[release.framework])
    assert (found.code, found.report["status"]) == (0, "passed"), found.report["reasons"]
    assert found.report["framework"]["version"].startswith(release.version)
    assert found.report["framework"]["python"].startswith(f"{release.python}.")
    unjudged = {**OLDEST, **RARELY}[release]
    details = {
        c["name"]: c["detail"] for c in found.report["checks"] if "not judged" in c["detail"]
    }
    assert details.keys() == unjudged.keys()
    for name, words in unjudged.items():
        assert words in details[name]
        assert found.check(name)["status"] == "warning"


# torch 2.1 and its numpy: without a fault, the release passes (above, with `make soak`).


@pytest.fixture
def bench(prefix: Prefix, tmp_path: Path, session_environment: dict[str, str]) -> Bench:
    return bench_of(prefix(TORCH_2_1), tmp_path, session_environment)


@pytest.mark.slow
def test_a_numpy_that_torch_was_not_built_for(bench: Bench) -> None:
    overlay = bench.overlay
    words = ("pip", "install", "--quiet", "--python", str(overlay.python), "numpy>=2")
    install(*words, environment=bench.environment)
    found = bench.verify(overlay)
    found.require_failed("device", "torch 2.1.2+cu121 does not work with numpy 2.")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["arrays_that_numpy_cannot_read", "arrays_that_come_back_changed"]
)
def test_arrays_that_numpy_and_torch_do_not_share(
    bench: Bench, few_digits: Words, fault: str
) -> None:
    found = bench.payload(bench.overlay.after_torch(fault), "--device", "cpu", *few_digits)
    found.require_failed("device", "torch 2.1.2+cu121 does not work with numpy 1.")


@pytest.mark.soak
def test_several_ranks_train_together(prefix: Prefix, tmp_path: Path) -> None:
    """torchrun of torch 1 has no options with hyphens, and none for its own address."""
    script = tmp_path / "script.py"
    python = prefix(TORCH_1_13) / "bin/python"
    script.write_text("from envbuilder.payload.cli import main\nraise SystemExit(main())\n")
    words = ["parallel", "--device", "cpu", "--devices", "2", "--steps", "5"]
    words += ["--data", str(resources.mnist_subset_dir())]
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(envbuilder.__file__).parents[1])}
    done = ran(
        [python, script, *words],
        env={**os.environ, **variables})  # fmt: skip
    report = json.loads(done.stdout.splitlines()[-1])["report"]
    assert (done.returncode, report["status"], report["ranks"]) == (0, "passed", 2), done.stderr


# A compiler is measured by whole verifications alone: a release without one only loses that.


@pytest.mark.soak
def test_a_release_that_cannot_compile(prefix: Prefix, tmp_path: Path, few_digits: Words) -> None:
    bench = bench_of(prefix(TORCH_1_13), tmp_path, {})
    words = [word for word in few_digits if word != "--quick"]
    found = bench.payload(bench.overlay, "--device", "cpu", "--compile-backend", "inductor", *words)
    compiled = found.check("compile inductor")
    assert compiled["status"] == "warning"
    assert "torch 1.13.1+cu117 cannot compile: No module named" in compiled["detail"]
