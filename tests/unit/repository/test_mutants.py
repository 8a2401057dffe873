"""What `tools/mutants.py` counts as noticed."""

from __future__ import annotations

import pytest

from tools import mutants

STATUSES = {
    "envbuilder.packages.store.x_add__mutmut_1": "killed",
    "envbuilder.packages.store.x_add__mutmut_2": "timeout",
    "envbuilder.packages.store.xǁStoreǁ_keep__mutmut_1": "survived",
    "envbuilder.core.files.x_read__mutmut_1": "caught by type check",
    "envbuilder.core.files.x_read__mutmut_2": "no tests",
}


def test_only_what_a_test_or_mypy_refused_was_noticed() -> None:
    assert mutants.noticed_percent(STATUSES) == 60


@pytest.mark.parametrize("status", ["not checked", "skipped", "check was interrupted by user"])
def test_what_did_not_run_was_not_noticed(status: str) -> None:
    assert mutants.noticed_percent({"envbuilder.core.files.x_read__mutmut_1": status}) == 0


def test_no_mutants_are_no_success() -> None:
    assert mutants.noticed_percent({}) == 0


def test_a_row_for_each_module_and_one_for_all() -> None:
    rows = [line.split() for line in mutants.table(STATUSES)]
    assert rows == [
        ["module", "mutants", "killed", "refused", "survived", "untested"],
        ["core.files", "2", "0", "1", "0", "1"],
        ["packages.store", "3", "2", "0", "1", "0"],
        ["all", "5", "2", "1", "1", "1"],
    ]
