"""Write the generated files of `docs/reference`: commands, keys of files, report.

The table of what runs where is there, too, and in short in README.md (`tools/matrix.py`). The
schemas of files go into `share/` (`tools/project_schema.py`, `tools/schemas.py`).

    make docs

Commands come from Click, the keys of files from the structures that read them, with the docstrings
of their fields. A test compares the files with what this makes.
"""

from __future__ import annotations

import copy

import click

from envbuilder import cli
from envbuilder.profiles import lock, needs, profile
from envbuilder.verify.report import measurements, model
from tools import matrix, project_schema, proven_page, releases_page, schemas
from tools.struct_tables import lists, sections

FOLDER = matrix.REPOSITORY / "docs" / "reference"
README = matrix.REPOSITORY / "README.md"
MADE = "<!-- Made by tools/refresh_docs.py (make docs) from docstrings: change those. -->\n"
MATRIX = "<!-- Made by tools/refresh_docs.py (make docs) from profiles, locks and runs.yaml. -->\n"
PROVEN = "<!-- Made by tools/refresh_docs.py (make docs) from docs/evidence/reports. -->\n"
RELEASES = "<!-- Made by tools/refresh_docs.py (make docs) from profiles/releases. -->\n"
PROFILE = """\
# Profiles

A profile says what a kind of hardware needs. Shipped ones are in `profiles/`; your own are in
`profiles/NAME.yaml` next to your `envbuilder.yaml` or in your configuration folder. `extends:`
inherits from another profile: mappings are merged key by key, other values are replaced, and
`add_requirements:` adds to the inherited `requirements:`. Base images for Python versions that the
profile does not support are not inherited. An unknown key is an error with a suggestion.

```yaml
# profiles/mine.yaml
extends: cpu
description: What train.py needs
add_requirements: [einops, numpy]
```
"""
LOCK = """\
# Locks

`envbuilder lock` writes `NAME.json` into `profiles/locks/`. It lists every file of every target,
one per line, by sha256 and symbolic source. A lock is fresh as long as nothing in the profile
changes that decides what is installed (`check`).
"""
REPORT = """\
# Reports

`envbuilder verify --json` and `--output FILE` have the same format.
The payload's results ([Measured](#measured)) and envbuilder's own facts about the environment
([Report](#report)) are on the same level. envbuilder checks the keys below and keeps any others.

The JSON schema is installed as `share/envbuilder/report.schema.json`, beside those of locks and
bundles. Beyond what the schema can express, every number is finite, and a report with
`status: passed` is consistent with itself and with its request.
"""


def pages() -> dict[str, str]:
    """Return the generated files by name."""
    about_reports = (model, measurements)
    return {
        "commands.md": MADE + commands(),
        "envbuilder-yaml.md": MADE + project_schema.page(),
        "profile.md": MADE
        + PROFILE
        + "".join(
            s for m in (profile, needs) for s in sections(m, ["Expected", "Finding", "Needs"])
        )
        + _kinds(),
        "lock.md": MADE + LOCK + "".join(sections(lock)),
        "report.md": MADE + REPORT + "".join(s for m in about_reports for s in lists(m)),
        "matrix.md": MATRIX + matrix.page(matrix.shipped()),
        "proven-hardware.md": PROVEN + proven_page.page(),
        "releases.md": RELEASES + releases_page.page(),
    }


def commands() -> str:
    """Return every command's help, as `--help` prints it."""
    parts = ["# Commands\n", _help(cli.cli, "envbuilder")]
    for name in cli.COMMANDS:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert command is not None
        parts.append(_help(command, f"envbuilder {name}"))
        for inner, below in sorted(getattr(command, "commands", {}).items()):
            if below.hidden:
                continue
            parts.append(_help(below, f"envbuilder {name} {inner}"))
    return "\n".join(parts)


def _help(command: click.Command, name: str) -> str:
    command = copy.copy(command)
    # Click keeps the help option of the first context, whichever names that one had.
    command._help_option = None
    # Commands get these settings from the group when they are run.
    settings = {**cli.cli.context_settings, "terminal_width": 78}
    context = click.Context(command, info_name=name, **settings)
    return f"## `{name}`\n\n```text\n{command.get_help(context)}\n```\n"


def _kinds() -> str:
    return (
        "\n## Names of indexes\n\n`indexes:` can name [the sources that envbuilder knows]"
        "(../guides/mirrors.md), and those to which\n`indexes:` of your configuration or"
        " `ENVBUILDER_INDEX_NAME` gives a URL.\n"
    )


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
    project_schema.FILE.write_text(project_schema.schema())
    schemas.write()
    README.write_text(matrix.readme(README.read_text()))


if __name__ == "__main__":
    main()
