"""JSON from outside is refused in a few words, and in a time that goes with its size."""

from __future__ import annotations

import time

import pytest

from envbuilder.core import decoding


def test_a_key_that_is_twice_among_many_is_found_at_once() -> None:
    many = b",".join(b'"k%d":1' % number for number in range(30_000))
    began = time.process_time()
    with pytest.raises(ValueError, match="key 'k29999' appears twice"):
        decoding.strict_json(b"{" + many + b',"k29999":2}')
    assert time.process_time() - began < 1  # comparing each with each took 9 s


@pytest.mark.parametrize(
    "text", [r'["\ud800"]', r'{"a": "\uDFFFx"}', r'{"\udC00": 1}', r'[["\udc00\ud800"]]']
)
def test_half_a_character_is_no_text(text: str) -> None:
    with pytest.raises(ValueError, match="half a character"):
        decoding.strict_json(text.encode())


@pytest.mark.parametrize(
    ("text", "value"), [(r'"\ud83d\ude00"', "\U0001f600"), (r'"\\ud800"', r"\ud800")]
)
def test_whole_characters_may_be_escaped(text: str, value: str) -> None:
    assert decoding.strict_json(text.encode()) == value


def test_the_number_of_values_is_limited() -> None:
    decoding.strict_json(b"[" + b"0," * 900_000 + b"0]")
    with pytest.raises(ValueError, match="more than 1000000 values"):
        decoding.strict_json(b"[" + b"[]," * 3_000_000 + b"[]]")
