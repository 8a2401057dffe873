"""One browser for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import missing
from tests.support.browser import Browser


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        missing("chromium", "neither chromium nor google-chrome is installed")
    found = Browser(program, tmp_path_factory.mktemp("chromium"))
    try:
        found.start()
        yield found
    finally:
        found.close()
