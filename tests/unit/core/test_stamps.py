"""Times of reports are read in one form, and shown as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from envbuilder.core import stamps


def test_a_stamp_is_a_time_in_utc() -> None:
    assert stamps.parse("20261120T095103Z") == datetime(2026, 11, 20, 9, 51, 3, tzinfo=UTC)
    assert stamps.readable("20261120T095103Z") == "20 November 2026, 09:51 UTC"


@pytest.mark.parametrize("other", ["", "yesterday", "2026-11-20T09:51:03Z", "20261120T095103"])
def test_another_form_is_refused_and_shown_as_it_is(other: str) -> None:
    with pytest.raises(ValueError, match="does not match"):
        stamps.parse(other)
    assert stamps.readable(other) == other


def test_the_stamp_of_this_moment_can_be_read() -> None:
    assert abs((stamps.parse(stamps.now()) - datetime.now(UTC)).total_seconds()) < 60
