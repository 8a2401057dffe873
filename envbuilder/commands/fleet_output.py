"""What the commands of fleets print and write of a run, and the options for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from envbuilder.commands.options import json_option, load_settings
from envbuilder.core import console
from envbuilder.core.errors import VERIFY_FAILED, BuildError, InvalidError
from envbuilder.fleet.model import Summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.core.settings import Settings
    from envbuilder.payload.training import dataset


class Outputs(Struct, frozen=True, kw_only=True):
    """What is asked for beside the table."""

    as_json: bool
    html: Path | None
    earlier: Summary | None
    """The run to compare with."""

    def require_comparable(
        self, run: str, scheduler: str, *, quick: bool, epochs: int, each: bool = True
    ) -> None:
        """Raise `InvalidError` if a run that is about to start will not compare with the earlier.

        Nobody wants to learn that after an hour. `each`: whether nodes are verified one by one.
        """
        from envbuilder.fleet import drift

        if self.earlier is not None:
            drift.require_comparable(
                self.earlier,
                run=run,
                scheduler=scheduler,
                quick=quick,
                epochs=epochs,
                each=each,
            )


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--html --against --json`; the function gets them as `outputs`."""

    def command(
        *arguments: Any,
        html: Path | None,
        against: Path | None,
        as_json: bool,
        **options: Any,
    ) -> Any:
        # Read first: nobody wants to learn after an hour that there is nothing to compare with.
        earlier = read_run(against) if against is not None else None
        outputs = Outputs(as_json=as_json, html=html, earlier=earlier)
        return function(*arguments, outputs=outputs, **options)

    command.__doc__ = function.__doc__
    decorated: Callable[..., Any] = command
    for option in (
        json_option,
        click.option(
            "--against",
            metavar="FOLDER",
            type=click.Path(path_type=Path, exists=True),
            help="Compare each node with an earlier run; exits with 5 if one is worse or slower.",
        ),
        click.option(
            "--html",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Also write it as a web page: one file that needs no network.",
        ),
    ):
        decorated = option(decorated)
    return decorated


def read_run(path: Path, data: Path | None = None) -> Summary:
    """Return a run's summary from its file, its folder, or the logs in a folder of rendered Jobs.

    Such logs are compared with the images that the pods had: those in the folder `data`, if these
    were all of MNIST, or else fetched.
    """
    from envbuilder.fleet import summaries

    if not path.is_dir() or (path / summaries.NAME).exists():
        return summaries.read(path)
    from envbuilder.fleet.kubernetes import results
    from envbuilder.project import catalog

    if not results.is_rendered(path):
        return summaries.read(path)
    jobs, settings = results.read_jobs(path), load_settings()
    images = _images(data, settings, subset=jobs[0].subset) if len(jobs[0].nodes) == 1 else None
    return results.judge_run(path, jobs, catalog.library(settings).profile, images)


def _images(folder: Path | None, settings: Settings, *, subset: bool) -> dataset.Dataset:
    """Return what the pods trained on; raise `InvalidError` if it is not here."""
    from envbuilder.fleet.kubernetes.jobs import ALL, SUBSET
    from envbuilder.packages import mnist
    from envbuilder.payload.training import dataset

    files = mnist.local(None if subset else folder, quick=subset)
    files = files or mnist.obtain(settings, console.progress())
    if files.subset != subset:
        raise InvalidError(
            "the reports cannot be checked without the files of MNIST",
            "Name a folder that has them with --data.",
        )
    return dataset.load(files.folder, SUBSET if subset else ALL)


def report(summary: Summary, outputs: Outputs) -> int:
    """Print a run's table or its JSON, and write what is asked for; return the exit code.

    Raises `InvalidError` at the end if the run does not compare with the earlier one.
    """
    from envbuilder.core import files
    from envbuilder.fleet import drift, table
    from envbuilder.fleet.page import page

    changes, incomparable = None, None
    try:
        changes = drift.compare(outputs.earlier, summary) if outputs.earlier else None
    except InvalidError as error:
        # What the run showed is worth having without the comparison.
        incomparable = error
    if outputs.as_json:
        console.data({"schema": 2, "summary": summary, "drift": changes})
    else:
        table.show(summary, console.rich_console())
        for line in drift.lines(changes) if changes else ():
            console.result(line)
    if outputs.html is not None:
        content = page.render(summary, changes).encode()
        hint = "Name another file with --html."
        files.save_output(outputs.html, content, BuildError, hint, "the page")
    if incomparable is not None:
        raise incomparable
    regressed = changes is not None and changes.regressed
    return 0 if summary.passed and not regressed else VERIFY_FAILED
