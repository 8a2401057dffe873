"""Render the shipped Jinja2 templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envbuilder.core import resources

if TYPE_CHECKING:
    from collections.abc import Mapping


def filled(template: str, context: Mapping[str, Any]) -> str:
    """Return a shipped template, rendered with `context`."""
    text: str = _environment().get_template(template).render(context)
    return text


_cached: Any = None


def _environment() -> Any:
    global _cached  # noqa: PLW0603 (built once per process; templates do not change)
    if _cached is None:
        import jinja2

        _cached = jinja2.Environment(
            loader=jinja2.FileSystemLoader(resources.templates_dir()),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            # Dockerfiles, TOML and shell are not HTML; every value is checked when it is read.
            autoescape=False,  # noqa: S701
        )
        _cached.filters["shell"] = _shell
    return _cached


def _shell(value: str) -> str:
    """Quote for a POSIX shell."""
    import shlex

    return shlex.quote(value)
