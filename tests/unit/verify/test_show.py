"""The report page: the right verdict first, nothing of a report unescaped, no report too odd."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from envbuilder.builds import mnist
from envbuilder.core.errors import VerifyError
from envbuilder.profiles.profile import Expected
from envbuilder.verify import run, show
from envbuilder.verify.report import model
from envbuilder.verify.view import curve, templates
from tests.support.colours import contrast, scheme
from tests.support.folders import read_json
from tests.support.json_values import json_values
from tests.support.pages import POLICY, Seen, changed, checked, epoch, failing, page, whole


@pytest.fixture(scope="module")
def shown() -> str:
    return show.render(whole())


def test_a_whole_report_shows_everything(shown: str) -> None:
    seen = Seen(shown)
    headings = [
        "In short",
        "What did the work",
        "Checks",
        "Epochs",
        "Training loss",
        "Computing rate",
        "Bandwidth",
        "Memory",
        "Also measured",
        "torch.compile",
        "What to do next",
        "Everything else in the report",
    ]
    places = [seen.text.index(heading) for heading in ["VERIFIED", *headings]]
    assert places == sorted(places)
    for said in (
        "A GPU (cuda) did the work, its numbers agree with a float64 reference, and the network",
        "Did it train? yes Were the numbers right? yes",
        "How fast was it? 1.25 s an epoch 25 % of the rate of its matrix products",
        "1.25 s warm, median of 2",
        "Against the CPU 10.0×",
        "98.90 % 97.50 % needed",
        "20 November 2026, 09:51 UTC",
        "1 2.00 0.200 1.80 30,000 0.2000 98.40 %",
        "CPU 20.0 2.00 18.0 3,000 0.2000 98.40 %",
        "50.0 TFLOP/s",
        "12.5 TFLOP/s 25 % of float32's",
        "2.00 TB/s",
        "1.00 GiB",
        "of 32.0 GiB, 3.1 %",
        "4.10 µs",
        "inductor wrong 1.10× does not count",
        '"quota": null',
    ):
        assert said in seen.text, said
    assert "Device to device" not in seen.text
    assert "None" not in shown


def test_the_page_is_whole_and_loads_nothing(shown: str) -> None:
    seen = Seen(shown)
    assert next(tag for tag, _ in seen.tags if re.fullmatch("h[1-6]", tag)) == "h1"
    assert len(seen.all("h1")) == 1
    policy = [m for m in seen.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert [m["content"] for m in policy] == [POLICY]
    assert not {tag for tag, _ in seen.tags} & {"script", "iframe", "object", "img", "form"}
    assert "@import" not in shown
    assert "url(" not in shown


def test_drawings_and_tables_say_what_they_show(shown: str) -> None:
    drawings = Seen(shown).all("svg")
    for d in drawings:
        assert d.get("aria-hidden") == "true" or d.get("aria-label")
    assert len([d for d in drawings if d.get("role") == "img"]) == 1
    for table in re.findall(r"<table.*?</table>", shown, re.DOTALL):
        assert 'scope="col"' in table
        assert 'scope="row"' in table


@pytest.mark.parametrize("name", ["cpu", "zendnn", "cpu-ipex", "cuda-forced-on-cpu"])
def test_the_reports_of_the_documentation(name: str, repository: Path) -> None:
    data = read_json(repository / f"docs/evidence/reports/{name}.json")
    text = show.render(data)
    assert "VERIFIED" in text
    assert ("NOT VERIFIED" in text) == (data["status"] != "passed")
    assert "None" not in text
    assert len(text.encode()) < 80_000
    Seen(text)


# What a reader wants to know first

REPEATED = [{"step": 1, "epoch": 1, "error": 1e-6, "array": "fc1.weight", "loss_error": 1e-7}]


@pytest.mark.parametrize(
    ("name", "status", "trained", "right"),
    [
        ("blind test", "failed", "no", "yes"),
        ("blind test", "skipped", "not shown", "yes"),
        ("step", "failed", "yes", "no"),
        ("step", "skipped", "yes", "not shown"),
    ],
)
def test_what_no_check_showed_is_no_yes(name: str, status: str, trained: str, right: str) -> None:
    data = whole()
    checks = [{**c, "status": status} if c["name"] == name else c for c in data["checks"]]
    report = model.check({**data, "checks": checks, "status": "failed", "steps": REPEATED})
    found = list(show.answers(report))
    assert [fact.value for fact in found] == [trained, right, "1.25 s an epoch"]


def test_answers_and_steps_that_nobody_judged_are_no_yes() -> None:
    """A payload that fails, for example because its loss is NaN, is neither scored nor repeated."""
    report = model.check({**whole(), "status": "failed"})
    found = list(show.answers(report))
    assert [fact.value for fact in found[:2]] == ["not shown", "not shown"]


def test_a_speed_that_was_not_judged_says_so() -> None:
    *_, speed = show.answers(model.check(changed(speed="not_judged")))
    assert speed.doubt == "speed not judged"
    doubts = {
        fact.label: fact.doubt for fact in show.figures(model.check(changed(speed="not_judged")))
    }
    assert doubts.pop("Accuracy") == ""
    assert {*doubts.values()} == {"speed not judged"}
    untrained = model.check(failing("device", "no driver", training=None))
    assert "How fast was it?" not in {fact.label for fact in show.answers(untrained)}


def test_a_ratio_that_says_nothing_is_called_noise() -> None:
    compiled = [
        {**whole()["compile"][0], "inference": {"counts": True, "speedup_over_eager": 0.96}}
    ]
    assert "inductor wrong 0.96×, within noise" in page(changed(compile=compiled)).text


# The verdict


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (
            {"requested": "cuda", "used": None},
            "This does not show that cuda works: nothing was trained on it.",
        ),
        (
            {"requested": "cuda", "used": "cpu", "name": "A CPU"},
            "The work did not run on cuda, but on cpu.",
        ),
    ],
)
def test_a_failure_says_why_and_what_it_means(device: dict[str, Any], said: str) -> None:
    seen = page(failing("device", "no driver", training=None, device=device))
    assert said in seen.text
    assert seen.text.index("device: no driver") < seen.text.index("What did the work")
    assert "VERIFIED" not in seen.text.replace("NOT VERIFIED", "")
    assert "Epochs" not in seen.text


def test_what_is_no_valid_report_has_no_page() -> None:
    with pytest.raises(VerifyError, match="passed without a trained epoch"):
        show.render(changed(training=None))


def test_a_failure_without_reasons_names_its_checks() -> None:
    silent = {**failing("import", "no torch"), "reasons": []}
    assert "import: no torch" in page(silent).text
    silent["checks"] = []
    assert "the report gives no reason" in page(silent).text


def test_a_run_without_a_report_has_a_page(tmp_path: Path) -> None:
    data = mnist.Dataset(folder=tmp_path, name="MNIST", subset=False)
    expects = Expected(device="cuda", version="2.14.1")
    job = run.Job(expects=expects, dataset=data, epochs=None, quick=False)
    seen = page(run.unfinished(job, VerifyError("the payload was killed")))
    assert "NOT VERIFIED" in seen.text
    assert "run: the payload was killed" in seen.text
    assert "nothing was trained on it" in seen.text


def test_a_traceback_is_folded() -> None:
    crashed = failing("run", "unexpected RuntimeError: boom", traceback="first\nboom at last")
    for key in ("precision", "kernels", "warnings", "baseline", "framework"):
        del crashed[key]
    crashed["training"] = None
    seen = page(crashed)
    assert "boom at last" in seen.text
    assert not [d for d in seen.all("details") if "open" in d]


def test_a_page_does_not_claim_more() -> None:
    seen = page(changed(quick=True))
    assert "quick verification" in seen.text
    assert "says little about full accuracy and speed" in seen.text
    small = {**whole()["dataset"], "subset": True}
    assert "a subset, which does not show the full accuracy" in page(changed(dataset=small)).text
    # Numbers that were not compared are not called right.
    seen = page(changed(checks=whole()["checks"][:1]))
    assert "A GPU (cuda) did the work and the network learned MNIST." in seen.text
    alone = page(changed(baseline=None, speedup=None)).text
    assert "there is no speed-up to report" in alone
    assert "Against the CPU" not in alone


def test_warnings_do_not_change_the_verdict_but_show_with_it() -> None:
    seen = page(changed(warnings=["compile inductor: wrong gradients"]))
    assert seen.text.index("Warning: compile inductor") < seen.text.index("What did the work")


# The curve


def test_the_loss_curve_stays_in_its_frame() -> None:
    line = curve(checked().training.losses)
    assert line.logarithmic
    assert line.path.startswith("M0.0 0.0L")
    assert line.path.endswith("L100.0 100.0")
    numbers = [float(n) for n in re.findall(r"[\d.]+", line.path)]
    assert 0 <= min(numbers) <= max(numbers) <= 100
    assert line.losses == ("2.3", "0.163", "0.0115")
    assert "from 2.30 to 0.0115 at step 2,787" in line.spoken


def test_a_loss_that_was_not_finite_breaks_the_curve_and_is_told() -> None:
    losses = [[1, 2.0], [2, 1.0], [3, None], [4, 1e31], [5, 0.5], [6, 0.4]]
    training = {"epochs": [epoch(1.0)], "losses": losses}
    line = curve(checked(training=training).training.losses)
    assert line.path.count("M") == 2
    assert line.missing == 2
    assert "At 2 of the recorded steps" in page(changed(training=training)).text


@pytest.mark.parametrize(
    ("losses", "drawn"),
    [
        ([], False),
        ([[1, 2.0]], False),
        ([[1, None], [2, None]], False),
        ([[1, 0.0], [2, 5e-324]], True),
        ([[1, -1e300], [10**18, 1], [1, 1e300], [2, 2], [3, 1]], True),
    ],
)
def test_odd_losses_have_a_curve_or_none(losses: Any, drawn: bool) -> None:
    line = curve(checked(training={"epochs": [epoch(1.0)], "losses": losses}).training.losses)
    assert (line is not None) == drawn
    assert "nan" not in str(line)


# Hostile and odd reports

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7*7 }}{% raw %}",
    "</style></title><!--",
    "\x00\x1b[31m\x07\u202e\u2066\ufeff\x85",
    "&lt;b&gt;" + "a" * 10_000,
)


def poisoned(value: Any, poison: str) -> Any:
    """The same report with poison in every text, but for those that the model refuses."""
    if isinstance(value, dict):
        kept = {"status", "requested", *(k for k, v in value.items() if v is None)}
        return {k: v if k in kept else poisoned(v, poison) for k, v in value.items()} | {
            poison: poison
        }
    if isinstance(value, list):
        return [poisoned(v, poison) for v in value]
    return poison if isinstance(value, str) or value is None else value


@pytest.mark.parametrize("poison", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_of_a_report_is_markup(poison: str) -> None:
    plain = page(failing("device"))
    data = poisoned(failing("device", reasons=["x", "y"], warnings=["z"], traceback="t"), poison)
    text = show.render(data)
    seen = Seen(text)
    assert {tag for tag, _ in seen.tags} <= {tag for tag, _ in plain.tags} | {"pre"}
    assert "{{" in text or "{{" not in poison  # shown as it is, not evaluated
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]", text
    )
    text.encode()


def places(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [prefix, *(p for key, v in inner for p in places(v, (*prefix, key)))]


PLACES = [place for place in places(whole()) if place]


@given(st.sampled_from(PLACES), json_values)
@settings(max_examples=300, deadline=None)
def test_a_value_is_refused_at_the_door_or_has_a_page(place: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(whole())
    at: Any = data
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    try:
        text = show.render(data)
    except VerifyError:
        with pytest.raises(VerifyError):
            model.check(data)
        return
    assert "VERIFIED" in text
    text.encode()


def test_a_text_without_end_is_cut() -> None:
    text = show.render(changed(anything=["x" * 9000] * 9000))
    assert len(text) < 400_000


# The style


@pytest.mark.parametrize("name", ["light", "dark"])
def test_colours_can_be_told_apart(name: str, repository: Path) -> None:
    style = (repository / "templates/report/style.css").read_text()
    found = scheme(style, name)
    texts = {
        "card": ("ink", "soft", "good", "bad", "caution"),
        "page": ("ink", "soft"),
        "good-tint": ("ink", "soft", "good", "caution"),
        "bad-tint": ("ink", "soft", "bad", "caution"),
        "caution-tint": ("ink", "soft", "caution"),
    }
    for ground, inks in texts.items():
        for ink in inks:
            assert contrast(found[ground], found[ink]) >= 4.5, (ground, ink)
    for mark in ("curve", "good", "bad"):
        assert contrast(found["card"], found[mark]) >= 3, mark


def test_texts_are_escaped() -> None:
    text = "<b>&\x1b[1m"
    rendered = templates().from_string("{{ text }}{{ '`<i>` &' | code }}").render(text=text)
    code = "<code>&lt;i&gt;</code> &amp;"
    assert rendered == "&lt;b&gt;&amp;\N{REPLACEMENT CHARACTER}[1m" + code
