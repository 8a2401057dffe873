"""Ways to fool a verification, each tried on a real environment: the verdict must not believe it.

A fault is injected into an environment, never into the check: an `Overlay` is a native environment
with all that another one has, in which one small module of `sabotage/` is imported when the
interpreter starts or as soon as torch is imported. It is verified by the real commands. Every test
asks for the exit code, the report's verdict and the name of the check that found the cause.

The table is `tests/support/sabotages.py`. One of each class runs always, all with `make soak`.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.core import resources
from envbuilder.payload.training.dataset import MNIST_SHA256
from tests.support import warm
from tests.support.overlays import COMMAND, ONE_EPOCH, Bench, Verdict, Words
from tests.support.pretended_payload import quick_report
from tests.support.reports import measured
from tests.support.sabotages import (
    ALL_CHECKS,
    CLOCKS,
    DEATHS,
    DEVICES,
    FORGED,
    LEARNING,
    NUMBERS,
    PLANTED,
    STEPS,
    Device,
    Forged,
    Planted,
    Sabotage,
    parameters,
    plant,
)

MODULES = Path(__file__).with_name("sabotage")
soak = pytest.mark.soak
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kept(torch_prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm.keep(torch_prefix, "torch._dynamo", tmp_path_factory.mktemp("kept"))


@pytest.fixture
def bench(
    tmp_path: Path, torch_prefix: Path, session_environment: dict[str, str], kept: Path
) -> Bench:
    return Bench(tmp_path, torch_prefix, session_environment, kept, MODULES)


# Without a fault, the same commands pass: what fails below fails for its fault.


@soak  # with the other tests, an old release does (test_old_releases.py)
def test_an_overlay_without_a_fault_passes(bench: Bench) -> None:
    found = bench.verify(bench.overlay)
    assert (found.code, found.report["status"], found.report["reasons"]) == (0, "passed", [])


# The device.


@pytest.mark.parametrize("sabotage", parameters(DEVICES))
def test_a_device_that_cannot_be_used(bench: Bench, sabotage: Device) -> None:
    overlay = bench.overlay
    if sabotage.node:
        overlay.with_node(sabotage.node)
    if sabotage.name:
        overlay.after_torch(sabotage.name)
    found = bench.verify(overlay, "--force", profile=sabotage.profile)
    found.require_failed(sabotage.check, sabotage.words)
    assert found.report["device"] == {
        **found.report["device"],
        "requested": sabotage.profile,
        "used": None,
    }


TOGETHER = [s for s in NUMBERS if s.in_ci and s.check not in {"run", "clock"}]
"""Checks that do not depend on each other: one run shows many. "run" and clocks may end it."""


@pytest.mark.parametrize(
    "sabotage",
    [
        *(pytest.param(s, id=s.name, marks=soak) for s in TOGETHER),
        *parameters(s for s in NUMBERS if s not in TOGETHER),
    ],
)
def test_wrong_numbers_and_wrong_witnesses(
    bench: Bench, few_digits: Words, sabotage: Sabotage
) -> None:
    overlay = bench.overlay.after_torch(sabotage.name)
    found = bench.payload(overlay, "--device", "cpu", *few_digits)
    found.require_failed(sabotage.check, sabotage.words)


@pytest.mark.soak
def test_each_of_several_faults_is_named(bench: Bench, few_digits: Words) -> None:
    overlay = bench.overlay.after_torch(*(s.name for s in TOGETHER))
    found = bench.payload(overlay, "--device", "cpu", *few_digits)
    for sabotage in TOGETHER:
        found.require_failed(sabotage.check, sabotage.words)


def test_another_device_is_asked_for_on_the_way(bench: Bench) -> None:
    overlay = bench.overlay.at_start("asked_for_the_cpu")
    found = bench.verify(overlay, "--force", profile="cuda")
    found.require_failed("run", "device: cuda was requested, but cpu is reported")


@soak
def test_a_device_that_does_its_work_on_the_cpu(bench: Bench, few_digits: Words) -> None:
    overlay = bench.overlay.after_torch("device_that_is_the_cpu")
    found = bench.payload(overlay, "--device", "mps", *few_digits)
    found.require_failed("device used", "tensors of the training step lived on cpu")
    assert found.report["device"]["used"] == "cpu"


# Learning.


@pytest.mark.parametrize("sabotage", parameters(LEARNING))
def test_learning_that_did_not_happen(bench: Bench, sabotage: Sabotage) -> None:
    found = bench.verify(bench.overlay.after_torch(sabotage.name))
    found.require_failed(sabotage.check, sabotage.words)


@pytest.mark.parametrize("sabotage", parameters(STEPS))
def test_steps_that_are_not_the_published_ones(bench: Bench, sabotage: Sabotage) -> None:
    """Two epochs: the first has the first steps, the second another learning rate and order."""
    found = bench.verify(bench.overlay.after_torch(sabotage.name), "--epochs", "2")
    found.require_failed(sabotage.check, sabotage.words)


@soak
def test_dropout_that_stays_on_gives_no_answers(bench: Bench) -> None:
    """Its answers differ each time: from the accuracy reported, or from the network's alone."""
    found = bench.verify(bench.overlay.after_torch("evaluation_with_dropout"))
    assert (found.code, found.report["status"]) == (5, "failed")
    assert "the blind test" in found.report["reasons"][0]


@soak
def test_a_compile_backend_with_wrong_gradients_counts_for_nothing(
    bench: Bench, few_digits: Words
) -> None:
    overlay = bench.overlay.after_torch("inductor_with_wrong_gradients")
    options = [word for word in few_digits if word != "--quick"]
    backend = ("--compile-backend", "inductor")
    found = bench.payload(overlay, "--device", "cpu", *options, *backend)
    assert found.code == 0, "a fault of a compile backend is a warning, not a failure"
    assert found.check("compile inductor")["status"] == "warning"
    (entry,) = found.report["compile"]
    assert entry["gradients"]["passed"] is entry["training"]["counts"] is False
    assert entry["gradients"]["forms"]["published"]["gradients"]["conv1.weight"] == 1.0


# The data.


def permuted(content: bytes) -> bytes:
    return content[:8] + content[9:] + content[8:9]


def truncated(content: bytes) -> bytes:
    return content[:-784]


def replaced(content: bytes) -> bytes:
    return content[:16] + bytes(len(content) - 16)


@pytest.mark.parametrize(
    ("stem", "change"),
    [
        ("train-labels-idx1-ubyte", permuted),
        ("train-images-idx3-ubyte", truncated),
        ("t10k-images-idx3-ubyte", replaced),
    ],
)
def test_data_that_are_not_mnist_are_refused(
    bench: Bench, mnist_dir: Path, stem: str, change: Callable[[bytes], bytes]
) -> None:
    data = bench.folder / "mnist"
    data.mkdir()
    for other in MNIST_SHA256:
        (data / other).symlink_to(mnist_dir / other)
    (data / stem).unlink()
    (data / stem).write_bytes(change((mnist_dir / stem).read_bytes()))
    found = bench.verify(bench.overlay, "--data", data)
    assert (found.code, found.report) == (2, {})
    assert f"{data / stem}: truncated or changed MNIST file" in found.stderr


@soak
def test_labels_shuffled_in_the_files_are_not_learned(bench: Bench) -> None:
    data = bench.folder / "digits"
    data.mkdir()
    for stem in MNIST_SHA256:
        packed = (resources.mnist_subset_dir() / f"{stem}.gz").read_bytes()
        content = gzip.decompress(packed)
        (data / stem).write_bytes(permuted(content) if "labels" in stem else content)
    found = bench.payload(bench.overlay, "--device", "cpu", *ONE_EPOCH, "--data", data)
    assert found.report["training"]["epochs"][0]["accuracy"] < 0.3
    assert found.check("dataset")["status"] == "warning"


# Extensions.

WITH_EXTENSION = """\
extends: cpu
description: The profile of another extension, over the environment of cpu
opt_in: true
expects:
  extension: {name}
"""


@pytest.mark.parametrize(
    ("name", "module", "fault", "check", "words"),
    [
        (
            "zentorch",
            "zentorch",
            "extension_of_another_minor",
            "extension zentorch",
            "undefined symbol",
        ),
        (
            "ipex",
            "intel_extension_for_pytorch",
            "extension_that_ends_the_process",
            "extension ipex",
            "(exit 127): ERROR!",
        ),
        pytest.param(
            "ipex",
            "intel_extension_for_pytorch",
            "extension_that_ends_the_payload",
            "run",
            "the payload ended with exit code 0",
            marks=soak,
        ),
    ],
)
def test_an_extension_that_does_not_go_with_this_torch(
    bench: Bench, name: str, module: str, fault: str, check: str, words: str
) -> None:
    (bench.folder / "envbuilder.yaml").write_text("")
    (bench.folder / "profiles").mkdir()
    (bench.folder / "profiles/other.yaml").write_text(WITH_EXTENSION.format(name=name))
    overlay = bench.overlay.package(module, fault)
    bench.verify(overlay, profile="other").require_failed(check, words)


@soak
def test_an_extension_that_does_nothing(bench: Bench, few_digits: Words) -> None:
    overlay = bench.overlay.package("zentorch", "extension_that_does_nothing")
    options = [word for word in few_digits if word != "--quick"]
    wanted = ("--extension", "zentorch", "--require-kernels", "zentorch::")
    backend = ("--compile-backend", "zentorch")
    found = bench.payload(overlay, "--device", "cpu", *options, *wanted, *backend)
    found.require_failed("kernels", "required kernels did not run")


# How the payload ends.


@pytest.mark.parametrize("sabotage", parameters(DEATHS))
def test_a_payload_that_dies(bench: Bench, sabotage: Sabotage) -> None:
    found = bench.verify(bench.overlay.after_torch(sabotage.name))
    found.require_failed(sabotage.check, sabotage.words)


@soak
def test_memory_that_runs_out(bench: Bench) -> None:
    found = bench.verify(bench.overlay.after_torch("out_of_memory"))
    assert (found.code, found.report["status"]) == (5, "failed")
    said = " ".join(found.report["reasons"]).lower()
    # Whatever needs memory first: an import that cannot map its library says so in its own words.
    assert any(words in said for words in ("memory", "thread creation failed", "can't load"))


SHORT = """\
from envbuilder import cli
from envbuilder.builds import payload as pack
pack.TIMEOUT_SECONDS = 3.0
cli.main()
"""


def test_a_payload_that_hangs(bench: Bench) -> None:
    overlay = bench.overlay.at_start("hanging")
    began = time.monotonic()
    found = bench.verify(overlay, command=(sys.executable, "-c", SHORT))
    found.require_failed("run", "did not end within")
    assert time.monotonic() - began < 60


# Reports.


@pytest.mark.parametrize("forged", parameters(FORGED))
def test_a_forged_report(bench: Bench, forged: Forged) -> None:
    """The environment's interpreter prints it in place of the payload's; it trained nothing."""
    overlay = bench.overlay.at_start("forged_report")
    event = {"event": "report", "run_id": forged.run_id, "report": quick_report(**forged.changes)}
    (overlay.site / "forged.jsonl").write_text(json.dumps(event) + "\n")
    (overlay.site / "forged.code").write_text(str(forged.code))
    bench.verify(overlay).require_failed(forged.check, forged.words)


def test_an_exit_code_that_lies(bench: Bench) -> None:
    overlay = bench.overlay.at_start("exit_code_that_lies")
    found = bench.verify(overlay, "--force", profile="cuda")
    found.require_failed(
        "run", "report (failed) cannot be trusted: the payload ended with exit code 0"
    )


def in_namespace(bench: Bench, mount: str) -> Words:
    """A command whose mounts nobody else sees; `mount` is run first."""
    command = ("unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")
    if shutil.which("unshare") is None or bench.run(*command, "true").returncode:
        pytest.skip("no mount namespace of our own here")
    return (*command, *COMMAND)


@soak
def test_a_full_disk_leaves_the_verdict(bench: Bench) -> None:
    full = bench.folder / "full"
    full.mkdir()
    command = in_namespace(bench, f"mount -t tmpfs -o size=4k none {full}")
    nowhere = ("--output", full / "report.json")
    found = bench.verify(bench.overlay, "--force", *nowhere, profile="cuda", command=command)
    found.require_failed("build", "is a cpu build")
    assert "No space left" in found.stderr


@pytest.mark.soak
def test_without_shared_memory_training_works_and_loaders_are_warned_of(bench: Bench) -> None:
    command = in_namespace(bench, "mount -t tmpfs -o ro,size=4k none /dev/shm")
    found = bench.verify(bench.overlay, command=command)
    assert (found.code, found.report["status"]) == (0, "passed")
    assert found.check("shared memory")["status"] == "warning"
    assert "/dev/shm cannot be written" in found.check("shared memory")["detail"]


# Time.


@pytest.mark.parametrize("sabotage", parameters(CLOCKS))
def test_a_clock_that_lies(bench: Bench, few_digits: Words, sabotage: Sabotage) -> None:
    overlay = bench.overlay.at_start(sabotage.name)
    found = bench.payload(overlay, "--device", "cpu", *few_digits)
    found.require_failed(sabotage.check, sabotage.words)


@soak
def test_a_wall_clock_that_jumps_changes_nothing(bench: Bench, few_digits: Words) -> None:
    overlay = bench.overlay.at_start("wall_clock_jumps")
    found = bench.payload(overlay, "--device", "cpu", *few_digits)
    assert (found.code, found.report["reasons"]) == (0, [])
    assert "the wall clock was moved by -" in found.check("clock")["detail"]


# An environment of ours, changed after the build.


class Changed:
    """A copy of the built environment where envbuilder looks for it: one to be changed."""

    def __init__(self, bench: Bench) -> None:
        data = bench.folder / "data"
        prefix = data / "envs" / bench.prefix.name
        prefix.parent.mkdir(parents=True)
        # Links, not copies: whoever changes a file puts a new one in its place.
        shutil.copytree(bench.prefix, prefix, symlinks=True, copy_function=os.link)
        bench.environment["ENVBUILDER_DATA_DIR"] = str(data)
        self.bench = bench
        self.prefix = prefix
        self.torch = next(prefix.glob("lib/python3.*/site-packages/torch"))

    def replace(self, file: Path, content: bytes) -> None:
        assert file.read_bytes() != content
        file.unlink()
        file.write_bytes(content)

    def verify(self) -> Verdict:
        which = ("--profile", "cpu", "--backend", "venv")
        found = self.bench.envbuilder(*which, *ONE_EPOCH)
        if found.report["artifact"]["ref"] != str(self.prefix):
            raise RuntimeError("built anew: the change was not looked at")
        return found

    def verify_as_it_is(self) -> Verdict:
        python = self.prefix / "bin/python"
        return self.bench.envbuilder("--profile", "cpu", "--python", python, *ONE_EPOCH)


@pytest.fixture
def changed(bench: Bench) -> Changed:
    return Changed(bench)


@pytest.mark.parametrize("planted", parameters(PLANTED))
def test_a_sealed_environment_that_was_changed(changed: Changed, planted: Planted) -> None:
    plant(changed.torch.parent, planted)
    changed.verify().require_failed(planted.check, planted.words)


EDITED = b"""
_right = conv2d
def conv2d(images, weight, *rest, **options):
    return _right(images, weight, *rest, **options) * (1 if images.element_size() == 8 else 1.001)
"""


@soak
def test_torch_edited_after_the_build_so_that_results_change(changed: Changed) -> None:
    file = changed.torch / "nn/functional.py"
    changed.replace(file, file.read_bytes() + EDITED)
    changed.verify().require_failed("run", "torch/nn/functional.py (changed)")
    changed.verify_as_it_is().require_failed("arithmetic", "float32 conv2d")


def test_a_payload_put_in_place_after_the_build(changed: Changed) -> None:
    report = {"event": "report", "report": measured(checks=ALL_CHECKS)}
    changed.replace(
        changed.prefix / "lib/envbuilder/payload.pyz",
        f"print({json.dumps(report)!r})\n".encode(),
    )
    changed.verify().require_failed("run", "payload.pyz")


BYTECODE = """
import importlib.util, marshal, os, struct, sys
source = sys.argv[1]
cached = importlib.util.cache_from_source(source)
os.makedirs(os.path.dirname(cached), exist_ok=True)
found = os.stat(source)
code = marshal.dumps(compile("print('this bytecode ran')", source, "exec"))
if os.path.exists(cached):
    os.unlink(cached)
with open(cached, "wb") as stream:
    stream.write(importlib.util.MAGIC_NUMBER)
    stream.write(struct.pack("<3I", 0, int(found.st_mtime), found.st_size) + code)
"""


@pytest.mark.soak
def test_bytecode_put_beside_a_module_is_not_run(changed: Changed) -> None:
    """Python believes bytecode that states its source's time and size; verification does not."""
    python = changed.prefix / "bin/python"
    changed.bench.run(python, "-c", BYTECODE, changed.torch / "version.py")
    assert "this bytecode ran" in changed.bench.run(python, "-c", "import torch").stdout
    found = changed.verify()
    assert (found.code, found.report["reasons"]) == (0, [])
