"""`verify` as a whole, with a pretended payload: what is compared, written, and the codes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.builds import import_check, mnist
from envbuilder.builds.import_check import Outcome
from envbuilder.core import files, process, text
from envbuilder.core.settings import Settings
from envbuilder.host import model as host, probe
from envbuilder.verify import show, start
from envbuilder.verify.report import regression
from tests.support.command_line import Command, Ended
from tests.support.folders import read_json
from tests.support.pretended_payload import LIFE, Clock, perform, quick_report
from tests.support.recorded import replaced
from tests.support.reports import BUSY, QUIET, epoch, measured, written
from tests.support.sabotages import FORGED, SHORT, Forged

QUICK = (
    "verify", "--python", sys.executable, "--profile", "cpu", "--quick", "--epochs", "1"
)  # fmt: skip
HERE = host.Host(
    os="linux",
    machine="x86_64",
    platform="linux/amd64",
    cpu=host.Cpu(model_name="AMD EPYC", threads=2),
)


class Payload:
    """What the pretended payload will say and how it will end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.code: int | None = None
        self.started = 0
        self.report: Any = None
        self.says()

    def says(self, **changes: Any) -> None:
        self.report = quick_report(**changes)

    def run(self, argv: list[str], **options: Any) -> process.Completed:
        self.started += 1
        perform(argv, self.report, options["on_stdout"], self._clock)
        code = self.code
        if code is None:
            code = 0 if self.report["status"] == "passed" else 5
        return process.Completed(
            argv=tuple(argv), returncode=code, stdout="", stderr="\udce9 said", seconds=LIFE
        )


@pytest.fixture(autouse=True)
def payload(monkeypatch: pytest.MonkeyPatch) -> Payload:
    made = Payload(Clock(monkeypatch))
    monkeypatch.setattr(process, "run", made.run)
    monkeypatch.setattr(probe, "host", lambda *args, **options: HERE)
    return made


@pytest.fixture
def verify(envbuilder: Command) -> Command:
    """`verify`, which writes its report to `report.json` unless it is told another file."""

    def verified(*arguments: str, **options: Any) -> Ended:
        if "--output" not in arguments:
            arguments = ("--output", "report.json", *arguments)
        return envbuilder(*QUICK, *arguments, **options)

    return verified


def written_report() -> dict[str, Any]:
    """The report that was written last."""
    return read_json(Path("report.json"))


def test_a_failure_is_written_too(payload: Payload, verify: Command) -> None:
    verify()
    assert (written_report()["status"], written_report()["profile"]) == ("passed", "cpu")
    payload.says(status="failed", reasons=["device: none"])
    verify(code=5)
    assert written_report()["status"] == "failed"


def test_more_than_the_matmul_rate_is_told_everywhere(
    own: Settings, payload: Payload, verify: Command
) -> None:
    payload.says(measurements={"matmul_share": 1.27, "epoch_flops": 2e11})
    out = " ".join(verify("--html", "page.html").out.split())
    report = written_report()
    assert (report["status"], report["checks"][-1]["name"]) == ("passed", "matmul rate")
    assert "127 % of the matmul rate" in report["warnings"][-1]
    assert "matmul rate warning" in out
    assert "VERIFIED" in out
    page = Path("page.html").read_text()
    assert "Warning: matmul rate" in page
    assert "times in this report cannot be trusted" in page


@pytest.mark.parametrize("lie", [{"against": 5}, {"host": []}, {"warnings": 3}])
def test_what_no_page_could_show_is_refused_with_the_report(
    own: Settings, payload: Payload, lie: dict[str, Any], verify: Command
) -> None:
    payload.report = {**payload.report, **lie}
    verify("--html", "page.html", code=5)
    assert "malformed" in written_report()["reasons"][0]
    assert "NOT VERIFIED" in Path("page.html").read_text()


def test_no_payload_says_who_it_is(own: Settings, payload: Payload, verify: Command) -> None:
    lies = {"profile": "cuda", "backend": "venv", "time": "20990101T000000Z", "fingerprint": "x"}
    payload.report = {**payload.report, **lies}
    verify()
    report = written_report()
    assert (report["profile"], report["backend"]) == ("cpu", "external")
    assert report["time"] < "2099"
    assert report["fingerprint"] is None


@pytest.mark.parametrize(
    ("code", "report", "said"),
    [
        (-9, None, "killed"),
        (1, None, "exit code 1"),
        (0, {"schema": 1}, "the report of an earlier envbuilder"),
        (5, measured(), "cannot be trusted"),
        (0, measured(device__used="cuda"), "contradicts itself"),
        (0, measured(training__epochs=[epoch(float("nan"))]), "malformed"),
    ],
)
def test_a_payload_that_gave_no_report_is_reported(
    own: Settings,
    payload: Payload,
    tmp_path: Path,
    verify: Command,
    code: int,
    report: Any,
    said: str,
) -> None:
    payload.code = code
    payload.report = report
    captured = verify("--json", code=5)
    assert said in captured.err
    stored = written_report()
    assert stored == json.loads(captured.out)
    assert stored["status"] == "failed"
    assert said in stored["reasons"][0]
    assert stored["device"]["used"] is None


@pytest.mark.parametrize("forged", [f for f in FORGED if not f.in_ci], ids=lambda f: f.name)
def test_a_forged_report_is_5(
    own: Settings, payload: Payload, verify: Command, forged: Forged
) -> None:
    """Also where its process ran for as long as it says and answered the blind test."""
    payload.report = quick_report(**forged.changes)
    payload.code = 0
    assert "\nNOT VERIFIED" in verify(code=5).out
    stored = written_report()
    assert stored["status"] == "failed"
    assert forged.words in stored["reasons"][0]


def test_what_a_forged_report_changes_is_what_gives_it_away(
    payload: Payload, verify: Command
) -> None:
    payload.report = quick_report(**SHORT)
    verify()


# ---- what cannot be written


def unwritable(monkeypatch: pytest.MonkeyPatch, where: Callable[[Path], bool]) -> None:
    real = files.write

    def write(path: Path, content: bytes, mode: int = 0o666) -> None:
        if where(path):
            raise OSError(28, "No space left on device")
        real(path, content, mode)

    monkeypatch.setattr(files, "write", write)


@pytest.mark.parametrize("passed", [True, False])
def test_a_report_that_cannot_be_written_hides_no_verdict(
    payload: Payload, monkeypatch: pytest.MonkeyPatch, verify: Command, passed: bool
) -> None:
    if not passed:
        payload.says(status="failed", reasons=["device: none"])
    unwritable(monkeypatch, lambda p: p.suffix == ".json")
    captured = verify("--html", "page.html", code=1 if passed else 5)
    assert ("VERIFIED" if passed else "NOT VERIFIED") in captured.out
    assert captured.err.count("No space left on device") == 1
    # One that fails does not keep the other from being written.
    assert Path("page.html").exists()


def test_a_log_that_cannot_be_written_hides_no_verdict(own: Settings, verify: Command) -> None:
    own.cache_dir.mkdir(parents=True)
    own.logs_dir.write_text("in the way")
    assert "cannot be written" in verify().err


def test_the_log_keeps_what_is_no_text(own: Settings, verify: Command) -> None:
    verify()
    (log,) = own.logs_dir.glob("*.log")
    assert log.read_text() == "\\udce9 said"


# ---- against


def test_a_regression_is_5(payload: Payload, verify: Command) -> None:
    verify("--output", "before.json")
    payload.says(training__epochs=[epoch(25.0)])
    verify("--against", "before.json")
    payload.says(training__epochs=[epoch(40.0)])
    shown = verify("--against", "before.json", code=5).out
    assert "NOT VERIFIED" in shown
    assert "40.0 s against 20.0 s" in " ".join(shown.split())
    assert written_report()["status"] == "failed"
    assert written_report()["against"]["max_slowdown"] == regression.MAX_SLOWDOWN


def busy(payload: Payload, **changes: Any) -> None:
    payload.says(contention={"epoch 1": BUSY, "measurements": QUIET}, **changes)


def test_a_busy_machine_changes_no_verdict_and_is_told_everywhere(
    own: Settings, payload: Payload, verify: Command
) -> None:
    busy(payload)
    shown = " ".join(verify("--html", "page.html").out.split())
    why = "machine busy: epoch 1: tasks waited for a CPU 95 % of the time"
    report = written_report()
    assert (report["status"], report["speed"], report["speed_reason"]) == (
        "passed",
        "not_judged",
        why,
    )
    assert f"Its speed {why}" in shown
    assert "epoch 20.0 s, speed not judged, accuracy" in shown
    page = " ".join(Path("page.html").read_text().split())
    assert why in page
    assert "speed not judged" in page
    assert json.loads(verify("--json").out)["speed"] == "not_judged"


def test_a_busy_machine_is_no_regression(payload: Payload, verify: Command) -> None:
    verify("--output", "before.json")
    busy(payload, training__epochs=[epoch(90.0)])
    shown = " ".join(verify("--against", "before.json", "--output", "busy.json").out.split())
    assert "speed not judged in this verification" in shown
    payload.says()
    shown = " ".join(verify("--against", "busy.json").out.split())
    assert "speed not judged in the earlier verification: machine busy" in shown


def test_less_accurate_is_5(payload: Payload, verify: Command) -> None:
    verify("--output", "before.json")
    payload.says(training__epochs=[epoch(20.0, 0.97)])
    data = json.loads(verify("--against", "before.json", "--json", code=5).out)
    assert "less accurate" in data["reasons"][0]


def test_another_torch_is_named(payload: Payload, verify: Command) -> None:
    verify("--output", "before.json")
    payload.says(framework__version="2.14.1+cpu")
    assert "framework: torch 2.14.1+cpu, then torch 2.13.0+cpu" in " ".join(
        verify("--against", "before.json").out.split()
    )


def test_a_failed_verification_stays_5(payload: Payload, verify: Command) -> None:
    verify("--output", "before.json")
    payload.says(status="failed", reasons=["device: none"], training=None)
    assert "not compared" in verify("--against", "before.json", code=5).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--against", "nowhere.json"], "nowhere.json"),
        (["--against", "damaged.json"], "damaged.json: damaged"),
        (["--against", "full.json"], "different images"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_2(
    payload: Payload, tmp_path: Path, verify: Command, arguments: list[str], said: str
) -> None:
    (tmp_path / "damaged.json").write_text("{")
    written(tmp_path / "full.json")
    assert said in verify(*arguments, code=2).err
    assert payload.started == 0


# ---- where reports go

PAGE = '<meta name="generator" content="envbuilder">'


def test_a_report_and_a_page_replace_earlier_ones(payload: Payload, verify: Command) -> None:
    for _ in range(2):
        verify("--output", "r.json", "--html", "r.html", "-q")
        report = read_json(Path("r.json"))
        Path("r.json").write_text(json.dumps(report, sort_keys=True))  # as jq does


def test_bytes_that_are_no_text_lose_no_report(
    own: Settings, tmp_path: Path, verify: Command
) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    arguments = ("--python", str(folder / "python"), "--output", "r.json", "--html", "r.html")
    verify(*arguments)
    report = read_json(Path("r.json"))
    assert report["artifact"]["ref"] == str(folder / "python").replace("\udce9", "\\udce9")
    assert regression.read(Path("r.json")).report.status == "passed"


def test_two_verifications_in_one_second_have_a_log_each(
    own: Settings, monkeypatch: pytest.MonkeyPatch, verify: Command
) -> None:
    monkeypatch.setattr(text, "stamp_now", lambda: "20261128T120000Z")
    verify()
    verify()
    assert len([*own.logs_dir.glob("20261128T120000Z-cpu-external-*-payload.log")]) == 2


# ---- the page


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that says nothing but the verdict: what is drawn is another module's business."""
    monkeypatch.setattr(show, "render", lambda report: f"{PAGE}{report['status']}")


@pytest.mark.usefixtures("drawn")
def test_the_page_is_written_for_failures_too(
    payload: Payload, tmp_path: Path, verify: Command
) -> None:
    path = tmp_path / "deep/report.html"
    verify("--html", str(path))
    assert path.read_text().endswith("passed")
    payload.code = -9
    payload.report = None
    verify("--html", str(path), code=5)
    assert path.read_text().endswith("failed")
    payload.code = None
    payload.says()
    (tmp_path / "file").write_text("")
    payload.started = 0
    assert "file/report.html: cannot be written" in verify("--html", "file/report.html", code=2).err
    assert payload.started == 0


def test_an_error_without_a_file_names_none(
    payload: Payload, monkeypatch: pytest.MonkeyPatch, verify: Command
) -> None:
    monkeypatch.setattr(show, "render", Mock(side_effect=OSError("the template is gone")))
    assert (
        "the page cannot be written: the template is gone"
        in verify("--html", "page.html", code=1).err
    )


@pytest.mark.parametrize(
    ("status", "verdict", "code"), [("failed", "failed", 5), ("warning", "passed", 0)]
)
def test_imports_of_what_is_required_decide(
    own: Settings,
    monkeypatch: pytest.MonkeyPatch,
    verify: Command,
    status: Any,
    verdict: str,
    code: int,
) -> None:
    monkeypatch.setattr(start.Subject, "built", lambda subject: (subject, "build"))
    replaced(monkeypatch, import_check, "tried", Outcome(status, "1 of 2; cv2: no"))
    printed = verify(code=code)
    report = written_report()
    named = report["checks"][-1]
    assert (named["name"], named["status"], named["detail"]) == (
        "imports",
        status,
        "1 of 2; cv2: no",
    )
    assert report["status"] == verdict
    assert report["reasons"] == (["imports: 1 of 2; cv2: no"] if code else [])
    assert "1 of 2; cv2: no" in " ".join(printed.out.split())


def test_the_data_set_is_fetched_beside_the_build(
    payload: Payload, monkeypatch: pytest.MonkeyPatch, verify: Command
) -> None:
    fetching = threading.Event()

    def obtain(*_: Any) -> mnist.Dataset:
        fetching.set()
        return mnist.subset()

    def built(subject: start.Subject) -> tuple[start.Subject, None]:
        assert fetching.wait(60)
        return subject, None

    monkeypatch.setattr(mnist, "local", lambda *_, **__: None)
    monkeypatch.setattr(mnist, "obtain", obtain)
    monkeypatch.setattr(start.Subject, "built", built)
    verify()
    assert payload.started == 1
