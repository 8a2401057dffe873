"""Real files with damage: some edits that swap a piece of the text for another one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st


@st.composite
def edited(draw: st.DrawFn, texts: Sequence[str], pieces: Sequence[str]) -> str:
    """Draw one of some texts with up to four edits, or any text."""
    text = draw(st.one_of(st.sampled_from(texts), st.text(max_size=200)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(start + 40, len(text))))
        piece = draw(st.one_of(st.sampled_from(pieces), st.text(max_size=10)))
        text = text[:start] + piece + text[end:]
    return text
