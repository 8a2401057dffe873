"""The command-line interface.

This module imports each command on first use, and turns errors into exit codes.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from envbuilder import __version__
from envbuilder.core import console, process
from envbuilder.core.errors import (
    BUILD_FAILED,
    INTERRUPTED,
    INVALID,
    RUN_FAILED,
    EnvbuilderError,
    Hint,
    InvalidError,
)

GROUPS = {
    "Your repository on your hardware": {
        "init": "Write an envbuilder.yaml for the repository in this folder.",
        "add": "Add packages to the project, and lock it.",
        "remove": "Remove packages from the project, and lock it.",
        "run": "Run a command inside an environment.",
        "shell": "Open a shell inside an environment.",
        "jupyter": "Open JupyterLab, with a kernel in the environment.",
    },
    "Is it right": {
        "detect": "Show this machine and the profile that fits it.",
        "doctor": "Judge the environment in use and this machine; give the fixes.",
        "verify": "Train MNIST inside an environment and report what did the work.",
        "watch": "Run a training, and report which device did its work.",
        "compare": "Put reports of several machines side by side.",
        "tune": "Time settings, and report which make training faster here.",
        "fleet": "Verify every node of a cluster.",
    },
    "Elsewhere": {
        "lock": "Resolve a profile to exact files with hashes.",
        "check": "Check locks; for CI and pre-commit.",
        "build": "Build an environment from a locked profile.",
        "render": "Write a Dockerfile or other files that need no envbuilder.",
        "bundle": "Pack everything that profiles need into one file, for offline use.",
        "unbundle": "Unpack a bundle without a network.",
        "ci": "Write a CI workflow that builds and verifies environments.",
        "reproduce": "Build twice from nothing, and compare bit for bit.",
        "sbom": "Write a profile's SBOM from its lock.",
        "sign": "Sign locks, bundles, SBOMs and provenances.",
        "verify-signature": "Check signatures of files.",
    },
    "Housekeeping": {
        "profiles": "List profiles, or show one.",
        "clean": "Remove environments, images and files that envbuilder made.",
    },
}
"""The commands, grouped and ordered as `--help` lists them."""
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
RELATIVES = {
    "remove": "add",
    "shell": "run",
    "watch": "run",
    "verify-signature": "sign",
    "unbundle": "bundle",
}
"""Command → the command whose module contains it, as a function with the command's name."""
_NARROWEST = 50
"""Minimum width of the help texts in columns."""
PASSES_CODE_THROUGH = {"run", "watch", "shell", "jupyter"}


def _set_verbosity(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value:
        return
    verbosity = console.VERBOSITY
    setattr(verbosity, str(param.name), True)
    ctx.find_root().call_on_close(verbosity.reset)
    if verbosity.quiet and verbosity.verbose:
        raise click.UsageError("--quiet and --verbose cannot be combined", ctx)


def global_options() -> list[click.Option]:
    """Return the options that are accepted both before and after the name of every command."""
    return [
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=_set_verbosity,
            help="Only print results and errors.",
        ),
        click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            expose_value=False,
            callback=_set_verbosity,
            help="Also print the programs run, their variables and network requests.",
        ),
        # `_run` reads it, since anything may fail before options are parsed.
        click.Option(["--debug"], is_flag=True, expose_value=False, help="Show tracebacks."),
    ]


def _with_global_options(command: click.Command) -> click.Command:
    if all(param.name != "quiet" for param in command.params):
        taken: set[str] = set()
        for param in command.params:
            taken.update(param.opts)
        for option in global_options():
            option.opts = [word for word in option.opts if word not in taken]
            command.params.append(option)
        if isinstance(command, click.Group):
            for subcommand in command.commands.values():
                _with_global_options(subcommand)
    return command


class LazyGroup(click.Group):
    """A group that imports its commands from `envbuilder.commands` on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in the order in which `--help` lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command `cmd_name`, or return None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"envbuilder.commands.{RELATIVES.get(cmd_name, cmd_name)}")
        name = cmd_name.replace("-", "_") if cmd_name in RELATIVES else "command"
        return _with_global_options(getattr(module, name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands to the help text by group, without importing them."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. If its name is unknown, suggest a similar name in the error message."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            if not close or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{close[0]}'?", ctx) from error


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: envbuilder init, then envbuilder run -- python train.py",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Build deep-learning environments for the hardware you have, and prove that they work."""
    try:
        os.getcwd()  # noqa: PTH109 (checks whether there is one)
    except OSError as error:
        raise InvalidError(
            f"the working folder cannot be used: {error.strerror}",
            "It may have been removed. Change to an existing folder, such as your home folder.",
        ) from error


cli.params += global_options()


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line, then exit with the exit code that corresponds to its outcome."""
    # A caller that passes its own arguments or uses py-rattler itself may continue afterwards.
    owns_process = arguments is None and "rattler" not in sys.modules
    if arguments is None:
        _require_utf8()
        console.guard()
        arguments = sys.argv[1:]
    process.install_stop_handlers(owns_process=owns_process)
    code = _run(arguments)
    if owns_process:
        _leave(code)
    # An engine's client closes its connections at the end, unless they are collected before it.
    gc.freeze()
    sys.exit(code)


def _require_utf8() -> None:
    """Restart this process in Python's UTF-8 mode if the locale uses another encoding.

    Otherwise, the names and contents of files in an image would depend on the locale. Python 3.15
    uses UTF-8 mode by default.
    """
    if sys.getfilesystemencoding() == "utf-8" or "utf8" in sys._xoptions:
        return
    process.start_again("-X", "utf8")


def _leave(code: int) -> NoReturn:
    """Exit the process without shutting down the Python interpreter.

    In a short command, a shutdown would take a tenth of the time, only to free memory that is freed
    anyway when the process ends. It would also wait for threads, such as one that is resolving a
    host name. When a thread of py-rattler reports a failure, it still needs the interpreter for a
    moment. If the interpreter shuts down in the meantime, the process aborts (seen in one of five
    failures).
    """
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(arguments: list[str]) -> int:  # noqa: PLR0911 (one return per outcome reads best)
    words = [a for a in arguments if not a.startswith("-")]
    # What follows `--` belongs to the program that `run` starts.
    debug = "--debug" in arguments[: arguments.index("--") if "--" in arguments else None]
    through = bool(words) and words[0] in PASSES_CODE_THROUGH
    try:
        result: Any = cli.main(
            args=arguments,
            prog_name="envbuilder",
            standalone_mode=False,
            terminal_width=max(min(console.columns(), console.WIDTH) - 2, _NARROWEST),
        )
        sys.stdout.flush()
    except EnvbuilderError as error:
        if isinstance(error, console.OutputError):
            console.discard()
        if debug:
            raise
        _complain(error.message, error.hints)
        return getattr(error, "run_code", RUN_FAILED) if through else error.exit_code
    except click.ClickException as error:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
            return INVALID
        hints: list[Hint] = []
        if context := getattr(error, "ctx", None):
            hints = [Hint("See", (*context.command_path.split()[1:], "--help"))]
        _complain(error.format_message().expandtabs(2), hints)
        return RUN_FAILED if through else INVALID
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted: no partial results are left", "")
        return INTERRUPTED
    except process.TerminatedError as stopped:
        _complain("terminated: no partial results are left", "")
        return process.exit_code(stopped.args[0])
    except (console.NoReaderError, BrokenPipeError):
        # Python must not report it at exit, either.
        console.discard()
        return 128 + signal.SIGPIPE
    except Exception as error:
        if debug:
            raise
        _complain(*_unforeseen(error))
        return RUN_FAILED if through else BUILD_FAILED
    return result if isinstance(result, int) else 0


def _unforeseen(error: Exception) -> tuple[str, str]:
    """Return the message and the hint to print for an exception that no command handles."""
    if isinstance(error, OSError) and error.errno is not None:  # a failure of the machine
        place = f"{error.filename}: " if error.filename else ""
        return (
            f"{place}{error.strerror}",
            "Run the command again with --debug to see where it failed.",
        )
    return (
        f"unexpected {type(error).__name__}: {error}",
        "This is a bug in envbuilder. Run the command again with --debug, and report its output.",
    )


def _complain(message: str, hints: str | Iterable[Hint]) -> None:
    with suppress(OSError, console.NoReaderError):  # the exit code still shows it
        console.error(message, hints)
