"""`envbuilder fleet collect`: read the results of a run on Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.fleet_output import output_options, report
from envbuilder.commands.options import load_settings
from envbuilder.core import console, stamps
from envbuilder.core.errors import BuildError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envbuilder.commands.fleet_output import Outputs
    from envbuilder.core.settings import Settings
    from envbuilder.fleet.kubernetes.collect import Collected, Work
    from envbuilder.fleet.kubernetes.collect_groups import CollectedGroup
    from envbuilder.fleet.kubernetes.stated import Stated, StatedGroup
    from envbuilder.fleet.model import Summary


@click.command("collect", short_help="Read the results of a run on Kubernetes.")
@click.argument(
    "folder", required=False, type=click.Path(path_type=Path, file_okay=False, exists=True)
)
@click.option("--run", metavar="ID", help="A run whose files are not here.")
@click.option("--namespace", metavar="NAME", help="Where its jobs are.  [default: as rendered]")
@click.option("--context", metavar="NAME", help="Context of kubectl's configuration.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder with the four MNIST files, if the pods had all of them and this machine has not.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for summary.json and the nodes' results.",
)
@output_options
def command(
    folder: Path | None,
    run: str | None,
    namespace: str | None,
    context: str | None,
    data: Path | None,
    output: Path | None,
    outputs: Outputs,
) -> int:
    """Read what became of each node of a run, and compare it with what was promised.

    Of nodes that train together (`fleet render --ddp`), read whether they were in step.

    FOLDER is what `envbuilder fleet render` wrote. With --run instead, a node whose job was deleted
    is not known. Only `kubectl get` and `kubectl logs` are called: nothing changes in the cluster,
    and what still runs can be collected again later.

    Exits with 5 if a node was not verified, or nodes did not train together.

    \b
    Examples:
      envbuilder fleet collect fleet
      envbuilder fleet collect fleet --context lab -o results && envbuilder fleet show results
      envbuilder fleet collect together --html together.html
      envbuilder fleet collect --run 20261123t091500z-4f1a2b --namespace ml --json
    """
    from envbuilder.fleet import model
    from envbuilder.fleet.kubernetes import collect, collect_groups, stated
    from envbuilder.fleet.kubernetes.cluster import Cluster

    if (folder is None) == (run is None):
        raise click.UsageError("name either the folder of a run, or its ID with --run")
    jobs: tuple[Stated | StatedGroup, ...] = ()
    if folder is not None:
        jobs = stated.read(folder)
        namespace = namespace or jobs[0].namespace
    cluster = Cluster(context, namespace)
    if run is not None:
        jobs = cluster.stated(_checked_id(run))
        if not jobs:
            raise InvalidError(
                f"the cluster has no job of the run {run}",
                "Check --namespace and --context, or name the folder that was rendered.",
            )
    nodes = [job for job in jobs if isinstance(job, stated.Stated)]
    subset = jobs[0].subset
    outputs.require_comparable(
        *(jobs[0].run, "kubernetes"),
        quick=subset,
        epochs=model.epochs(None, quick=subset),
        each=bool(nodes),
    )
    together = [job for job in jobs if isinstance(job, stated.StatedGroup)]
    work = _work(nodes, data, load_settings()) if nodes else None
    progress = console.progress()
    with progress.task("read logs", len(jobs), "jobs") as task:

        def done() -> None:
            task.advance(1)

        of_nodes = collect.collect(work, nodes, cluster, done) if work is not None else []
        of_groups = collect_groups.collect_groups(jobs[0].run, together, cluster, done)
    summary = _summary(jobs[0], of_nodes, of_groups)
    if output is not None:
        _write(output, summary, _sent(of_nodes, of_groups))
    return report(summary, outputs)


def _checked_id(run: str) -> str:
    import msgspec

    from envbuilder.core import decoding
    from envbuilder.fleet.model import RunId

    try:
        return decoding.convert(run, RunId)
    except msgspec.ValidationError as error:
        raise click.BadParameter(
            f"{run!r} is not the ID of a run, such as 20261123t091500z-4f1a2b", param_hint="--run"
        ) from error


def _work(jobs: Sequence[Stated], data: Path | None, settings: Settings) -> Work:
    """Return what the jobs were to do. Raises `InvalidError` if their data are not here."""
    from envbuilder.fleet.kubernetes.collect import Work
    from envbuilder.fleet.kubernetes.jobs import ALL, SUBSET
    from envbuilder.packages import mnist
    from envbuilder.payload.training.dataset import load
    from envbuilder.project import catalog

    subset = jobs[0].subset
    dataset = mnist.local(None if subset else data, quick=subset)
    dataset = dataset or mnist.obtain(settings, console.progress())
    if dataset.subset != subset:
        raise InvalidError(
            "the reports cannot be checked without the files of MNIST",
            "Name a folder that has them with --data.",
        )
    library = catalog.library(settings)
    return Work(
        run=jobs[0].run,
        subset=subset,
        data=load(dataset.folder, SUBSET if subset else ALL),
        profiles={name: library.profile(name) for name in {job.profile for job in jobs}},
    )


def _summary(
    job: Stated | StatedGroup, of_nodes: Sequence[Collected], of_groups: Sequence[CollectedGroup]
) -> Summary:
    from envbuilder.fleet import judge
    from envbuilder.fleet.model import Summary, epochs, natural, started

    entries = judge.against_equals([each.judged for each in of_nodes])
    return Summary(
        run=job.run,
        scheduler="kubernetes",
        started=started(job.run),
        finished=stamps.now(),
        quick=job.subset,
        epochs=epochs(None, quick=job.subset),
        entries=tuple(sorted(entries, key=lambda entry: natural(entry.node))),
        across=bool(of_groups),
        groups=tuple(each.group for each in of_groups),
    )


def _sent(
    of_nodes: Sequence[Collected], of_groups: Sequence[CollectedGroup]
) -> Iterator[tuple[str, str, bytes]]:
    """Yield node or group, job and content of each result that was sent."""
    named = [(each.judged.entry.node, each.judged.entry.job, each.content) for each in of_nodes]
    named += [(each.group.name, each.group.job, each.content) for each in of_groups]
    for name, job, content in named:
        if job is not None and content is not None:
            yield name, job, content


def _write(folder: Path, summary: Summary, sent: Iterable[tuple[str, str, bytes]]) -> None:
    from envbuilder.core import files
    from envbuilder.fleet import folder as folders

    try:
        (folder / "results").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(
            f"{folder}: cannot be written: {error.strerror or error}",
            "Name another folder with --output.",
        ) from error
    for name, job, content in sent:
        path = folders.result_path(folder, name, job)
        files.save(path, content, BuildError, "Name another folder with --output.")
    folders.save(folder, summary)
