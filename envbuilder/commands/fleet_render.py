"""`envbuilder fleet render`: write Kubernetes manifests that verify nodes."""

from __future__ import annotations

from pathlib import Path

import click

from envbuilder.commands.options import load_settings
from envbuilder.core import console, files, resources, text
from envbuilder.core.errors import Hint, InvalidError


@click.command("render", short_help="Write Kubernetes manifests that verify nodes.")
@click.option(
    "--fleet",
    "settings_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    default=Path("fleet.yaml"),
    help="What this cluster needs.  [default: fleet.yaml]",
)
@click.option(
    "--nodes",
    "node_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="What `kubectl get nodes -o json` printed. Without it, kubernetes.nodes of the file.",
)
@click.option("--profile", metavar="NAME", help="Promised of every node, whatever the file says.")
@click.option(
    "--ddp",
    is_flag=True,
    help="Instead, one Job for all nodes of a profile, which train together (torchrun).",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write to.",
)
def command(
    settings_file: Path,
    node_file: Path | None,
    profile: str | None,
    ddp: bool,
    output: Path,
) -> None:
    """Write one Kubernetes Job for each node, which verifies it in an image.

    Nothing is sent to a cluster: review the files, and create them with `kubectl create -f FOLDER`.
    Each pod prints its report; README.md has the commands that save them in FOLDER, for
    `envbuilder fleet show FOLDER`. Only files that carry the mark of a generated file are
    overwritten.

    \b
    fleet.yaml:
      kubernetes:
        images: {cuda: "registry.example/ml/envbuilder-cuda@sha256:…"}
        nodes: {gpu-1: cuda, gpu-2: cuda}
        namespace: ml

    \b
    Examples:
      envbuilder fleet render -o fleet && kubectl create -f fleet
      envbuilder fleet render --fleet lab.yaml --profile cuda -o fleet
      envbuilder fleet render --ddp -o fleet
      kubectl get nodes -o json > nodes.json
      envbuilder fleet render --nodes nodes.json -o fleet
    """
    from envbuilder.commands.render import write
    from envbuilder.fleet.kubernetes import render
    from envbuilder.fleet.model import new_run
    from envbuilder.fleet.settings import read
    from envbuilder.project import catalog

    settings = read(settings_file)
    if settings.kubernetes is None:
        raise InvalidError(
            f"{settings_file}: no key 'kubernetes'",
            Hint("Add it, with the images of your profiles. See", ("fleet", "render", "--help")),
        )
    nodes = None
    if node_file:
        nodes = render.nodes(files.read_named(node_file, render.LARGEST), str(node_file))
    selection = render.selected(settings, nodes, profile)
    run = new_run(text.stamp_now())
    profile_of = catalog.library(load_settings()).profile
    subset = {path.name: path.read_bytes() for path in resources.mnist_subset_dir().glob("*.gz")}
    rendered = tuple(render.files(run, selection, settings.kubernetes, profile_of, subset, ddp=ddp))
    _require_alone(output, {file.name for file in rendered})
    progress = console.progress()
    for entry in selection.left_out:
        progress.note(f"{entry.node}: left out: {entry.outcome}: {entry.detail}")
    progress.note(f"run {run}")
    for path in write(rendered, output):
        console.result(str(path))


def _require_alone(folder: Path, names: set[str]) -> None:
    """Raise `InvalidError` if `kubectl create` would send other files together with these."""
    paths = (path for suffix in (".json", ".yaml", ".yml") for path in folder.glob(f"*{suffix}"))
    others = sorted(path.name for path in paths if path.name not in names)
    if others:
        raise InvalidError(
            f"{folder / others[0]}: is not of this run, and `kubectl create` would send it, too",
            "Remove the files of an earlier run, or name another folder with --output.",
        )
