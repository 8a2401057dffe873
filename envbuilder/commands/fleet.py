"""`envbuilder fleet`: verification on every node of a cluster."""

from __future__ import annotations

import click

from envbuilder.commands import (
    fleet_join,
    fleet_node,
    fleet_render,
    fleet_show,
    fleet_verify,
)


@click.group("fleet", short_help="Verify every node of a cluster.")
def command() -> None:
    """Verify every node of a cluster: what was promised, what is there, and how fast it is.

    \b
    Examples:
      envbuilder fleet verify --dry-run
      envbuilder fleet verify --quick --html fleet.html
      envbuilder fleet render -o manifests && kubectl create -f manifests
      envbuilder fleet show fleet-20261123t091500z-4f1a2b
    """


for _module in (fleet_verify, fleet_render, fleet_show, fleet_node, fleet_join):
    command.add_command(_module.command)
