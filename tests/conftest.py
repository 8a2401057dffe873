"""Fixtures for all tests, and the rule about missing things.

A test that needs something this machine lacks skips with a reason, unless ENVBUILDER_REQUIRE names
it (engine, torch, network …): then it fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, AnyStr, NoReturn

import hypothesis
import pytest

# Where tests run in the background, Ctrl-C is ignored, with nohup SIGHUP, too, and programs that
# they start inherit that; but what is caught here has its default effect in a program.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
# Threads of torch keep their cores busy while they wait for each other: where two tests train at
# once, each would wait for what the other wastes. Containers get no such variable.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# So would those of numpy, with which a verification repeats steps.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Machines are shared: how long one example takes says nothing about the code.
hypothesis.settings.register_profile(
    "shared",
    deadline=None,
    max_examples=50,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)
hypothesis.settings.register_profile(
    "soak", hypothesis.settings.get_profile("shared"), max_examples=3000
)
hypothesis.settings.load_profile("shared")
LONGEST_ID = 100
REQUIRED = frozenset(filter(None, os.environ.get("ENVBUILDER_REQUIRE", "").split(",")))


def missing(what: str, why: str) -> NoReturn:
    """Skip, or fail where `what` is required."""
    if what in REQUIRED:
        pytest.fail(f"{what} is required here (ENVBUILDER_REQUIRE), but {why}")
    pytest.skip(f"no {what}: {textwrap.shorten(why, 150, placeholder=' …')}")


def ran(command: Sequence[str | Path], **options: Any) -> CompletedProcess[str]:
    """Run a program to its end, and return what it printed."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def exited(code: int, done: CompletedProcess[AnyStr]) -> CompletedProcess[AnyStr]:
    """Return a process that ended with this exit code; fail with what another one printed."""
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def succeeded(done: CompletedProcess[AnyStr]) -> CompletedProcess[AnyStr]:
    """Return a process that ended with exit code 0; fail with what another one printed."""
    return exited(0, done)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="write golden files, run no other test"
    )
    parser.addoption("--all", action="store_true", help="run the tests marked slow, too")
    parser.addoption("--soak", action="store_true", help="run the tests marked soak, too")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long values by their arguments: what is 16 MB long would be sent to each worker."""
    return argname if isinstance(val, (str, bytes)) and len(val) > LONGEST_ID else None


def left_out(config: pytest.Config) -> tuple[str, ...]:
    """Markers of tests that were not asked for."""
    return tuple(
        marker
        for marker, option in (("slow", "--all"), ("soak", "--soak"))
        if not config.getoption(option)
    )


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that were not asked for; those that others disturb come last."""
    items.sort(key=lambda item: item.get_closest_marker("quiet") is not None)
    markers = left_out(config)
    golden_alone = config.getoption("--rewrite-golden")
    kept = []
    deselected = []
    for item in items:
        out = any(item.get_closest_marker(marker) for marker in markers)
        out |= golden_alone and "rewrite_golden" not in getattr(item, "fixturenames", ())
        (deselected if out else kept).append(item)
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """Stop where pytest-xdist was asked for groups and made none: it adds `@GROUP` to node ids.

    With pytest 9.2, pytest-xdist 3.8.0 does not, and tests of one engine disturb each other.
    """
    asked = getattr(session.config.option, "loadgroup", False)
    if asked and any("@" not in item.nodeid for item in session.items):
        raise pytest.UsageError("this pytest-xdist makes no groups with this pytest")


def group_of(item: pytest.Item) -> str:
    """Return what names the tests that one worker runs, one after the other.

    Those of a file share its fixtures. Those of an engine are one group: some look at everything
    that is in it. So are those of torch unless there are slow ones, too: each worker that has one
    builds an environment, which costs more than all the others do.
    """
    asked = set(getattr(item, "fixturenames", ()))
    if item.get_closest_marker("engine") or "real_engine" in asked:
        return "engine"
    alone = item.get_closest_marker("torch") and not item.config.getoption("--all")
    return "torch" if alone else item.path.name


def pytest_report_header(config: pytest.Config) -> str:
    """Say which missing things fail the tests, and which tests are left out."""
    markers = ", ".join(left_out(config)) or "nothing"
    return f"required: {', '.join(sorted(REQUIRED)) or 'nothing'}; left out: {markers}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Sum up what was skipped: one line a reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")


@pytest.fixture(scope="session")
def rewrite_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are written before they are compared: `make golden`."""
    return bool(request.config.getoption("--rewrite-golden"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent
