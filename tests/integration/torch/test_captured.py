"""A captured step trains as an eager one: with a stand-in for the graph, which needs a GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import envbuilder
from envbuilder.core import resources
from tests.conftest import succeeded

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from envbuilder.payload import captured
from envbuilder.payload.training import dataset, eager

torch.set_num_threads(1)
data = dataset.load(Path(sys.argv[1]))
held = eager.tensors(torch, dataset.Split(data.train.images, data.train.labels, 1000), "cpu")

class OnTheCpu(captured.Captured):
    def _capture(self):
        for _ in range(captured.WARM_UP + 1):
            self.step()  # what a capture records is not executed; it is put back all the same
        return self.step

    def _put_back(self, before):
        super()._put_back(before)
        # Where weights and masks come from one generator, the weights have been drawn from it.
        captured.model.build(torch, self.seed, self.job.form)

captured.Captured = OnTheCpu
adadelta = torch.optim.Adadelta  # the CPU has none that can be captured
torch.optim.Adadelta = lambda parameters, lr, capturable=False: adadelta(parameters, lr=float(lr))
if sys.argv[2:] == ["forgets"]:
    OnTheCpu._put_back = lambda self, before: None
measured = captured.measure(torch, "cpu", held, 1)
if sys.argv[2:]:
    print(json.dumps([measured]))
    raise SystemExit
losses = OnTheCpu(torch, "cpu", held, 1).epoch(held)
job = eager.prepare(torch, "cpu", captured.model.fastest("cpu"), 1)
job.shuffle(held)
eagerly = job.fetch([job.step(n * 64, min(64, 1000 - n * 64)) for n in range(16)])
print(json.dumps([measured, losses, eagerly, OnTheCpu(torch, "cpu", held, 1).epoch(held)]))
"""


def run(python: Path, *words: str) -> list[object]:
    root = str(Path(envbuilder.__file__).parents[1])
    done = succeeded(subprocess.run(
        [str(python), "-c", PROGRAM, str(resources.mnist_subset_dir()), *words],
        env={"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False, timeout=300,
    ))  # fmt: skip
    result: list[object] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_captured_epoch_has_the_losses_of_an_eager_one(torch_python: Path) -> None:
    measured, losses, eagerly, again = run(torch_python)
    assert (measured["compared"], measured["counts"]) == (10, True)
    assert measured["seconds"] > 0
    assert len(losses) == 16, "the last, smaller batch too"
    assert losses == pytest.approx(eagerly, abs=1e-5)
    assert losses == again


@pytest.mark.soak
def test_a_warm_up_that_is_not_undone_does_not_count(torch_python: Path) -> None:
    measured = run(torch_python, "forgets")[0]
    assert not measured["counts"]
    assert measured["largest_difference"] > 0.01
