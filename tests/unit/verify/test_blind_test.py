"""The blind test: only answers of a network that learned are worth anything."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from envbuilder.core.errors import VerifyError
from envbuilder.core.settings import load as load_settings
from envbuilder.payload.training.dataset import Split
from envbuilder.payload.training.outside import IMAGES
from envbuilder.verify import blind_test
from envbuilder.verify.blind_test import PIXELS, BlindTest, Score
from envbuilder.verify.report.consistency import Gates
from envbuilder.verify.report.model import Epoch
from tests.support.json_values import json_values
from tests.support.pretended_payload import coarse, scores

COUNT = 40
GATES = Gates(accuracy=0.975, loss=0.1, blind_loss=0.42)
SPLIT = Split(
    b"".join(bytes([4 * n]) * PIXELS for n in range(COUNT)),
    bytes(n % 10 for n in range(COUNT)),
    COUNT,
)


def asked(folder: Path) -> tuple[BlindTest, list[int]]:
    """A test whose questions are there, and the right answers to them."""
    test = BlindTest(SPLIT, folder)
    test.ask()
    content = (folder / IMAGES).read_bytes()
    images = [content[n * PIXELS : (n + 1) * PIXELS] for n in range(COUNT)]
    return test, [coarse(image)[0] // 4 % 10 for image in images]


def answers(classes: list[Any], first: Any = 0) -> dict[str, Any]:
    return {"first": first, "classes": classes, "scores": [scores(c) for c in classes]}


def refusal(test: BlindTest) -> str:
    """Why the test is not scored."""
    with pytest.raises(VerifyError) as caught:
        test.score()
    return caught.value.message


def test_right_answers_are_scored(tmp_path: Path) -> None:
    test, classes = asked(tmp_path)
    test.answer(answers(classes[:30]))
    test.answer(answers(classes[30:], first=30))
    score = test.score()
    assert (score.images, score.accuracy) == (COUNT, 1.0)
    assert score.loss == pytest.approx(0.0943)


def test_a_part_of_the_data_is_asked_and_a_wrong_answer_counts(tmp_path: Path) -> None:
    test = BlindTest(Split(SPLIT.images, SPLIT.labels, 7), tmp_path)
    test.ask()
    assert (tmp_path / IMAGES).stat().st_mode & 0o777 == 0o644, "a container reads them"
    assert len((tmp_path / IMAGES).read_bytes()) == 7 * PIXELS
    test, classes = asked(tmp_path)
    test.answer(answers([(classes[0] + 1) % 10, *classes[1:]]))
    assert test.score().accuracy == 1 - 1 / COUNT


def test_scores_that_name_every_class_are_right_as_often_as_a_guess(tmp_path: Path) -> None:
    test, classes = asked(tmp_path)
    undecided = [[-math.log(10)] * 10] * COUNT
    test.answer({"first": 0, "classes": classes, "scores": undecided})
    assert test.score().accuracy == 0.1


def test_the_order_is_secret_and_no_image_is_one_of_the_file(tmp_path: Path) -> None:
    content = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        asked(tmp_path / name)
        content.append((tmp_path / name / IMAGES).read_bytes())
    first = [coarse(c)[n * PIXELS] for c in content for n in range(COUNT)]
    assert sorted(first[:COUNT]) == sorted(first[COUNT:]) == [4 * n for n in range(COUNT)]
    assert first[:COUNT] != first[COUNT:], "40! orders: never equal"
    known = {SPLIT.images[n * PIXELS : (n + 1) * PIXELS] for n in range(COUNT)}
    sent = {content[0][n * PIXELS : (n + 1) * PIXELS] for n in range(COUNT)}
    assert not known & sent


NUMBER = "the number of answers differs from the number of images"
ORDER = "the answers are not in order"
NOTHING = "an answer lacks classes or scores"
NO_CLASS = "an answer names a class that does not exist"
SUM = "the probabilities of an image do not add up to 1"
NOT_TEN = "the scores of an image are not ten log-probabilities"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda e: [], "answers arrived for only 0 of 40 images"),
        (
            lambda e: [{**e, "classes": e["classes"][:-1]}],
            NUMBER,
        ),
        (lambda e: [e, e], ORDER),
        (lambda e: [{**e, "first": None}], ORDER),
        (lambda e: [{**e, "first": True}], ORDER),
        (lambda e: [{**e, "classes": None}], NOTHING),
        (lambda e: [{**e, "scores": {}}], NOTHING),
        (
            lambda e: [answers([*e["classes"], 1])],
            NUMBER,
        ),
        (lambda e: [{**e, "classes": [10] * COUNT}], NO_CLASS),
        (
            lambda e: [{**e, "classes": [True] * COUNT}],
            NO_CLASS,
        ),
        (
            lambda e: [answers([7] * COUNT) | {"scores": [scores(8)] * COUNT}],
            "an answer names class 7, which is not the most probable one for its image",
        ),
        (
            lambda e: [{**e, "scores": [[0.0] * 10] * COUNT}],
            SUM,
        ),
        (
            lambda e: [{**e, "scores": [[-2.3]] * COUNT}],
            NOT_TEN,
        ),
        (
            lambda e: [{**e, "scores": [[math.nan] * 10] * COUNT}],
            NOT_TEN,
        ),
        (
            lambda e: [{**e, "scores": [["0"] * 10] * COUNT}],
            NOT_TEN,
        ),
        (
            lambda e: [{**e, "scores": [None] * COUNT}],
            NOT_TEN,
        ),
    ],
)
def test_answers_that_are_none(tmp_path: Path, spoil: Any, words: str) -> None:
    test, classes = asked(tmp_path)
    for event in spoil(answers(classes)):
        test.answer(event)
    assert refusal(test) == f"the blind test failed: {words}"


def test_answers_before_the_questions(tmp_path: Path) -> None:
    test = BlindTest(SPLIT, tmp_path)
    test.answer(answers([1] * COUNT))
    assert refusal(test).endswith(": the payload answered before it got the images")


def test_questions_are_given_once(tmp_path: Path) -> None:
    test, classes = asked(tmp_path)
    test.ask()
    test.answer(answers(classes))
    assert refusal(test).endswith(": the payload requested the images twice")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    test = BlindTest(SPLIT, tmp_path / "file")
    test.ask()
    assert refusal(test) == f"the blind test failed: {tmp_path / 'file'}: File exists"


@given(json_values, json_values, json_values)
def test_no_answer_breaks_the_scoring(first: Any, classes: Any, rows: Any) -> None:
    test = BlindTest(SPLIT, Path("/nonexistent/folder"))
    test.requested = True
    test.answer({"first": first, "classes": classes, "scores": rows})
    with pytest.raises(VerifyError):
        test.score()


@pytest.mark.parametrize(
    ("images", "accuracy", "loss", "reported", "words"),
    [
        (10_000, 0.981, 0.05, 0.982, None),
        (10_000, 0.975, 0.42, 0.980, None),
        (10_000, 0.9804, 0.05, 0.975, None),
        (10_000, 0.9806, 0.05, 0.975, "the payload reported 97.50%"),
        (10_000, 0.976, 0.05, 0.984, "the payload reported 98.40%"),
        (10_000, 0.974, 0.05, 0.974, "at least 97.50% is needed"),
        (10_000, 0.982, 0.05, math.nan, "the payload reported nan%"),
        (10_000, 0.982, 2.30, 0.982, "at most 0.42 is allowed"),
        (10_000, 0.982, math.nan, 0.982, "at most 0.42 is allowed"),
        # A few images close to two classes are no lie.
        (1000, 0.981, 0.05, 0.9905, None),
        (1000, 0.981, 0.05, 0.992, "the payload reported 99.20%"),
    ],
)
def test_the_score_supports_the_report(
    images: int, accuracy: float, loss: float, reported: float, words: str | None
) -> None:
    score = Score(images=images, accuracy=accuracy, loss=loss)
    summary = f"{accuracy:.2%} of {images} images right, cross-entropy {loss:.3f}"
    expected = f"{summary}, but {words}" if words else ""
    assert blind_test.problem(score, last(reported), GATES) == expected


def last(accuracy: float, loss: float = 0.05) -> Epoch:
    """Return a last epoch."""
    times = {"seconds": 2.0, "data_seconds": 0.5, "compute_seconds": 1.5}
    return Epoch(**times, samples_per_second=1500.0, loss=loss, accuracy=accuracy)


def test_the_loss_in_training_must_be_low_too() -> None:
    score = Score(images=10_000, accuracy=0.981, loss=0.05)
    problem = blind_test.problem(score, last(0.981, loss=2.3129), GATES)
    assert problem == "the training loss is 2.313, but at most 0.10 is allowed"


def test_the_folder_of_the_questions_is_locked_and_goes(tmp_path: Path) -> None:
    from filelock import FileLock, Timeout

    own = load_settings({"ENVBUILDER_CACHE_DIR": str(tmp_path)}, tmp_path)
    with blind_test.exchange(own) as folders:
        modes = {name: path.stat().st_mode & 0o777 for name, path in folders.items()}
        assert modes == {"questions": 0o755, "record": 0o777}
        folder = folders["record"].parent
        assert folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(Timeout), FileLock(f"{folder}.lock", timeout=0):
            pass
    assert list((tmp_path / "build").iterdir()) == []
