"""`verify --devices`: what is refused, what is believed, and what becomes of the verdict."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import rich.console

from envbuilder.core import process
from envbuilder.core.errors import InvalidError, VerifyError
from envbuilder.core.settings import load as load_settings
from envbuilder.host import probe
from envbuilder.host.model import Cpu, Host
from envbuilder.verify import parallel, show
from envbuilder.verify.report import model
from tests.support.command_line import Command, Ended
from tests.support.folders import read_json
from tests.support.pretended_payload import LIFE, Clock, perform, quick_report
from tests.support.recorded import replaced
from tests.support.reports import measured, removals, whole

HERE = Host(
    os="linux",
    machine="x86_64",
    platform="linux/amd64",
    cpu=Cpu(model_name="AMD EPYC", threads=2),
)


JOINT = ("devices", "ranks", "own devices", "gradients equal", "gradients", "weights equal")


def check(status: str = "passed", detail: str = "fine", name: str = "run") -> dict[str, Any]:
    return {"name": name, "status": status, "seconds": 1.0, "detail": detail}


def checks(*names: str) -> list[dict[str, Any]]:
    return [check(name=name) for name in names]


def device(index: int, rate: float | None = 600.0, **changes: Any) -> dict[str, Any]:
    fixed = {"index": index, "name": "A GPU", "samples_per_second": rate}
    return {**fixed, "checks": checks("run", "gradients"), **changes}


def scaled(**changes: Any) -> dict[str, Any]:
    """What the payload says of two devices that passed."""
    return {
        "schema": 2,
        "devices": [device(0), device(1, 400.0)],
        "ranks": 2,
        "backend": "nccl",
        "batch": 128,
        "samples_per_second": 900.0,
        "efficiency": 0.9,
        "gradients_equal": True,
        "checks": checks(*JOINT),
        "status": "passed",
        "reasons": [],
        "warnings": [],
        **changes,
    }


FAILED = scaled(
    status="failed",
    checks=[check("failed")],
    samples_per_second=None,
    efficiency=None,
    gradients_equal=None,
    reasons=["together: ranks: rank 1 \x1b[2J was ended by signal 9"],
)


# ---- what is refused before anything starts


@pytest.mark.parametrize(
    ("devices", "accelerator", "said"),
    [
        ("all", "mps", "mps has one device"),
        ("0,1", "cpu", "not chosen one by one"),
        ("x\x1b", "cuda", "neither 'all' nor numbers"),
    ],
)
def test_what_is_refused(devices: str, accelerator: str, said: str) -> None:
    with pytest.raises(InvalidError, match=said) as caught:
        parallel.require(devices, accelerator)
    assert "\x1b" not in caught.value.message


def test_the_first_device_asked_for_is_the_one_to_verify() -> None:
    assert parallel.selection("2,0", "cuda") == ("--index", "2")
    assert parallel.selection("all", "cuda") == ()
    assert parallel.selection(None, "cuda") == ()
    assert parallel.selection("2", "cpu") == ()


# ---- what is believed


def test_a_good_report_is_believed() -> None:
    found = model.check_scaling(scaled())
    assert (found.ranks, found.efficiency, found.devices[1].samples_per_second) == (2, 0.9, 400.0)
    one = scaled(devices=[device(3)], ranks=1, backend=None, efficiency=None, gradients_equal=None)
    assert model.check_scaling({**one, "samples_per_second": None}).devices[0].index == 3
    assert model.check_scaling(FAILED).status == "failed"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({"efficiency": value}, "malformed") for value in (-1.0, 0.0, float("nan"))),
        ({"samples_per_second": "fast"}, "malformed"),
        ({"devices": [device(0), device(1, 0.0)]}, "malformed"),
        ({"anything": [1.0, float("inf")]}, "a number is not finite"),
        ({"checks": [check("failed")]}, "passed, although a check failed"),
        ({"devices": [device(0), device(1, checks=[check("failed")])]}, "a check failed"),
        ({"ranks": 0, "devices": []}, "passed with 0 ranks on 0 devices"),
        ({"ranks": 3}, "passed with 3 ranks on 2 devices"),
        ({"devices": [device(1), device(1)]}, "passed with 2 ranks on 1 devices"),
        ({"devices": [device(0), device(1, None)]}, "passed, although not every device trained"),
        ({"efficiency": None}, "passed, although the ranks did not train together"),
        *(({"gradients_equal": value}, "did not train together") for value in (False, None)),
    ],
)
def test_what_contradicts_itself_is_not_believed(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(VerifyError, match=said):
        model.check_scaling(scaled(**changes))
    with pytest.raises(VerifyError, match=said):
        model.check({**measured(), "scaling": scaled(**changes)})


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        *(({"checks": checks(*(c for c in JOINT if c != name))}, name) for name in JOINT),
        ({"checks": []}, "devices"),
        ({"devices": [device(0), device(1, checks=checks("run"))]}, "device 1: gradients"),
        ({"devices": [device(0, checks=[]), device(1)]}, "device 0: run"),
        (
            {"checks": [check("skipped", name=name) for name in JOINT]},
            "devices",
        ),
    ],
)
def test_a_report_without_a_check_is_not_believed(changes: dict[str, Any], absent: str) -> None:
    with pytest.raises(VerifyError, match=f"without running these checks: {absent}"):
        parallel.check_report(scaled(**changes), (0, 1))
    assert parallel.check_report(scaled(), (0, 1)).status == "passed"
    assert parallel.check_report({**FAILED, **changes}, (0, 1)).status == "failed"


# ---- what becomes of the verdict


ONE = {"devices": [device(3)], "ranks": 1, "efficiency": None, "gradients_equal": None}


@pytest.mark.parametrize(
    ("changes", "status", "detail", "warnings"),
    [
        ({}, "passed", "2 ranks (nccl) have equal gradients, the same as one process, at 90 %", []),
        ({"warnings": ["together: x"]}, "warning", "2 ranks", ["several devices: together: x"]),
        (ONE, "passed", "device 3 alone, with nothing to run in parallel", []),
    ],
)
def test_devices_that_passed_are_one_more_check(
    changes: dict[str, Any], status: str, detail: str, warnings: list[str]
) -> None:
    found = parallel.add(measured(warnings=["w"]), scaled(**changes))
    check = found["checks"][-1]
    assert (check["status"], check["detail"].startswith(detail)) == (status, True)
    assert (found["status"], found["warnings"]) == ("passed", ["w", *warnings])
    model.check(found)


# ---- as a whole, with a pretended payload


class Payload:
    """Answers `verify` and `parallel`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.calls: list[list[str]] = []
        self.verify = quick_report()
        self.parallel: Any = scaled(backend="gloo")
        self.code: int | None = None
        self.timed_out = False

    def run(self, argv: list[str], **options: Any) -> process.Completed:
        self.calls.append(argv[argv.index("--promise") + 2 :])
        together = "parallel" in argv
        found = self.parallel if together else self.verify
        perform(argv, found, options["on_stdout"], self._clock)
        code = 0 if found and found.get("status") == "passed" else 5
        return process.Completed(
            argv=tuple(argv),
            returncode=self.code if together and self.code is not None else code,
            stdout="",
            stderr="rank 1 said",
            seconds=LIFE,
            timed_out=together and self.timed_out,
        )


@pytest.fixture
def payload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Payload:
    made = Payload(Clock(monkeypatch))
    monkeypatch.setattr(process, "run", made.run)
    replaced(monkeypatch, probe, "host", HERE)
    replaced(monkeypatch, signal, "signal", None)
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def verify(payload: Payload, envbuilder: Command) -> Command:
    """`verify(*arguments, profile="cpu", code=0)`: one epoch of the pretended payload."""
    quick = (
        "--python", sys.executable, "--quick", "--force", "--epochs", "1", "--output", "report.json"
    )  # fmt: skip

    def verified(*arguments: str, profile: str = "cpu", code: int = 0) -> Ended:
        return envbuilder("verify", *quick, "--profile", profile, *arguments, code=code)

    return verified


def kept() -> Any:
    return read_json(Path("report.json"))


def test_without_devices_nothing_is_run_in_parallel(payload: Payload, verify: Command) -> None:
    verify()
    assert [call[0] for call in payload.calls] == ["verify"]
    assert "scaling" not in kept()


def test_the_payload_is_started_twice_and_both_are_reported(
    payload: Payload, verify: Command
) -> None:
    shown = " ".join(verify("--devices", "2", "--html", "page.html").out.split())
    alone, parallel = payload.calls
    assert "--index" not in alone
    data = alone[alone.index("--data") + 1]
    own = parallel[parallel.index("--run-id") + 1]
    assert own != alone[alone.index("--run-id") + 1]
    assert parallel == [
        "parallel",
        "--device",
        "cpu",
        "--devices",
        "2",
        "--data",
        data,
        "--run-id",
        own,
        "--quick",
    ]
    stored = kept()["scaling"]
    assert (stored["ranks"], stored["efficiency"], "schema" in stored) == (2, 0.9, False)
    assert "All 2 together through gloo: 900 images a second, 90 % of the sum of each" in shown
    logs = [p for p in load_settings().logs_dir.iterdir() if p.name.endswith("-devices.log")]
    assert [log.read_text() for log in logs] == ["rank 1 said"]


@pytest.mark.parametrize(
    ("asked", "devices", "code"),
    [
        ("2", [device(0), device(1)], 0),
        ("3", [device(0), device(1)], 5),
        ("2", [device(1), device(0)], 5),
    ],
)
def test_a_report_is_about_the_devices_that_were_asked_for(
    payload: Payload, verify: Command, asked: str, devices: Any, code: int
) -> None:
    payload.parallel = scaled(backend="gloo", devices=devices)
    shown = " ".join(verify("--devices", asked, code=code).out.split())
    assert ("the report covers devices" in shown) is bool(code)


def test_an_index_goes_to_both(payload: Payload, verify: Command) -> None:
    payload.verify = quick_report(device={"requested": "cuda", "used": "cuda"})
    payload.parallel = scaled(**{**ONE, "devices": [device(1)]})
    verify("--devices", "1", profile="cuda")
    alone, parallel = payload.calls
    assert alone[alone.index("--index") + 1] == "1"
    assert parallel[parallel.index("--devices") + 1] == "1"


def test_devices_that_fail_fail_the_verification(payload: Payload, verify: Command) -> None:
    payload.parallel = FAILED
    out = verify("--devices", "all", code=5).out
    assert "NOT VERIFIED" in out
    assert "\x1b[2J" not in out
    stored = kept()
    assert stored["status"] == "failed"
    assert stored["reasons"][0].startswith("several devices: together: ranks: rank 1")
    assert stored["checks"][-1]["status"] == "failed"


@pytest.mark.parametrize(
    ("parallel", "code", "said"),
    [
        (None, -9, "killed"),
        (None, 2, "exit code 2"),
        (scaled(efficiency=-1), 0, "malformed"),
        (scaled(), 5, "cannot be trusted"),
    ],
)
def test_a_payload_that_is_not_to_be_believed_fails(
    payload: Payload, verify: Command, parallel: Any, code: int, said: str
) -> None:
    payload.parallel = parallel
    payload.code = code
    verify("--devices", "all", code=5)
    stored = kept()
    assert said in stored["reasons"][0]
    assert (stored["scaling"]["status"], stored["scaling"]["devices"]) == ("failed", [])


def test_after_a_failed_verification_nothing_more_is_tried(
    payload: Payload, verify: Command
) -> None:
    payload.verify = measured(status="failed", reasons=["device: none"])
    verify("--devices", "all", code=5)
    assert len(payload.calls) == 1
    stored = kept()
    assert (stored["checks"][-1]["status"], stored["reasons"]) == ("skipped", ["device: none"])


# ---- what people see


def shown(data: dict[str, Any]) -> str:
    stream = io.StringIO()
    show.print_verdict(model.check(data), rich.console.Console(file=stream, width=80))
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    return " ".join(stream.getvalue().split())


def test_the_table_has_a_line_for_each_device() -> None:
    text = shown(parallel.add(whole(), scaled()))
    assert "0: A GPU 600 60 %" in text
    assert "1: A GPU 400 40 %" in text
    broken = {**FAILED, "devices": [device(0), device(1, None, name="\x1b[0mGPU")]}
    text = shown(parallel.add(whole(), broken))
    assert "1: ?[0mGPU – –" in text
    assert "together through" not in text


def test_the_page_says_what_failed_and_escapes_it() -> None:
    evil = {**FAILED, "reasons": ["<script>"], "devices": [device(0, name="<b>")]}
    text = show.render(parallel.add(whole(), evil))
    assert '<p class="note wrong">&lt;script&gt;</p>' in text
    assert "&lt;b&gt;" in text
    assert "<script>" not in text


@pytest.mark.parametrize("data", [scaled(), FAILED], ids=["passed", "failed"])
def test_a_report_of_devices_that_lacks_something_is_not_better(data: dict[str, Any]) -> None:
    for place, part in removals(data):
        try:
            model.check_scaling(part)
        except VerifyError:
            continue
        added = parallel.add(measured(), part)
        assert added["status"] == data["status"] == model.check(added).status, place


def test_one_device_alone_needs_no_joint_checks() -> None:
    alone = {"devices": [device(3)], "ranks": 1, "checks": checks("devices")}
    assert parallel.check_report(scaled(**alone), (3,)).status == "passed"
