"""Fixtures for all tests, and the rule about missing things.

A test that needs something this machine lacks skips with a reason, unless ENVBUILDER_REQUIRE names
it (engine, torch, network …): then it fails.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest

# Where tests run in the background, Ctrl-C is ignored, and programs that they start inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("soak", max_examples=3000, deadline=None)
REQUIRED = frozenset(filter(None, os.environ.get("ENVBUILDER_REQUIRE", "").split(",")))


def missing(what: str, why: str) -> NoReturn:
    """Skip, or fail where `what` is required."""
    if what in REQUIRED:
        pytest.fail(f"{what} is required here (ENVBUILDER_REQUIRE), but {why}")
    pytest.skip(f"no {what}: {why}")


@pytest.fixture(scope="session")
def need() -> object:
    """`need(what, why)`: skip or fail."""
    return missing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="write golden files anew")
    parser.addoption("--soak", action="store_true", help="run the tests marked soak, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long proofs out where nobody asked for them."""
    if config.getoption("--soak"):
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_report_header() -> str:
    return f"required: {', '.join(sorted(REQUIRED)) or 'nothing'}"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent
