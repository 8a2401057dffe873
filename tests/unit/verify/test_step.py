"""A recorded training is repeated: honest ones pass, and no fault of a step does.

The training is numpy's (tests/support/recorded_training.py), with four images a step.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from envbuilder.core.errors import VerifyError
from envbuilder.payload.training import train
from envbuilder.profiles.profile import Expected
from envbuilder.verify import step
from tests.support.progress import SILENT
from tests.support.recorded_training import Faults, Numpy, digits, train_and_record

EPOCHS = 2
IMAGES = 4
NUMBERS = (0, 1)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (train, step):
        monkeypatch.setattr(module, "BATCH", 4)
    monkeypatch.setattr(step, "_UNTRAINED", 0.6)  # of four images the loss is not that certain


HONEST = Faults()


def proved(folder: Path, faults: Faults = HONEST, framework: str = "jax") -> step.Proof:
    split = digits(IMAGES)
    train_and_record(folder, split, NUMBERS, EPOCHS, faults, Numpy(rows_first=framework == "torch"))
    return prove(folder, framework=framework)


def prove(
    folder: Path,
    numbers: tuple[int, ...] = NUMBERS,
    framework: str = "jax",
    device: str = "cpu",
    inference: Callable[..., Any] = lambda forward, weights, images: forward(weights, images),
) -> step.Proof:
    """Prove a record, with the answers that `inference` gives from its last weights."""
    record = step._Record(folder, digits(IMAGES), framework, numpy)
    weights = {name: parts[0] for name, parts in record.state(numbers[-1] + 1).items()}
    blind = digits(6)  # more than a batch
    pixels = numpy.frombuffer(blind.images, "u1").reshape(-1, 28, 28, 1)
    images = (pixels / 255 - train.MEAN) / train.DEVIATION
    scores = inference(forward, weights, images).astype("f4").tolist()
    expects = Expected(device=device, framework=framework, accuracy=0.9)
    answers = step.Answers(blind.images, scores)
    return step.prove(folder, numbers, digits(IMAGES), answers, expects, SILENT)


def forward(weights: dict[str, Any], images: Any) -> Any:
    return step.reference.forward(numpy, weights, images, ()).log_probabilities


@pytest.mark.parametrize("framework", ["torch", "jax", "tensorflow"])
def test_an_honest_training_is_proven(tmp_path: Path, framework: str) -> None:
    proof = proved(tmp_path, framework=framework)
    assert proof.problem == ""
    assert [(each.step, each.epoch) for each in proof.steps] == [(1, 1), (2, 2)]
    assert max(each.error for each in proof.steps) < 1e-4
    assert "2 steps of the training repeated outside" in proof.summary


def of_the_step_before() -> Any:
    before: dict[int, Any] = {}

    def gradients(right: Any, number: int) -> Any:
        before[number] = right
        return before[max(number - 1, 0)]

    return gradients


def added_up() -> Any:
    total: dict[str, Any] = {}

    def gradients(right: Any, number: int) -> Any:
        total.update({name: total.get(name, 0) + value for name, value in right.items()})
        return dict(total)

    return gradients


def as_bfloat16(values: Any, *_: Any) -> Any:
    return (values.astype("f4").view("u4") + 0x8000 & 0xFFFF0000).astype("u4").view("f4")


def constant() -> Any:
    first: list[Any] = []

    def kept(right: Any, number: int) -> Any:
        first.extend(right if not first else [])
        return [mask[: len(right[0])] for mask in first]

    return kept


def clipped(right: Any, number: int) -> Any:
    return {name: numpy.clip(value, -1e-4, 1e-4) for name, value in right.items()}


WRONG = {
    "every second update skipped": Faults(updated=lambda new, old, n: old if n % 2 else new),
    "gradients of the step before": Faults(gradients=of_the_step_before()),
    "gradients that are never reset": Faults(gradients=added_up()),
    "the loss of half of each batch": Faults(labels=lambda right, n: right[[0, 1, 0, 1]]),
    "weights rounded to bfloat16": Faults(updated=as_bfloat16),
    "a scheduler without effect": Faults(rate=lambda right, n: 1.0),
    "a fifth of the learning rate": Faults(rate=lambda right, n: right / 5),
    "updates that are wrong from the last epoch on": Faults(
        updated=lambda new, old, n: old if n >= 1 else new
    ),
    "averages in bfloat16": Faults(averages=as_bfloat16),
    "averages that are reset": Faults(averages=lambda right, n: right * (n % 2)),
    "another decay of the averages": Faults(rho=0.95),
    "weights that decay": Faults(updated=lambda new, old, n: new - 1e-3 * old),
    "clipped gradients": Faults(gradients=clipped),
    "one layer's bias that stays": Faults(
        updated=lambda new, old, n: old if new.shape == (64,) else new
    ),
    "shifted images": Faults(images=lambda right, n: numpy.roll(right, 1, axis=2)),
    "other images than the order's": Faults(images=lambda right, n: right[::-1]),
    "labels of other images": Faults(labels=lambda right, n: right[::-1]),
    "a loss made up": Faults(loss=lambda right, n: right * 0.99),
    "a loss that is not finite": Faults(loss=lambda right, n: float("nan")),
    "weights that are not finite": Faults(updated=lambda new, old, n: new * float("nan")),
    "no dropout": Faults(kept=lambda right, n: [mask | True for mask in right]),
    "too much dropped": Faults(kept=lambda right, n: [right[0], right[1] & (right[1][::-1])]),
    "one mask for all steps": Faults(kept=constant()),
    "one mask for all images": Faults(
        kept=lambda right, n: [right[0][:1].repeat(len(right[0]), axis=0), right[1]]
    ),
}
WORDS = {
    "a loss made up": "reports a loss that is wrong",
    "a loss that is not finite": "reports a loss that is wrong",
    "no dropout": "dropped 0.0%, not 25%",
    "too much dropped": "dropout 2 dropped",
    "one mask for all steps": "the same units",
    "one mask for all images": "the same units",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_step_is_no_proof(tmp_path: Path, name: str) -> None:
    problem = proved(tmp_path, WRONG[name]).problem
    assert WORDS.get(name, "") in problem
    assert problem


TRAINED = {
    "one layer of another training": lambda right, name: right * (1 + (name == "conv1.weight")),
    "weights that moved a little": lambda right, name: right * 1.005,
    "weights of another initialiser": lambda right, name: (
        numpy.random.default_rng(1).normal(0, right.std(), right.shape).astype("f4")
    ),
    "zeros": lambda right, name: right * (name != "fc2.weight"),
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_that_starts_from_trained_weights_is_no_proof(tmp_path: Path, name: str) -> None:
    problem = proved(tmp_path, Faults(first=TRAINED[name])).problem
    assert "does not look freshly initialized" in problem


def test_a_first_loss_that_no_untrained_network_has_is_no_proof(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights may be distributed as an initialiser's, and know their images nevertheless."""
    monkeypatch.setattr(step, "_UNTRAINED", 1e-6)
    assert "from scratch: its first loss is" in prove(recorded).problem


ANSWERED = {
    "products in float16": lambda forward, weights, images: forward(
        {n: w.astype("f2").astype("f8") for n, w in weights.items()}, images
    ),
    "a bias of the step before": lambda forward, weights, images: forward(
        {n: w * (1 - 1e-3 * (n == "fc2.bias")) for n, w in weights.items()}, images
    ),
    "other constants": lambda forward, weights, images: forward(
        weights, images + (0.1307 - 0.131) / 0.3081
    ),
    "one image looked up": lambda forward, weights, images: (
        forward(weights, images) * (1 + 1e-3 * (numpy.arange(len(images)) == 3)[:, None])
    ),
    "no number": lambda forward, weights, images: forward(weights, images) * float("nan"),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_answers_that_the_network_does_not_give_are_no_proof(recorded: Path, name: str) -> None:
    proof = prove(recorded, inference=ANSWERED[name])
    assert proof.problem.startswith("the blind test was not answered by the trained network")


def test_masks_that_an_epoch_repeats_are_no_proof(tmp_path: Path) -> None:
    """They are those of steps 1 and 3; each differs from that of the step before."""
    masks: list[Any] = []

    def repeated(right: Any, number: int) -> Any:
        masks.append(right)
        return masks[number % 2]

    split = digits(2 * IMAGES)
    train_and_record(tmp_path, split, (0, 1, 2, 3), 2, Faults(kept=repeated))
    record = step._Record(tmp_path, split, "jax", numpy)
    of_steps = [step._repeat(record, number, 1e-4)[2] for number in range(4)]
    assert list(step._dropouts(of_steps[:2])) == []
    assert set(step._dropouts(of_steps[:3])) == {
        "dropout 1 always drops the same units",
        "dropout 2 always drops the same units",
    }


def test_a_small_error_of_all_steps_is_found(tmp_path: Path) -> None:
    """It stays below the bound of a single step, which leaves room for one unit on the edge."""
    proof = proved(tmp_path, Faults(rate=lambda right, n: right * 1.01))
    assert max(each.error for each in proof.steps) < step.MOST_ERROR
    assert proof.problem.startswith("half of the steps are wrong by 1.0e-02")


def test_averages_that_are_not_zero_at_first(tmp_path: Path) -> None:
    proved(tmp_path)
    state = bytearray((tmp_path / "state-0").read_bytes())
    state[-4:] = struct.pack("<f", 1e-9)
    (tmp_path / "state-0").write_bytes(state)
    assert "not zero before the first step" in prove(tmp_path).problem


def test_a_unit_at_zero_may_be_on_either_side(tmp_path: Path, monkeypatch: Any) -> None:
    """Adadelta makes of one unit that rounding put on the other side as much as of a right step."""
    real = step.reference.backward

    def other_side(numpy: Any, passed: Any, active: Any) -> Any:
        active = active.copy()
        active[0, 5] ^= True
        return real(numpy, passed, active)

    monkeypatch.setattr(step.reference, "backward", other_side)
    all_kept = Faults(kept=lambda right, n: [right[0], right[1] | True])
    train_and_record(tmp_path, digits(IMAGES), (0,), 1, all_kept)
    monkeypatch.setattr(step.reference, "backward", real)
    assert "changes" in prove(tmp_path, (0,)).problem
    monkeypatch.setattr(step, "_NEAR", 1e9)
    monkeypatch.setattr(step, "_choices", lambda near: ((), (near[5],)))
    assert "changes" not in prove(tmp_path, (0,)).problem


def test_of_too_many_units_at_zero_no_side_is_tried() -> None:
    """A network of zeros has thousands: trying their subsets would never end."""
    assert len(list(step._choices(numpy.zeros((6, 2))))) == 2**6
    assert list(step._choices(numpy.zeros((7, 2)))) == [()]


def test_what_should_not_move_must_not() -> None:
    still = {"fc2.bias": (numpy.zeros(10),) * 3}
    moved = {"fc2.bias": (numpy.ones(10), *still["fc2.bias"][1:])}
    gradients = {"fc2.bias": numpy.zeros(10)}
    assert step._worst(numpy, still, still, gradients, 1.0)[0] == 0.0
    assert step._worst(numpy, still, moved, gradients, 1.0) == (step._LARGEST, "fc2.bias")


FILES = ("order-1", "order-2", "state-0", "state-1", "state-2", "step-0", "step-1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "BATCH", 4)
        train_and_record(folder, digits(IMAGES), NUMBERS, EPOCHS)
    return folder


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, "missing") for name in FILES),
        *(("step-0", change) for change in ("shorter", "longer", "link", "folder", "pipe")),
    ],
)
def test_a_record_without_a_part_is_no_proof(
    tmp_path: Path, recorded: Path, name: str, change: str
) -> None:
    for each in FILES:
        os.link(recorded / each, tmp_path / each)
    file = tmp_path / name
    content = file.read_bytes()
    file.unlink()
    if change == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    elif change == "folder":
        file.mkdir()
    elif change == "pipe":
        os.mkfifo(file)
    elif change != "missing":
        file.write_bytes(content[:-1] if change == "shorter" else content + b"\0")
    with pytest.raises(VerifyError, match=name):
        prove(tmp_path)


def test_an_order_that_repeats_an_image_is_no_proof(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match="did not take each image once"):
        proved(tmp_path, Faults(order=lambda right, n: right % (IMAGES // 2)))


def test_a_mask_of_other_values_is_no_proof(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match="a mask has values other than 0 and 1"):
        proved(tmp_path, Faults(kept=lambda right, n: [right[0].astype("u1") * 2, right[1]]))


def problems_of(folder: Path, *orders: Any) -> list[str]:
    for epoch, order in enumerate(orders, 1):
        (folder / f"order-{epoch}").write_bytes(numpy.asarray(order, "<i4").tobytes())
    count = len(orders[0])
    record = step._Record(folder, digits(count), "jax", numpy)
    return list(step._orders(record, range(len(orders))))


def shuffled(seed: int, count: int = 3000) -> Any:
    return numpy.random.default_rng(seed).permutation(count)


def test_orders_are_random_and_differ(tmp_path: Path) -> None:
    for seed in range(0, 100, 3):
        assert problems_of(tmp_path, *map(shuffled, range(seed, seed + 3))) == []
    plain = numpy.arange(3000)
    near = plain.reshape(-1, 60)[:, ::-1].ravel()  # shuffled within small groups only
    for order in (plain, plain[::-1], near):
        assert problems_of(tmp_path, order) == ["the images of epoch 1 were not shuffled"]
    again = problems_of(tmp_path, shuffled(1), shuffled(2), shuffled(1))
    assert again == ["epochs 1 and 3 took images in a similar order"]


@pytest.mark.parametrize(
    ("images", "epochs"), [(3000, 3), (60_000, 1), (3000, 100), (8, 1), (4, 3)]
)
def test_the_steps_that_are_drawn(images: int, epochs: int) -> None:
    count = train.steps_of(images)
    for _ in range(20):
        numbers = step.draw(images, epochs)
        assert list(numbers) == sorted(set(numbers))
        assert min(numbers) >= 0
        assert max(numbers) < count * epochs
        last = count * epochs - 1
        assert {0, min(1, last), last} <= set(numbers)
        assert epochs == 1 or count in numbers
        drawn = {number // count for number in numbers}
        assert {0, epochs - 1} <= drawn
        assert len(drawn) >= min(epochs, step.MOST_DRAWN)
        assert min(step.LEAST_STEPS, count * epochs) <= len(numbers) <= step.MOST_DRAWN + 4
    drawn = {step.draw(images, epochs) for _ in range(20)}
    assert len(drawn) > 1 or count < 4
