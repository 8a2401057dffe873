"""`envbuilder detect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuilder import console, profiles, selection, settings
from envbuilder.options import json_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.host import Host


@click.command("detect", short_help="Show this machine and the profile that fits it.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/"),
    help="Read a recorded tree (proc/ sys/ dev/) instead of this machine.",
)
@json_option
def command(root: Path, as_json: bool) -> None:
    """Show what this machine has, the profile it would choose, and why not the others.

    Reads files of the system only: no torch, no vendor tools, nothing is started.

    \b
    Examples:
      envbuilder detect
      envbuilder detect --json > machine.json
    """
    from envbuilder import host

    found = settings.load()
    folders = profiles.search_path(found.project, found.config_dir)
    here = host.probe(root)
    choice = selection.choose([profiles.load(n, folders) for n in profiles.names(folders)], here)
    if as_json:
        data = {
            "schema": 1,
            "host": msgspec.to_builtins(here),
            "profile": choice.profile,
            "reason": choice.reason,
            "fits": msgspec.to_builtins(choice.fits),
        }
        click.echo(msgspec.json.encode(data).decode())
        return
    from rich.table import Table
    from rich.text import Text

    out = console.rich_console()
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    for label, value in _facts(here):
        facts.add_row(label, Text(value))
    out.print(facts)
    out.print()
    fits = Table.grid(padding=(0, 2))
    for fit in choice.fits:
        mark, style = {
            "fits": ("✓", "green"),
            "warnings": ("!", "yellow"),
            "no": ("✗", "dim"),
        }[fit.verdict]
        fits.add_row(Text(mark, style=style), fit.profile, Text("; ".join(fit.reasons)))
    out.print(fits)
    out.print()
    chosen = f"profile {choice.profile}" if choice.profile else "no profile"
    out.print(Text(f"→ {chosen}: {choice.reason}", style="bold"))


def _facts(here: Host) -> Iterator[tuple[str, str]]:
    unknown = "unknown"
    where = ["WSL"] if here.wsl else []
    where += ["container"] if here.container else []
    extra = f" ({', '.join(where)})" if where else ""
    yield "system", f"{here.os} {here.os_version or ''} {here.machine}{extra}".replace("  ", " ")
    cpu = here.cpu
    name = cpu.model_name or cpu.vendor or unknown
    yield "processor", name + (f" ({cpu.generation})" if cpu.generation else "")
    quota = f", quota {cpu.quota:g}" if cpu.quota else ""
    counts = f"{cpu.physical or unknown} physical, {cpu.logical or unknown} logical"
    limits = f"{cpu.affinity or unknown} usable{quota} → {cpu.threads or unknown} threads"
    yield "cores", f"{counts}, {limits}"
    if cpu.flags:
        yield "instructions", " ".join(cpu.flags)
    memory: Any = here.memory_bytes
    yield "memory", f"{memory / 2**30:.1f} GiB" if memory else unknown
    for gpu in here.gpus:
        driver = f", driver {gpu.driver_version}" if gpu.driver_version else ""
        detail = f" – {gpu.detail}" if gpu.detail else ""
        yield f"{gpu.vendor} GPU", f"{gpu.name}{driver}: {gpu.state}{detail}"
    if not here.gpus:
        yield "GPU", "none found"
    for note in here.notes:
        yield "note", note
