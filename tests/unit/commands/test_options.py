"""Options that several commands share."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from envbuilder import cli
from envbuilder.builds import request as requests
from envbuilder.commands import options
from envbuilder.core.settings import Settings, Signatures

USERS = {
    "build": (),
    "jupyter": (),
    "reproduce": (),
    "run": ("--", "true"),
    "shell": (),
    "tune": (),
    "verify": (),
    "watch": ("--", "true"),
}
"""The commands that build environments, with arguments that each needs."""


class Request(requests.Request, frozen=True, kw_only=True):
    """A request with one more field."""

    invented: str | None = None


def module_of(name: str) -> ModuleType:
    """The module of a command."""
    return importlib.import_module(f"envbuilder.commands.{cli.RELATIVES.get(name, name)}")


def loaded_again(original: ModuleType) -> ModuleType:
    """A command's module, executed with the options as they are now."""
    spec = importlib.util.spec_from_file_location(f"{original.__name__}_again", original.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", USERS)
def test_a_shared_option_is_added_in_one_place(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    original = module_of(name)  # imported before anything is replaced, which it would keep

    def requested(**fields: Any) -> Request:
        seen.append(Request(**fields))
        raise click.Abort

    invented = options.request_option("--invented", help="What nobody has yet.")
    monkeypatch.setattr(options, "SHARED", (*options.SHARED, invented))
    again = options.request_options(options.profile_option)
    monkeypatch.setattr(options, "environment_options", again)
    monkeypatch.setattr(
        options,
        "running_options",
        options.adding(again, options.access_options, options.locked_option),
    )
    monkeypatch.setattr(requests, "Request", requested)
    module = loaded_again(original)
    command = getattr(module, name if name in cli.RELATIVES else "command")
    assert "What nobody has yet." in command.get_help(click.Context(command))
    with pytest.raises(click.Abort):
        command.main(["--invented", "seven", *USERS[name]], standalone_mode=False)
    assert [request.invented for request in seen] == ["seven"]


def test_every_command_that_builds_environments_takes_them() -> None:
    context = click.Context(cli.cli)
    takers = set()
    for name in cli.COMMANDS:
        command = cli.cli.get_command(context, name)
        assert command is not None
        params = {param.name for param in command.params}
        if {"environment", "backend"} <= params and name != "ci":
            takers.add(name)
    assert takers == {*USERS}


def test_required_keys_are_of_bundles_and_of_locks(tmp_path: Path) -> None:
    seen: list[Settings] = []

    @click.command()
    @options.require_signature_option
    def command() -> None:
        seen.append(options.load_settings())

    key = tmp_path / "key.pub"
    key.write_text("")
    command.main(["--require-signature", str(key)], standalone_mode=False)
    command.main([], standalone_mode=False)
    named, unnamed = (settings.configuration.signatures for settings in seen)
    assert named == Signatures(locks=(str(key),), bundles=(str(key),))
    assert unnamed == Signatures()
