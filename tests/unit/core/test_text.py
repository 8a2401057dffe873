"""Text from outside cannot act on a terminal or disguise itself; figures read alike."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core import text

any_text = st.text(st.characters(), max_size=80)
"""With lone surrogates, which `st.text()` alone leaves out."""


@given(any_text, st.integers(min_value=1, max_value=60), st.booleans())
def test_printable_text_is_short_and_shows_all_it_has(
    raw: str,
    limit: int,
    lines: bool,
) -> None:
    clean = text.printable(raw, limit, lines=lines)
    assert len(clean) <= limit
    clean.encode()
    for character in clean:
        assert character.isprintable() or (lines and character in "\n\t")
        assert unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} or (
            lines and character in "\n\t"
        )
    assert text.printable(clean, limit, lines=lines) == clean


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=80))
def test_plain_text_stays_as_it_is(raw: str) -> None:
    assert text.printable(raw) == text.escaped(raw) == raw


@given(any_text)
def test_escaped_text_is_one_line_and_can_be_encoded(raw: str) -> None:
    assert text.escaped(raw, 1000).isprintable()
    text.escaped(raw).encode()


@given(any_text)
def test_escaped_lines_keep_their_line_breaks(raw: str) -> None:
    clean = text.escaped_lines(raw)
    assert clean.count("\n") == raw.count("\n")
    assert clean.replace("\n", "").replace("\t", "").isprintable()
    assert text.escaped_lines(clean) == clean
    clean.encode()


@given(st.lists(any_text), st.sampled_from([None, 1]))
def test_escaped_json_has_the_same_value(raw: list[str], indent: int | None) -> None:
    encoded = text.escaped_json(json.dumps(raw, ensure_ascii=False, indent=indent))
    assert json.loads(encoded) == raw
    assert encoded.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b[2J\x07", "?[2J?"),
        ("a\x85b\x9bc", "a?b?c"),
        ("\u202egnp.exe\u2066\u2069", "?gnp.exe??"),
        ("a\u200bb\u2060c\ufeffd\u00ade", "a?b?c?d?e"),
        ("\ud800x\udfff", "?x?"),
        ("a\u3164\uffa0\u115fb", "a???b"),
        ("one\ntwo\tthree\r\u2028", "one?two?three??"),
        ("  inner  space  ", "inner  space"),
        ("é文字🙂", "é文字🙂"),
        ("x" * 2000, "x" * 999 + "…"),
    ],
)
def test_what_becomes_of_a_text(raw: str, clean: str) -> None:
    assert text.printable(raw) == clean


def test_options_of_printable() -> None:
    assert text.printable("a\n\tb\x1b", lines=True) == "a\n\tb?"
    assert text.printable("a\x00b", instead=" ") == "a b"
    assert text.printable("abcdef", 3) == "ab…"
    assert text.escaped("a\x1bb\ud800\n") == r"a\x1bb\ud800\n"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.amount(0), "0"),
        (text.amount(0.0123), "0.0123"),
        (text.amount(0.123), "0.123"),
        (text.amount(1.234), "1.23"),
        (text.amount(9.999), "10.0"),
        (text.amount(12.34), "12.3"),
        (text.amount(1234.5), "1,234"),
        (text.amount(-1.5), "-1.50"),
        (text.amount(1e300), "1e+300"),
        (text.amount(5e-324), "4.94e-324"),
        (text.counted(1, "GPU"), "1 GPU"),
        (text.counted(1.5, "core"), "1.5 cores"),
        (text.times(0.8643), "0.86×"),
        (text.times(18.14), "18.1×"),
        (text.times(240.3), "240×"),
        (text.percent(0.9835), "98.35 %"),
        (text.percent(0.6, 0), "60 %"),
        (text.percent(None), "-"),
        (text.duration(0), "0 ns"),
        (text.duration(4.1e-6), "4.10 µs"),
        (text.duration(37.96), "38.0 s"),
        (text.duration(192.4), "3 min 12 s"),
        (text.rate(2.2e11, "FLOP/s"), "220 GFLOP/s"),
        (text.rate(5, "B/s"), "5.00 B/s"),
        (text.memory(25276510208), "23.5 GiB"),
        (text.memory(None), "-"),
        (text.gibibytes(25276510208), "23.5 GiB"),
        (text.gibibytes(2**41), "2,048.0 GiB"),
        (text.gigabytes(1.25e9), "1.2 GB"),
        (text.bandwidth(1_008_000_000_000), "1008 GB/s"),
    ],
)
def test_figures(shown: str, expected: str) -> None:
    assert shown == expected


@given(st.floats(min_value=0, max_value=1e300))
def test_no_figure_is_long_or_fails(value: float) -> None:
    for shown in (text.amount(value), text.duration(value), text.memory(value)):
        assert len(shown) < 40
    assert float(text.amount(value).replace(",", "")) == pytest.approx(value, rel=0.006)
