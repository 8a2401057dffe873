"""A rich console that shows outside text as text: no markup, no control characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from envbuilder.core.redaction import redacted
from envbuilder.core.text import escaped_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType


class EscapingConsole(Console):
    """A console whose only escape sequences are rich's own styles and cursor movements."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, without credentials and control characters.

        Lines are cut and padded afterwards, so that tables keep their columns.
        """
        if isinstance(renderable, str):
            renderable = redacted(renderable)
        elif isinstance(renderable, Text) and redacted(renderable.plain) != renderable.plain:
            renderable = Text(redacted(renderable.plain), style=renderable.style)
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(escaped_lines(segment.text), segment.style)
