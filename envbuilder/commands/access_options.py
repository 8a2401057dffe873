"""Options that give a command ports, folders and variables in addition to its environment."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuilder.build import access
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.build.access import Access


def access_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--publish --volume --env`; the function gets their checked values as `given`."""

    @functools.wraps(function)
    def reading(
        publish: tuple[str, ...], volume: tuple[str, ...], env: tuple[str, ...], **options: Any
    ) -> Any:
        return inner(given=read(publish, volume, env), **options)

    inner, function = function, reading
    for option in reversed(
        (
            click.option(
                "-p",
                "--publish",
                multiple=True,
                metavar="[IP:]PORT[:PORT]",
                help="Make a port of the command's container reachable on this machine, at"
                " 127.0.0.1 unless another address is stated.",
            ),
            click.option(
                "-v",
                "--volume",
                multiple=True,
                metavar="SOURCE:TARGET[:ro]",
                help="Show a folder (./data, /data, ~/data) or a named volume in the container.",
            ),
            click.option(
                "-e",
                "--env",
                multiple=True,
                metavar="NAME[=VALUE]",
                help="Set a variable; NAME alone takes your own value, which no argument list"
                " shows.",
            ),
        )
    ):
        function = option(function)
    return function


def read(ports: tuple[str, ...], volumes: tuple[str, ...], variables: tuple[str, ...]) -> Access:
    """Return what the options state. Raise `InvalidError` that names the option."""
    pairs = dict(_named("-e", access.variable, text, os.environ) for text in variables)
    result = access.Access(
        ports=tuple(_named("-p", access.port, text) for text in ports),
        volumes=tuple(_named("-v", access.volume, text, Path.cwd()) for text in volumes),
        variables={name: value for name, value in pairs.items() if value is not None},
        passed=tuple(name for name, value in pairs.items() if value is None),
    )
    access.require_distinct(result)
    return result


def _named(option: str, read_one: Callable[..., Any], text: str, *more: Any) -> Any:
    try:
        return read_one(text, *more)
    except InvalidError as error:
        raise InvalidError(f"{option}: {error.message}", error.hint) from error
