"""Commands that messages suggest or mention: the command line takes each of them."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import envbuilder
from envbuilder import cli

ROOT = Path(envbuilder.__file__).parent
SAMPLE = "sample"
"""What stands for a word that is known at run time only."""
MENTIONED = re.compile(r"`envbuilder ([^`]*)`")
BARE = re.compile(rf"(?<!`)\benvbuilder ({'|'.join(cli.COMMANDS)})\b")
NO_ADVICE = {
    # Lines of files that we write.
    ("ci/workflow.py", "envbuilder check"),
    ("project/draft.py", "envbuilder add NAME"),
    # Prefixes of messages of these very commands, and another sense of the words.
    ("project/environment_changes.py", "envbuilder add"),
    ("project/environment_changes.py", "envbuilder remove: "),
    ("bundle/format.py", "an envbuilder bundle"),
    ("verify/advice.py", "envbuilder verify"),
    ("verify/advice.py", "let envbuilder build an environment"),
    # A hook that imports nothing of ours prints what a hint would be.
    ("builds/inside/sitecustomize.py", "lock again:\n  envbuilder lock"),
    ("cli.py", "Start with: envbuilder init"),
}


@functools.cache
def trees() -> tuple[tuple[str, ast.AST], ...]:
    """Return the modules that may name a command of ours."""
    found = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    return tuple(
        (path.relative_to(ROOT).as_posix(), ast.parse(content))
        for path, content in found.items()
        if "Hint(" in content or "envbuilder " in content
    )


def text(node: ast.AST) -> str:
    """Return a text as it is written, with samples for its parts; empty for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (text(part) if isinstance(part, ast.Constant) else SAMPLE for part in node.values)
        return "".join(parts)
    return ""


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines, without docstrings."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner.update(map(id, node.values))
    for node in ast.walk(tree):
        if id(node) not in inner and (found := text(node)):
            yield getattr(node, "lineno", 0), found


def words(node: ast.expr) -> list[list[str]]:
    """Return the commands that an expression may give; starred parts are left out."""
    if isinstance(node, ast.IfExp):
        return words(node.body) + words(node.orelse)
    if not isinstance(node, ast.Tuple):
        return []
    first, *rest = node.elts
    others = [text(n) or SAMPLE for n in rest if not isinstance(n, ast.Starred)]
    return [[text(first) or SAMPLE, *others]]


def suggested() -> Iterator[tuple[str, list[str]]]:
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Hint"):
                for command in words(node.args[1]) if node.args[1:] else ():
                    if SAMPLE not in command[:1]:
                        yield f"{name}:{node.lineno}", command


def mentioned() -> Iterator[tuple[str, list[str]]]:
    for name, tree in trees():
        for line, found in strings(tree):
            for match in MENTIONED.finditer(found):
                yield f"{name}:{line}", shlex.split(match[1])


def refusal(command: list[str]) -> str:
    """Return why the command line does not take a command; empty if it does."""
    found: click.Command | None = cli.cli
    rest = list(command)
    while isinstance(found, click.Group) and rest:
        found = found.get_command(click.Context(found), rest.pop(0))
    if "--help" in command:
        return ""
    if found is None:
        return "no such command"
    context = click.Context(found)
    try:
        values, extra, _ = found.make_parser(context).parse_args(rest)
    except click.UsageError as error:
        return error.format_message()
    if extra:
        return f"too many arguments: {extra}"
    for parameter in found.params:
        value = values.get(str(parameter.name))
        if parameter.required and not value and SAMPLE not in command:
            return f"lacks {parameter.name}"
        of_choice = isinstance(parameter.type, click.Choice) and isinstance(value, str)
        if of_choice and value != SAMPLE:
            parameter.type.convert(value, parameter, context)
    return ""


@pytest.mark.parametrize("collect", [suggested, mentioned])
def test_the_command_line_takes_every_command_that_a_message_names(
    collect: Callable[[], Iterator[tuple[str, list[str]]]],
) -> None:
    every = list(collect())
    assert len(every) > 20
    refused = {where: (command, refusal(command)) for where, command in every}
    assert {where: why for where, why in refused.items() if why[1]} == {}


def test_no_text_names_a_command_that_could_be_broken_or_mistyped() -> None:
    """Suggestions are hints, mentions stand in backticks: both are checked, and shown whole."""
    bare = {
        (name, found)
        for name, tree in trees()
        for _, found in strings(tree)
        if BARE.search(MENTIONED.sub("", found))
    }
    named = {(n, t) for n, t in bare if not any(n == m and part in t for m, part in NO_ADVICE)}
    assert named == set()
