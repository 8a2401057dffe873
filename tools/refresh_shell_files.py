"""Write `share/`: man pages, and completions for bash, zsh and fish, all made from Click.

    make docs

The wheel puts them where man and the shells look. Completion starts no process except for the
names of profiles, which only envbuilder knows: starting Python takes a fifth of a second for each
press of the key. A test compares the files with what this makes.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder import __version__, cli

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parent.parent / "share"
MADE = "Made by tools/refresh_shell_files.py (make docs)."
DATE = "2026-11-22"
"""The date of the pages, which man(7) requires: fixed, so that they depend on the source alone."""
HELP = click.Option(["-h", "--help"], is_flag=True, help="Show help and exit.")
FILES = "files"
PROFILES = "profiles"
NOTHING = "nothing"
"""What may follow an option, apart from a list of words."""


def files() -> dict[str, str]:
    """Return path below `share/` → content."""
    made = {f"man/man1/{name.replace(' ', '-')}.1": man_page(name, c) for name, c in commands()}
    made["bash-completion/completions/envbuilder"] = bash()
    made["zsh/site-functions/_envbuilder"] = zsh()
    made["fish/vendor_completions.d/envbuilder.fish"] = fish()
    return made


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield envbuilder and every command of it by its full name."""
    yield "envbuilder", cli.cli
    for name in cli.COMMANDS:
        command = _command(name)
        yield f"envbuilder {name}", command
        if isinstance(command, click.Group):
            for inner, child in subcommands(command).items():
                yield f"envbuilder {name} {inner}", child


def subcommands(group: click.Group) -> dict[str, click.Command]:
    """Return the commands of a group, without those that only envbuilder itself starts."""
    return {name: child for name, child in group.commands.items() if not child.hidden}


def _command(name: str) -> click.Command:
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None
    return command


def _options(command: click.Command) -> list[click.Option]:
    shown = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return [*shown, HELP]


def _text(option: click.Option) -> str:
    return " ".join((option.help or "").split())


def _values(parameter: click.Parameter) -> str | list[str]:
    """Return the words that may follow, or which kind of thing does."""
    if isinstance(parameter.type, click.Choice):
        return [str(choice) for choice in parameter.type.choices]
    if parameter.name == "profile":
        return PROFILES
    named = parameter.metavar or ""
    if isinstance(parameter.type, click.Path | click.File) or re.search("FILE|DIR|PLACE", named):
        return FILES
    return NOTHING


def _argument(command: click.Command) -> str | list[str]:
    """Return the same for what follows the options of a command."""
    if isinstance(command, click.Group):
        return list(subcommands(command))
    if command.name == "run":
        return FILES
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    return _values(arguments[0]) if arguments else NOTHING


# ---- man pages


def man_page(name: str, command: click.Command) -> str:
    """Return the man page of a command, in the macros of man(7)."""
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        rf".\" {MADE}",
        f'.TH {name.upper().replace(" ", "-")} 1 "{DATE}" "envbuilder {__version__}"',
        ".SH NAME",
        rf"{_roff(name.replace(' ', '-'))} \- {_roff(_summary(name, command))}",
        ".SH SYNOPSIS",
        rf"\fB{_roff(name)}\fR {_roff(usage)}",
        ".SH DESCRIPTION",
        *_description(command.help or ""),
        ".SH OPTIONS",
    ]
    for option in _options(command):
        record = option.get_help_record(context)
        assert record is not None
        lines += [".TP", rf"\fB{_roff(record[0])}\fR", _roff(" ".join(record[1].split()))]
    if command is cli.cli:
        lines.append(".SH COMMANDS")
        for inner, text in cli.COMMANDS.items():
            lines += [".TP", rf"\fB{_roff(f'{name}-{inner}')}\fR(1)", _roff(text)]
    elif isinstance(command, click.Group):
        lines += [
            ".SH SEE ALSO",
            *(rf"\fB{_roff(f'{name}-{c}'.replace(' ', '-'))}\fR(1)" for c in subcommands(command)),
        ]
    return "\n".join(lines) + "\n"


def _summary(name: str, command: click.Command) -> str:
    known = cli.COMMANDS.get(name.removeprefix("envbuilder "))
    return (known or command.get_short_help_str(120)).rstrip(".")


def _description(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; those after Click's `\\b` keep their lines."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text))):
        if number:
            yield ".PP"
        first, _, rest = paragraph.partition("\n")
        if first.strip() == "\b":
            yield from (".nf", *(_roff(line) for line in rest.splitlines()), ".fi")
        else:
            yield _roff(" ".join(paragraph.split()))


def _roff(text: str) -> str:
    """Return text for troff: nothing in it is a request or an escape."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    escaped = "".join(c if c.isascii() else rf"\[u{ord(c):04X}]" for c in escaped)
    return rf"\&{escaped}" if escaped[:1] in {".", "'"} else escaped


# ---- completions


BASH = """\
# {made}
_envbuilder_profiles() {{
    words=$(COMP_WORDS="envbuilder build --profile " COMP_CWORD=3 \\
        _ENVBUILDER_COMPLETE=bash_complete envbuilder 2>/dev/null)
    words=${{words//plain,/}}
}}
_envbuilder() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
    local word name= words=
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [[ $word == -- ]] && compopt -o default && return
        [[ -z $name && $word != -* ]] && name=$word
    done
    # bash makes three words of --option=value.
    [[ $current == = ]] && current=
    [[ $before == = ]] && before=${{COMP_WORDS[COMP_CWORD - 2]}}
    case "$name $before" in
{values}
    *)
        case "$name" in
{names}
        esac
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o nosort -F _envbuilder envbuilder
"""


def bash() -> str:
    """Return the completion for bash 4.4 and newer."""
    values: dict[str, list[str]] = {}
    names = []
    for name in cli.COMMANDS:
        command = _command(name)
        for option in _options(command):
            if not option.is_flag:
                patterns = [f'"{name} {o}"' for o in option.opts]
                values.setdefault(_bash(_values(option)), []).extend(patterns)
        options = " ".join(o for option in _options(command) for o in option.opts)
        argument = _argument(command)
        also = f"{_bash(argument)}; " if argument == FILES else ""
        words = [*argument, options] if isinstance(argument, list) else [options]
        names.append(f'        {name}) {also}words="{" ".join(words)}" ;;')
    top = " ".join(o for option in _options(cli.cli) for o in option.opts)
    names.append(f'        "") words="{" ".join(cli.COMMANDS)} {top}" ;;')
    cases = [f"    {' | '.join(patterns)}) {action} ;;" for action, patterns in values.items()]
    return BASH.format(made=MADE, values="\n".join(cases), names="\n".join(names))


def _bash(values: str | list[str]) -> str:
    if isinstance(values, list):
        return f'words="{" ".join(values)}"'
    return {PROFILES: "_envbuilder_profiles", FILES: "compopt -o default"}.get(values, ":")


ZSH = """\
#compdef envbuilder
# {made}
_envbuilder_profiles() {{
    local -a names
    names=(${{${{(f)"$(COMP_WORDS="envbuilder build --profile " COMP_CWORD=3 \\
        _ENVBUILDER_COMPLETE=bash_complete envbuilder 2>/dev/null)"}}#plain,}})
    compadd -a names
}}
_envbuilder() {{
    local curcontext=$curcontext state line
    local -a commands
    commands=(
{commands}
    )
    _arguments -C \\
{top}
        '1:command:->command' \\
        '*::argument:->argument'
    case $state in
    command) _describe -V command commands ;;
    argument)
        case $line[1] in
{cases}
        esac
        ;;
    esac
}}
_envbuilder "$@"
"""


def zsh() -> str:
    """Return the completion function for zsh."""
    described = "\n".join(f"        {_quoted(f'{n}:{t}')}" for n, t in cli.COMMANDS.items())
    cases = []
    for name in cli.COMMANDS:
        command = _command(name)
        lines = [f"            {spec} \\" for option in _options(command) for spec in _zsh(option)]
        argument = _argument(command)
        rest = "'*: :'" if argument == NOTHING else _quoted(f"*:value:{_zsh_action(argument)}")
        cases += [f"        {name})", "            _arguments \\", *lines, f"            {rest} ;;"]
    top = "\n".join(f"        {spec} \\" for option in _options(cli.cli) for spec in _zsh(option))
    return ZSH.format(made=MADE, commands=described, top=top, cases="\n".join(cases))


def _zsh(option: click.Option) -> Iterator[str]:
    text = re.sub(r"([\[\]:])", r"\\\1", _text(option))
    for name in option.opts:
        value = "" if option.is_flag else f":{option.name}:{_zsh_action(_values(option))}"
        yield _quoted(f"{name}[{text}]{value}")


def _zsh_action(values: str | list[str]) -> str:
    if isinstance(values, list):
        return f"({' '.join(values)})"
    return {PROFILES: "_envbuilder_profiles", FILES: "_files"}.get(values, " ")


def fish() -> str:
    """Return the completion for fish."""
    lines = [
        f"# {MADE}",
        "function __envbuilder_profiles",
        '    COMP_WORDS="envbuilder build --profile " COMP_CWORD= \\',
        "        _ENVBUILDER_COMPLETE=fish_complete envbuilder 2>/dev/null \\",
        "        | string replace plain, ''",
        "end",
        "complete -c envbuilder -f",
    ]
    first = "__fish_use_subcommand"
    lines += [
        f"complete -c envbuilder -n {first} -a {name} -d {_fish_quoted(text)}"
        for name, text in cli.COMMANDS.items()
    ]
    lines += [f"complete -c envbuilder -n {first}{_fish(option)}" for option in _options(cli.cli)]
    for name in cli.COMMANDS:
        command = _command(name)
        seen = f"complete -c envbuilder -n '__fish_seen_subcommand_from {name}'"
        argument = _argument(command)
        if argument == FILES:
            lines.append(f"{seen} -F")
        elif isinstance(argument, list):
            lines.append(f"{seen} -a '{' '.join(argument)}'")
        lines += [f"{seen}{_fish(option)}" for option in _options(command)]
    return "\n".join(lines) + "\n"


def _fish(option: click.Option) -> str:
    names = "".join(f" -l {o[2:]}" if o.startswith("--") else f" -s {o[1:]}" for o in option.opts)
    values = NOTHING if option.is_flag else _values(option)
    if values == FILES:
        names += " -r -F"
    elif values == PROFILES:
        names += " -x -a '(__envbuilder_profiles)'"
    elif isinstance(values, list):
        names += f" -x -a '{' '.join(values)}'"
    elif not option.is_flag:
        names += " -x"
    return f"{names} -d {_fish_quoted(_text(option))}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def main() -> None:
    """Write the files."""
    for name, text in files().items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
