#!/usr/bin/env python3
"""Ignore options of the real command, and report those whose absence no test notices.

    tools/ignored_options.py                         each option alone, then 20 drawn pairs
    tools/ignored_options.py --pairs 100 --seed 7
    tools/ignored_options.py --only 'lock --*' -- tests/integration/network
    tools/ignored_options.py --record                run the tests once, and note what they give

Tests start the command as a process. In the first run each of these processes notes the options it
was given and the test that started it. Then an option is ignored: it is parsed, and has its default
all the same. Its tests run again, the quickest first, until one fails: only an exit code, an output
or a file of the real command can make it fail. Exit code 1: an option was given by no test, or no
test noticed that it was ignored. Global options do not count.

The processes learn of all this by a `.pth` file in this environment, which is removed in the end.
"""

from __future__ import annotations

import argparse
import atexit
import fnmatch
import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "IGNORED_OPTIONS"
"""Not ENVBUILDER_…: tests that pretend to be another machine drop those."""
NOTES = Path("build/options.jsonl")
TESTS = ("tests/integration", "tests/seams/rows")
AT_ONCE = 5
"""Tests of an option that run together before the next ones are tried."""
LONGEST_SECONDS = 900
"""The time for these, the option being ignored."""

Tests = dict[str, list[str]]


def install() -> None:
    """Make this process ignore options and note the given ones, if it is the command."""
    if "envbuilder" not in {Path(word).name for word in sys.orig_argv[:4]}:
        return
    import click
    from click.core import ParameterSource

    settings = json.loads(os.environ[VARIABLE])
    given: set[str] = set()
    began = time.monotonic()
    consume = click.Option.consume_value

    def consume_value(option: click.Option, context: click.Context, words: Any) -> Any:
        consumed = consume(option, context, words)
        if context.parent is None or consumed[1] is not ParameterSource.COMMANDLINE:
            return consumed
        name = option_name(context.command_path, option)
        given.add(name)
        if name not in settings["ignored"]:
            return consumed
        return consume(option, context, {})

    def note(event: str = "os.exec", *_: object) -> None:
        """Append the given options, with this process's test and its seconds."""
        if event == "os.exec":
            test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
            entry = {"test": test, "options": sorted(given), "seconds": time.monotonic() - began}
            with Path(settings["notes"]).open("a") as stream:
                print(json.dumps(entry), file=stream)

    click.Option.consume_value = consume_value  # type: ignore[method-assign]
    if settings["notes"]:
        atexit.register(note)
        sys.addaudithook(note)  # `run`, `shell` and `jupyter` become what they start


def option_name(command_path: str, option: Any) -> str:
    """Return an option as "fleet verify --nodes": without the program, by its longest name."""
    command = command_path.partition(" ")[2]
    return f"{command} {max(option.opts, key=len)}"


@contextmanager
def hooked() -> Iterator[None]:
    """Have each Python of this environment call `install`, where the variable is set."""
    hook = Path(sysconfig.get_path("purelib"), "ignored_options.pth")
    call = f"import os; {VARIABLE!r} in os.environ and __import__('ignored_options').install()"
    hook.write_text(f"{Path(__file__).resolve().parent}\n{call}\n", encoding="utf-8")
    try:
        yield
    finally:
        hook.unlink()


def run(arguments: list[str], ignored: list[str], notes: str = "") -> int:
    """Run tests with some options ignored; return pytest's exit code, 1 if they do not end."""
    settings = {"ignored": ignored, "notes": notes}
    argv = [sys.executable, "-m", "pytest", "-q", "--all", "--no-header", *arguments]
    tests = subprocess.Popen(
        argv,
        env={**os.environ, VARIABLE: json.dumps(settings)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return tests.wait(None if notes else LONGEST_SECONDS)
    except subprocess.TimeoutExpired:  # a server that was to be refused, for example
        os.killpg(tests.pid, signal.SIGKILL)
        tests.wait()
        return 1


def recorded() -> Tests:
    """Return noted option → the tests that gave it, those with the shortest commands first."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, set[str]] = defaultdict(set)
    for line in NOTES.read_text().splitlines():
        entry = json.loads(line)
        # pytest-xdist adds the group of a test to its name.
        test = entry["test"].rpartition("@")[0] or entry["test"]
        seconds[test] += entry["seconds"]
        for option in entry["options"]:
            tests[option].add(test)
    return {option: sorted(names, key=seconds.__getitem__) for option, names in tests.items()}


def is_noticed(ignored: list[str], tests: list[str]) -> bool:
    """Return whether a test fails if the options are ignored."""
    for start in range(0, len(tests), AT_ONCE):
        code = run(["-x", *tests[start : start + AT_ONCE]], ignored)
        if code == 1:
            return True
        if code:
            raise SystemExit(f"pytest ended with exit code {code} where {ignored} were ignored")
    return False


def options() -> list[str]:
    """Return all options of all commands, the hidden ones and the global ones apart."""
    import click

    from envbuilder import cli

    shared = {option.name for option in cli.global_options()}
    names: list[str] = []

    def visit(command: click.Command, path: str) -> None:
        context = click.Context(command, info_name=path)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                if below is not None and not below.hidden:
                    visit(below, f"{path} {name}")
        if " " in path:
            for option in command.params:
                own = isinstance(option, click.Option) and option.name not in shared
                if own and not option.hidden:
                    names.append(option_name(path, option))

    visit(cli.cli, "envbuilder")
    return sorted(names)


def pairs(tests: Tests, count: int, seed: int) -> list[tuple[str, str]]:
    """Draw pairs of options of one command that some test gives together."""
    together = {
        (one, other)
        for one, names in tests.items()
        for other in tests
        if one < other
        and one.partition(" --")[0] == other.partition(" --")[0]
        and set(names) & set(tests[other])
    }
    return random.Random(seed).sample(sorted(together), min(count, len(together)))  # noqa: S311


def main() -> None:
    """Run the tests, and print what none of them notices."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="run the tests and note; no more")
    parser.add_argument("--only", default="*", help="a pattern of options, as 'lock --*'")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("tests", nargs="*", default=TESTS, help="what pytest gets the first time")
    chosen = parser.parse_args()
    with hooked():
        if chosen.record or not NOTES.exists():
            NOTES.parent.mkdir(exist_ok=True)
            NOTES.write_text("")
            run(["-n", "auto", "--dist", "loadgroup", *chosen.tests], [], str(NOTES.resolve()))
            if chosen.record:
                return
        tests = recorded()
        missed = []
        for option in fnmatch.filter(options(), chosen.only):
            if option not in tests:
                missed.append(f"{option}: given by no test")
            elif not is_noticed([option], tests[option]):
                missed.append(f"{option}: ignored, and no test notices")
        for one, other in pairs(tests, chosen.pairs, chosen.seed):
            both = [name for name in tests[one] if name in tests[other]]
            either = dict.fromkeys((*both, *tests[one], *tests[other]))
            if not is_noticed([one, other], [*either]):
                missed.append(f"{one} and {other}: ignored, and no test notices")
    print(*missed, sep="\n")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
