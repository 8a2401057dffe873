"""The report page: the right verdict first, nothing of a report unescaped, no report too odd."""

from __future__ import annotations

import copy
import html.parser
import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder import cli
from envbuilder.core.errors import VerifyError
from envbuilder.packages import mnist
from envbuilder.payload.report import REQUIRED
from envbuilder.profiles.profile import Expects
from envbuilder.verify import run
from envbuilder.verify.page import advice, bars, curve, page
from envbuilder.verify.page.bounds import displayable
from envbuilder.verify.report import model

if TYPE_CHECKING:
    from pathlib import Path

VOID = {"meta", "link", "br", "img", "input", "hr"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Seen(html.parser.HTMLParser):
    """What a page consists of; its tags must nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\N{NO-BREAK SPACE}", " ").split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def epoch(seconds: float, accuracy: float = 0.984) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "data_seconds": seconds / 10,
        "compute_seconds": seconds * 0.9,
        "samples_per_second": 60000 / seconds,
        "loss": 0.2,
        "accuracy": accuracy,
    }


def whole() -> dict[str, Any]:
    """A report with every key that a page knows."""
    return {
        "schema": 1,
        "profile": "cuda",
        "backend": "venv",
        "artifact": {"kind": "venv", "ref": "/somewhere/cuda-py3.12", "digest": None},
        "fingerprint": "52a7ad1d9ed3",
        "envbuilder": "0.1.0",
        "time": "20261120T095103Z",
        "host": {
            "os": "linux",
            "os_version": "Debian GNU/Linux 12 (bookworm)",
            "machine": "x86_64",
            "cpu": {"model_name": "A CPU", "physical": 2, "flags": ["avx2", "fma"], "quota": None},
            "memory": {"total_bytes": 2**34, "limit_bytes": None, "shm_bytes": 2**26},
        },
        "device": {
            "requested": "cuda",
            "used": "cuda",
            "name": "A GPU",
            "memory_bytes": 2**35,
            "driver": "580.1",
        },
        "torch": {"version": "2.14.1+cu130", "runtime": "13.0", "extensions": {"ipex": None}},
        "precision": {"dtype": "float32", "matmul": "highest", "autocast": False},
        "threads": {"torch": 2, "allocator": "/lib/libtcmalloc.so.4"},
        "dataset": {"name": "MNIST", "train": 60000, "test": 10000, "subset": False},
        "quick": False,
        "checks": [
            {"name": name, "status": "passed", "seconds": 0.25, "detail": f"{name} is right"}
            for name in ("import", "arithmetic", "gradients")
        ],
        "training": {
            "epochs": [epoch(2.0), epoch(1.0, 0.987), epoch(1.5, 0.989)],
            "cold_start_seconds": 6.5,
            "min_accuracy": 0.975,
            "optimizer": "Adadelta",
            "batch": 64,
            "losses": [[n * 14 + 1, 2.3 / (1 + n)] for n in range(200)],
        },
        "baseline": {"device": "cpu", **epoch(20.0)},
        "speedup": 10.0,
        "determinism": {"steps": 20, "equal": True, "largest_difference": 0.0},
        "measurements": {
            "matmul": [
                {"dtype": "float32", "size": 4096, "flops_per_second": 5e13},
                {"dtype": "bfloat16", "size": 4096, "flops_per_second": 4e14},
            ],
            "bandwidth": {"device": 2e12, "host_to_device": 1.2e10, "device_to_device": None},
            "launch_seconds": 4.1e-6,
            "inference": {"batch": 1000, "samples_per_second": 250000.0},
            "peak_memory_bytes": 2**30,
            "epoch_flops": 4.3e12,
            "matmul_share": 0.25,
            "logging": {"steps": 50, "every_step_seconds": 0.12, "at_end_seconds": 0.1},
        },
        "kernels": {"training": ["aten::mm"]},
        "compile": [
            {
                "backend": "inductor",
                "gradients": {"passed": False},
                "inference": {"counts": True, "speedup_over_eager": 1.1},
                "training": {"counts": False, "speedup_over_eager": 1.3},
            }
        ],
        "status": "passed",
        "reasons": [],
        "warnings": [],
    }


def changed(**values_: Any) -> dict[str, Any]:
    return {**whole(), **values_}


def checked(**values_: Any) -> model.Report:
    return model.check({**whole(), "status": "failed", **values_})


def failing(name: str, detail: str = "it is broken", **more: Any) -> dict[str, Any]:
    check = {"name": name, "status": "failed", "seconds": 1.0, "detail": detail}
    reasons = [f"{name}: {detail}"]
    return {**whole(), "checks": [check], "status": "failed", "reasons": reasons, **more}


def test_a_whole_report_shows_everything() -> None:
    seen = Seen(page.render(whole()))
    headings = [
        "What did the work",
        "Checks",
        "Epochs",
        "Training loss",
        "Accuracy on test images",
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
        "110 of 10,000 wrong",
        "50.0 TFLOP/s",
        "25 % of float32's 12.5 TFLOP/s",
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
    for _, attributes in seen.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), attributes
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "@import" not in style
    assert re.findall(r"url\(([^)]*)\)", style) == ["#hatch"]
    assert len(text.encode()) < 60_000


def test_every_drawing_says_what_it_shows() -> None:
    seen = Seen(page.render(whole()))
    drawings = seen.all("svg")
    assert all(d.get("aria-hidden") == "true" or d.get("aria-label") for d in drawings)
    spoken = [d["aria-label"] for d in drawings if d.get("role") == "img"]
    assert len(spoken) == 1 + 3 + 1 + 3 + 3 + 2 + 1  # baseline, epochs, loss, accuracy, rates …
    assert all(spoken)
    for table in re.findall(r"<table.*?</table>", page.render(whole()), re.DOTALL):
        assert 'scope="col"' in table
        assert 'scope="row"' in table


@pytest.mark.parametrize("name", ["cpu", "zendnn", "cpu-ipex", "cuda-forced-on-cpu"])
def test_the_reports_of_the_documentation(name: str, repository: Path) -> None:
    data = json.loads((repository / "docs" / "evidence" / "reports" / f"{name}.json").read_text())
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
        (changed(schema=2), "schema 2"),
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
    expects = Expects(device="cuda", torch="2.14.1")
    job = run.Job(expects=expects, dataset=data, epochs=None, quick=False)
    seen = Seen(page.render(run.unfinished(job, VerifyError("the payload was killed"))))
    assert "NOT VERIFIED" in seen.text
    assert "run: the payload was killed" in seen.text
    assert "nothing was trained on it" in seen.text


def test_a_crash_shows_the_traceback_folded_and_only_its_end() -> None:
    lines = "\n".join(f"line {n}" for n in range(5000))
    crashed = failing("run", "unexpected RuntimeError: boom", traceback=f"{lines}\nboom at last")
    for key in ("precision", "kernels", "warnings", "baseline", "torch"):
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


def test_numbers_that_were_not_compared_are_not_called_right() -> None:
    seen = Seen(page.render(changed(checks=whole()["checks"][:1])))
    assert "A GPU (cuda) did the work and the network learned MNIST." in seen.text


def test_warnings_do_not_change_the_verdict_but_show_with_it() -> None:
    seen = Seen(page.render(changed(warnings=["compile inductor: wrong gradients"])))
    assert seen.text.index("Warning: compile inductor") < seen.text.index("What did the work")


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
    for tag, attributes in seen.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert (attributes.get("href") or "#").startswith(("#", "data:"))
    assert "{{" in text or "{{" not in poison  # shown as it is, not evaluated
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]", text
    )
    text.encode()
    assert len(text) < 400_000


def test_a_long_text_is_cut_and_says_so() -> None:
    text = page.render(failing("import", "x" * 10_000))
    assert "x" * 601 not in text
    assert "(9,400 more characters)" in text


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


def test_null_is_left_out_or_a_dash() -> None:
    missing = changed(
        **dict.fromkeys(("training", "precision", "baseline", "speedup", "measurements")),
        status="failed",
        reasons=["x"],
    )
    for key in ("profile", "envbuilder", "time", "fingerprint", "determinism", "traceback"):
        missing[key] = None
    text = page.render(missing)
    assert "None" not in text
    assert "null" not in text


# Charts


def test_epochs_share_one_scale_and_stand_apart() -> None:
    found = bars.epochs(checked())
    assert found is not None
    assert [b.label for b in (*found.baseline, *found.first, *found.warm)] == [
        "The CPU, one epoch",
        "Epoch 1",
        "Epoch 2",
        "Epoch 3",
    ]
    cpu, first = found.baseline[0].segments, found.first[0].segments
    assert [(s.kind, s.start, s.width) for s in cpu] == [("cpu", 0, 90), ("data", 90, 10)]
    assert [(s.kind, s.start, s.width) for s in first] == [("compute", 0, 9), ("data", 9, 1)]
    assert found.first[0].ratio == "10.0× the CPU"
    assert found.baseline[0].ratio == ""


def test_many_warm_epochs_are_one_bar() -> None:
    passes = [epoch(9.0), *(epoch(float(n)) for n in range(1, 31))]
    found = bars.epochs(checked(training={"epochs": passes}, baseline=None))
    assert found is not None
    assert [b.label for b in found.warm] == ["Median of epochs 2 to 31"]
    assert found.warm[0].value.startswith("15.5")
    assert found.warm[0].ratio == ""


def test_without_a_comparison_the_page_says_so() -> None:
    alone = Seen(page.render(changed(baseline=None, speedup=None))).text
    assert "there is no speed-up to report" in alone
    assert "Against the CPU" not in alone


def test_accuracy_has_its_threshold_and_a_scale_that_holds_both() -> None:
    rows, low, high = bars.accuracies(checked())
    assert (low, high) == ("95 %", "100 %")
    assert rows[0].mark == 50
    assert (rows[0].segments[0].kind, rows[0].segments[0].start) == ("good", 68)
    bad = checked(training={"epochs": [epoch(1.0, 0.11)], "min_accuracy": 0.975})
    rows, low, _ = bars.accuracies(bad)
    assert (low, rows[0].segments[0].kind) == ("0 %", "bad")


def test_the_loss_curve_stays_in_its_frame() -> None:
    line = curve.losses(checked())
    assert line is not None
    assert line.logarithmic
    assert line.raw.startswith("M0.0 0.0L")
    assert line.raw.endswith("L100.0 100.0")
    assert line.smooth
    numbers = [float(n) for n in re.findall(r"[\d.]+", line.raw + " " + line.smooth)]
    assert 0 <= min(numbers) <= max(numbers) <= 100
    assert [text for _, text in line.ticks_y] == ["0.03", "0.1", "0.3", "1"]
    assert [round(x) for x in line.epochs] == [34, 67]
    assert "from 2.30 at step 1 to 0.0115 at step 2,787" in line.spoken


def test_a_loss_that_was_not_finite_breaks_the_curve_and_is_told() -> None:
    losses = [[1, 2.0], [2, 1.0], [3, None], [4, 1e31], [5, 0.5], [6, 0.4]]
    training = {"epochs": [epoch(1.0)], "losses": losses}
    line = curve.losses(checked(training=training))
    assert line is not None
    assert line.raw.count("M") == 2
    assert line.missing == 2
    assert "At 2 of the recorded steps" in Seen(page.render(changed(training=training))).text


@pytest.mark.parametrize("losses", [[], [[1, 2.0]], [[1, None], [2, None]]])
def test_too_few_losses_make_no_curve(losses: Any) -> None:
    assert curve.losses(checked(training={"epochs": [epoch(1.0)], "losses": losses})) is None


@pytest.mark.parametrize(
    "losses",
    [
        [[1, 0.5], [2, 0.5]],
        [[1, -1.0], [2, 3.0]],
        [[1, 0.0], [2, 5e-324]],
        [[7, 1], [7, 2]],
        [[1, -1e300], [10**31, 1], [1, 1e300], [2, 2], [3, 1]],
        [[1, 100.0], [2, 2000.0]],
    ],
)
def test_flat_negative_and_tiny_losses_have_a_curve(losses: Any) -> None:
    line = curve.losses(checked(training={"epochs": [epoch(1.0)], "losses": losses}))
    assert line is not None
    assert len(line.ticks_y) <= 7


def test_ticks_keep_their_zeros() -> None:
    losses = [[1, 0.0], [2, 100.0]]
    line = curve.losses(checked(training={"epochs": [epoch(1.0)], "losses": losses}))
    assert line is not None
    assert [label for _, label in line.ticks_y] == ["0", "20", "40", "60", "80", "100"]


# What to do next


def advised(data: dict[str, Any]) -> tuple[advice.Advice, ...]:
    return advice.advise(model.check(displayable(data)))


def commands(data: dict[str, Any]) -> list[str]:
    return [a.command for a in advised(data) if a.command]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("import", "envbuilder build --profile cuda --backend venv --rebuild"),
        ("extension ipex", "envbuilder build --profile cuda --backend venv --rebuild"),
        ("device", "envbuilder doctor --profile cuda"),
        ("device used", "envbuilder doctor --profile cuda"),
        ("arithmetic", "envbuilder doctor --profile cuda"),
        ("kernels", "envbuilder doctor --profile cuda"),
        ("accuracy", "envbuilder verify --profile cuda --backend venv"),
        ("vae", "envbuilder doctor --profile cuda"),
        ("run", "envbuilder verify --profile cuda --backend venv"),
        ("clock", "envbuilder verify --profile cuda --backend venv"),
        ("isolation", "envbuilder build --profile cuda --backend venv --rebuild"),
        ("origins", "envbuilder build --profile cuda --backend venv --rebuild"),
        ("determinism", "envbuilder doctor --profile cuda"),
        ("something new", "envbuilder verify --profile cuda --backend venv"),
    ],
)
def test_a_failed_check_has_a_next_step(name: str, said: str) -> None:
    found = commands(failing(name))
    assert found[0] == said
    assert found[-1] == "envbuilder verify --profile cuda --backend venv"
    assert len(found) == len(set(found))


def test_devices_that_do_not_train_together_are_verified_alone() -> None:
    assert commands(failing("several devices"))[0].endswith("--backend venv --devices 0")


def test_every_check_of_a_verification_has_advice() -> None:
    known = set(advice._STEPS) | {"extension", "compile"}
    assert set(REQUIRED) <= known


def test_a_changed_environment_is_rebuilt_not_tried_again() -> None:
    data = failing("run")
    for check in data["checks"]:
        if check["name"] == "run":
            check["detail"] = "/envs/cpu was changed after the build: bin/tool (added)"
    first = advised(data)[0]
    assert first.command == "envbuilder build --profile cuda --backend venv --rebuild"
    assert "Try it again" not in first.sentence


def test_an_interpreter_of_others_is_not_rebuilt() -> None:
    artifact = {"kind": "interpreter", "ref": "/opt/mine/bin/python"}
    data = failing("import", backend="external", artifact=artifact)
    found = commands(data)
    assert found == [
        "envbuilder build --profile cuda",
        "envbuilder verify --profile cuda --python /opt/mine/bin/python",
    ]


def test_memory_that_ran_out_is_the_advice() -> None:
    found = advised(failing("run", "CUDA out of memory. Tried"))
    assert found[0].sentence.startswith("Memory ran out")
    assert found[0].checks == ("run",)


def test_a_regression_is_no_wrong_number() -> None:
    slower = failing("against", "warm epoch 2.0 s against 1.0 s")
    assert "as requested, but slower or less accurate than before" in Seen(page.render(slower)).text
    assert commands(slower) == ["envbuilder verify --profile cuda --backend venv --against last"]


def test_a_traceback_is_spoken_of_only_where_there_is_one() -> None:
    assert "traceback" not in Seen(page.render(failing("run", "killed"))).text.lower()
    assert "traceback at the end" in Seen(page.render(failing("run", traceback="T"))).text


@pytest.mark.parametrize(
    ("name", "warned"),
    [("shared memory", True), ("dataset", True), ("matmul rate", True), ("clock", False)],
)
def test_which_warnings_call_for_something(name: str, warned: bool) -> None:
    check = {"name": name, "status": "warning", "seconds": 0.1, "detail": "small"}
    found = advised(changed(checks=[*whole()["checks"], check]))
    assert any(a.checks == (name,) for a in found) is warned


def test_compile_advice_does_not_praise_eager_mode_that_failed_too() -> None:
    warned = {"name": "compile inductor", "status": "warning", "seconds": 1, "detail": "wrong"}
    good = advised(changed(checks=[*whole()["checks"], warned]))
    assert good[0].sentence.endswith("Without `torch.compile` the results were right.")
    bad = failing("gradients")
    bad["checks"].append(warned)
    assert not [a for a in advised(bad) if "were right" in a.sentence]


@pytest.mark.parametrize("value", ["x; rm -rf /", "$(x)", "a b", "-x", "../x", "`x`", "x\n", None])
def test_no_report_puts_words_into_commands(value: Any) -> None:
    data = failing("device", profile=value, backend=value, artifact={"ref": value})
    data["checks"].append(
        {"name": f"compile {value}", "status": "failed", "seconds": 0, "detail": "x"}
    )
    external = {**failing("import", profile=value), "backend": "external"}
    external["artifact"] = {"ref": value}
    for command in [*commands(data), *commands(external)]:
        words = shlex.split(command)
        assert words[0] == "envbuilder"
        assert all(
            re.fullmatch(r"--python|PYTHON|doctor|detect|verify|build", w) for w in words[1:]
        )


def test_advice_names_only_commands_that_exist() -> None:
    names = ["import", "device", "device used", "arithmetic", "accuracy", "dataset", "kernels"]
    found = {c for name in names for c in commands(failing(name))} | set(commands(whole()))
    known = set(cli.COMMANDS)
    assert {c.split()[1] for c in found} <= known


# The style


def colours(style: str, start: str) -> dict[str, tuple[float, float, float]]:
    block = style.partition(start)[2].partition("}")[0]
    found = re.findall(r"--([a-z-]+): #([0-9a-f]{6})", block)
    return {
        name: tuple(int(value[n : n + 2], 16) / 255 for n in (0, 2, 4))  # type: ignore[misc]
        for name, value in found
    }


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """WCAG 2.2's contrast ratio."""

    def luminance(colour: tuple[float, float, float]) -> float:
        red, green, blue = (
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart(scheme: str, repository: Path) -> None:
    style = (repository / "templates" / "report" / "style.css").read_text()
    start = ":root {" if scheme == "light" else "(prefers-color-scheme: dark) {"
    found = colours(style, start) or colours(style.partition(start)[2], ":root {")
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


# Writing


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    page.write(path, page.render(whole()))
    assert path.read_text() == page.render(whole())
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(VerifyError, match="cannot be written") as caught:
        page.write(tmp_path / "file" / "report.html", "x")
    assert "--html" in caught.value.hint
