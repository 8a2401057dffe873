"""The templates escape every text and keep a number and its unit together."""

from __future__ import annotations

import pytest

from envbuilder.verify.page.html import templates


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>&", "&lt;b&gt;&amp;"),
        ("took 3.1 s", "took 3.1~s"),
        ("23.5 GiB of 24 GB", "23.5~GiB of 24~GB"),
        ("220 GFLOP/s, 1.2 TB/s, 60 %", "220~GFLOP/s, 1.2~TB/s, 60~%"),
        ("3 min 12 s", "3~min 12~s"),
        ("3 samples, 4 steps, 5 minutes, 6 Bytes", "3 samples, 4 steps, 5 minutes, 6 Bytes"),
    ],
)
def test_a_text(text: str, shown: str) -> None:
    rendered = templates().from_string("{{ text }}").render(text=text)
    assert rendered == shown.replace("~", "\N{NO-BREAK SPACE}")


def test_code_is_marked_up_and_escaped_once() -> None:
    rendered = templates().from_string("{{ text | code }}").render(text="Run `a <b>` & wait")
    assert rendered == "Run <code>a &lt;b&gt;</code> &amp; wait"
