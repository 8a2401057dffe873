"""The report page: the right verdict first, nothing of a report unescaped, no report too odd."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from envbuilder.core.errors import VerifyError
from envbuilder.packages import mnist
from envbuilder.profiles.profile import Expected
from envbuilder.verify import page, run
from envbuilder.verify.page import templates
from envbuilder.verify.report import model
from tests.support.colours import contrast, scheme
from tests.support.pages import POLICY, Seen, changed, checked, epoch, failing, whole


def test_a_whole_report_shows_everything() -> None:
    seen = Seen(page.render(whole()))
    headings = [
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
        "1.25 s warm, median of 2",
        "Against the CPU 10.0×",
        "98.90 % 97.50 % needed",
        "20 November 2026, 09:51 UTC",
        "compute 1.80 s, data 200 ms",
        "20.0× the CPU",
        "50.0 TFLOP/s",
        "12.5 TFLOP/s 25 % of float32's",
        "2.00 TB/s",
        "1.00 GiB",
        "of 32.0 GiB, 3.1 %",
        "4.10 µs",
        "1.20× the time 120 ms instead of 100 ms for 50 steps",
        "the same weights over 20 steps, bit for bit",
        "inductor wrong 1.10× does not count",
        "cpu.quota –",
    ):
        assert said in seen.text, said
    assert "Device to device" not in seen.text
    assert "None" not in page.render(whole())


def test_the_verdict_comes_first_and_is_the_only_first_heading() -> None:
    seen = Seen(page.render(whole()))
    assert next(tag for tag, _ in seen.tags if re.fullmatch("h[1-6]", tag)) == "h1"
    assert len(seen.all("h1")) == 1
    assert page.render(whole()).count("VERIFIED") == 2  # the title, too


def test_a_page_is_whole_and_loads_nothing() -> None:
    text = page.render(whole())
    seen = Seen(text)
    policy = [m for m in seen.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert [m["content"] for m in policy] == [POLICY]
    assert not {tag for tag, _ in seen.tags} & {"script", "iframe", "object", "img", "form"}
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "@import" not in style
    assert re.findall(r"url\(([^)]*)\)", style) == ["#hatch"]
    assert len(text.encode()) < 60_000


def test_every_drawing_says_what_it_shows() -> None:
    seen = Seen(page.render(whole()))
    drawings = seen.all("svg")
    for d in drawings:
        assert d.get("aria-hidden") == "true" or d.get("aria-label")
    spoken = [d["aria-label"] for d in drawings if d.get("role") == "img"]
    assert len(spoken) == 1 + 3 + 1  # baseline, epochs, loss
    assert all(spoken)
    for table in re.findall(r"<table.*?</table>", page.render(whole()), re.DOTALL):
        assert 'scope="col"' in table
        assert 'scope="row"' in table


@pytest.mark.parametrize("name", ["cpu", "zendnn", "cpu-ipex", "cuda-forced-on-cpu"])
def test_the_reports_of_the_documentation(name: str, repository: Path) -> None:
    data = json.loads((repository / f"docs/evidence/reports/{name}.json").read_text())
    text = page.render(data)
    passed = data["status"] == "passed"
    assert "VERIFIED" in text
    assert ("NOT VERIFIED" in text) == (not passed)
    assert "None" not in text
    assert len(text.encode()) < 60_000
    Seen(text)


# The verdict


def test_a_failure_says_why_and_what_it_means() -> None:
    device = {"requested": "cuda", "used": None}
    seen = Seen(page.render(failing("device", "no driver", training=None, device=device)))
    assert "NOT VERIFIED" in seen.text
    assert "This does not show that cuda works: nothing was trained on it." in seen.text
    assert seen.text.index("device: no driver") < seen.text.index("What did the work")
    assert "VERIFIED" not in seen.text.replace("NOT VERIFIED", "")
    assert "Epochs" not in seen.text


def test_work_on_another_device_is_named() -> None:
    device = {"requested": "cuda", "used": "cpu", "name": "A CPU"}
    seen = Seen(page.render(failing("device used", device=device)))
    assert "The work did not run on cuda, but on cpu." in seen.text
    assert "cuda was requested, but cpu did the work" in seen.text


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (changed(device={"requested": "cuda", "used": "cpu"}), "passed on cpu, although cuda"),
        (changed(training=None), "passed without a trained epoch"),
        (changed(schema=1), "schema 1"),
        ({**failing("arithmetic"), "status": "passed"}, "although these checks failed"),
        ({k: v for k, v in whole().items() if k != "status"}, "malformed"),
        (changed(status="excellent"), "malformed"),
        (changed(speedup=float("nan")), "not finite"),
        (changed(scaling={"devices": 3}), "malformed"),
        ({}, "malformed"),
        ([], "malformed"),
    ],
)
def test_what_is_no_valid_report_has_no_page(spoilt: Any, said: str) -> None:
    with pytest.raises(VerifyError, match=said):
        page.render(spoilt)


def test_a_failure_without_reasons_names_its_checks() -> None:
    silent = {**failing("import", "no torch"), "reasons": []}
    assert "import: no torch" in Seen(page.render(silent)).text
    silent["checks"] = []
    assert "the report gives no reason" in Seen(page.render(silent)).text


def test_a_run_without_a_report_has_a_page(tmp_path: Path) -> None:
    data = mnist.Dataset(folder=tmp_path, name="MNIST", subset=False)
    expects = Expected(device="cuda", version="2.14.1")
    job = run.Job(expects=expects, dataset=data, epochs=None, quick=False)
    seen = Seen(page.render(run.unfinished(job, VerifyError("the payload was killed"))))
    assert "NOT VERIFIED" in seen.text
    assert "run: the payload was killed" in seen.text
    assert "nothing was trained on it" in seen.text


def test_a_crash_shows_the_traceback_folded_and_only_its_end() -> None:
    lines = "\n".join(f"line {n}" for n in range(5000))
    crashed = failing("run", "unexpected RuntimeError: boom", traceback=f"{lines}\nboom at last")
    for key in ("precision", "kernels", "warnings", "baseline", "framework"):
        del crashed[key]
    crashed["training"] = None
    seen = Seen(page.render(crashed))
    assert "boom at last" in seen.text
    assert "line 10 " not in seen.text
    assert not [d for d in seen.all("details") if "open" in d]


def test_a_quick_look_does_not_claim_more() -> None:
    seen = Seen(page.render(changed(quick=True)))
    assert "quick look" in seen.text
    assert "says little about full accuracy and speed" in seen.text
    small = {**whole()["dataset"], "subset": True}
    assert "a subset: no verdict on full accuracy" in Seen(page.render(changed(dataset=small))).text


def test_numbers_that_were_not_compared_are_not_called_right() -> None:
    seen = Seen(page.render(changed(checks=whole()["checks"][:1])))
    assert "A GPU (cuda) did the work and the network learned MNIST." in seen.text


def test_warnings_do_not_change_the_verdict_but_show_with_it() -> None:
    seen = Seen(page.render(changed(warnings=["compile inductor: wrong gradients"])))
    assert seen.text.index("Warning: compile inductor") < seen.text.index("What did the work")


# Charts


def test_epochs_share_one_scale_and_stand_apart() -> None:
    found = page.epochs(checked())
    assert [bar.label for bars in found.values() for bar in bars] == [
        "The CPU, one epoch",
        "Epoch 1",
        "Epoch 2",
        "Epoch 3",
    ]
    cpu = found["baseline"][0].segments
    first = found["first"][0].segments
    assert [(s.kind, s.start, s.width) for s in cpu] == [("cpu", 0, 90), ("data", 90, 10)]
    assert [(s.kind, s.start, s.width) for s in first] == [("compute", 0, 9), ("data", 9, 1)]
    assert (found["first"][0].ratio, found["baseline"][0].ratio) == ("10.0× the CPU", "")


def test_many_warm_epochs_are_one_bar() -> None:
    passes = [epoch(9.0), *(epoch(float(n)) for n in range(1, 31))]
    found = page.epochs(checked(training={"epochs": passes}, baseline=None))
    assert [b.label for b in found["warm"]] == ["Median of epochs 2 to 31"]
    assert found["warm"][0].value.startswith("15.5")
    assert found["warm"][0].ratio == ""


def test_without_a_comparison_the_page_says_so() -> None:
    alone = Seen(page.render(changed(baseline=None, speedup=None))).text
    assert "there is no speed-up to report" in alone
    assert "Against the CPU" not in alone


def test_the_loss_curve_stays_in_its_frame() -> None:
    line = page.line(checked().training.losses)
    assert line.logarithmic
    assert line.path.startswith("M0.0 0.0L")
    assert line.path.endswith("L100.0 100.0")
    numbers = [float(n) for n in re.findall(r"[\d.]+", line.path)]
    assert 0 <= min(numbers) <= max(numbers) <= 100
    assert line.ticks_y == ((100, "0.0115"), (50, "0.163"), (0, "2.3"))
    assert "from 2.30 at step 1 to 0.0115 at step 2,787" in line.spoken


def test_a_loss_that_was_not_finite_breaks_the_curve_and_is_told() -> None:
    losses = [[1, 2.0], [2, 1.0], [3, None], [4, 1e31], [5, 0.5], [6, 0.4]]
    training = {"epochs": [epoch(1.0)], "losses": losses}
    line = page.line(checked(training=training).training.losses)
    assert line.path.count("M") == 2
    assert line.missing == 2
    assert "At 2 of the recorded steps" in Seen(page.render(changed(training=training))).text


@pytest.mark.parametrize("losses", [[], [[1, 2.0]], [[1, None], [2, None]]])
def test_too_few_losses_make_no_curve(losses: Any) -> None:
    assert (
        page.line(checked(training={"epochs": [epoch(1.0)], "losses": losses}).training.losses)
        is None
    )


@pytest.mark.parametrize(
    "losses",
    [
        [[1, 0.5], [2, 0.5]],
        [[1, -1.0], [2, 3.0]],
        [[1, 0.0], [2, 5e-324]],
        [[7, 1], [7, 2]],
        [[1, -1e300], [10**18, 1], [1, 1e300], [2, 2], [3, 1]],
        [[1, 100.0], [2, 2000.0]],
    ],
)
def test_flat_negative_and_tiny_losses_have_a_curve(losses: Any) -> None:
    line = page.line(checked(training={"epochs": [epoch(1.0)], "losses": losses}).training.losses)
    assert line is not None
    assert "nan" not in str(line)


# Hostile and odd reports

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "{{ 7*7 }}{% raw %}",
    "</style></title><!--",
    "\x00\x1b[31m\x07\ud800\u202e\u2066\ufeff\x85",
    "javascript:alert(1)`x`",
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
    plain = Seen(page.render(failing("device")))
    data = poisoned(failing("device", reasons=["x", "y"], warnings=["z"], traceback="t"), poison)
    text = page.render(data)
    seen = Seen(text)
    assert {tag for tag, _ in seen.tags} <= {tag for tag, _ in plain.tags} | {"pre"}
    assert "{{" in text or "{{" not in poison  # shown as it is, not evaluated
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]", text
    )
    text.encode()
    assert len(text) < 400_000


odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
odd_values = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def places(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [prefix, *(p for key, v in inner for p in places(v, (*prefix, key)))]


PLACES = [place for place in places(whole()) if place]


@given(st.sampled_from(PLACES), odd_values)
@settings(max_examples=300, deadline=None)
def test_a_value_is_refused_at_the_door_or_has_a_page(place: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(whole())
    at: Any = data
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    try:
        text = page.render(data)
    except VerifyError:
        with pytest.raises(VerifyError):
            model.check(data)
        return
    assert "VERIFIED" in text
    text.encode()


def test_depth_and_length_without_end() -> None:
    deep: Any = "end"
    for _ in range(300):
        deep = {"x": [deep]}
    text = page.render(changed(anything=deep, more=["x" * 9000] * 9000, **{"k" * 9000: 1}))
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
        "track": ("ink",),
    }
    for ground, inks in texts.items():
        for ink in inks:
            assert contrast(found[ground], found[ink]) >= 4.5, (ground, ink)
    for mark in ("compute", "data", "cpu", "good", "bad"):
        assert contrast(found["track"], found[mark]) >= 3, mark


MARK = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\x1b[1mb\u202e", f"a{MARK}[1mb{MARK}"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("x" * 700, "x" * 600 + " … (100 more characters)"),
        ([1, 2.5, True, None], [1, 2.5, True, None]),
        (list(range(500)), list(range(400))),
        ({"a": ("\x00",)}, {"a": [MARK]}),
        ({"k" * 100: 1}, {"k" * 80 + " … (20 more characters)": 1}),
    ],
)
def test_what_becomes_of_a_value(value: Any, shown: Any) -> None:
    assert page.displayable(value) == shown


def test_a_traceback_keeps_its_end() -> None:
    shown = page.displayable({"traceback": "first\n" + "x" * 8000 + "\nlast"})["traceback"]
    assert shown.startswith("… (11 characters before)\n")
    assert shown.endswith("\nlast")
    assert page.displayable({"traceback": "T" * 700}) == {"traceback": "T" * 700}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>&", "&lt;b&gt;&amp;"),
        ("took 3.1 s", "took 3.1~s"),
        ("220 GFLOP/s, 23.5 GiB, 60 %", "220~GFLOP/s, 23.5~GiB, 60~%"),
        ("3 samples, 5 minutes, 6 Bytes", "3 samples, 5 minutes, 6 Bytes"),
    ],
)
def test_texts_are_escaped_and_units_kept(text: str, shown: str) -> None:
    rendered = templates().from_string("{{ text }}{{ '`<i>` &' | code }}").render(text=text)
    code = "<code>&lt;i&gt;</code> &amp;"
    assert rendered == shown.replace("~", "\N{NO-BREAK SPACE}") + code
