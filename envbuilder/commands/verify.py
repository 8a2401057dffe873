"""`envbuilder verify`: train MNIST inside an environment, and report which device did the work."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click

from envbuilder import __version__
from envbuilder.builds import import_check, isolation, mnist
from envbuilder.commands.options import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    base_image_option,
    environment_options,
    html_option,
    json_option,
    load_settings,
    measuring_options,
    python_option,
    request_option,
    require_image,
)
from envbuilder.core import console, process, text
from envbuilder.core.errors import (
    VERIFY_FAILED,
    BuildError,
    EnvbuilderError,
    InvalidError,
    VerifyError,
    redacted_values,
)
from envbuilder.verify import parallel, show, start
from envbuilder.verify.report import model, regression, speed
from envbuilder.verify.run import Job, examine, unfinished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.builds.request import Request
    from envbuilder.core.settings import Settings


@click.command("verify")
@environment_options
@python_option
@base_image_option
@click.option(
    "--epochs",
    type=click.IntRange(1, 100),
    help="Number of training passes.  [default: 1, or 3 with the small subset]",
)
@measuring_options
@click.option(
    "--data",
    type=EXISTING_FOLDER,
    help="Folder with the four MNIST files. Without it, they are downloaded once.",
)
@click.option(
    "--output",
    type=FILE,
    help="Write the report to this file, as JSON.",
)
@request_option(
    "--force",
    is_flag=True,
    help="Skip the check of this host, and omit device flags that the engine cannot satisfy.",
)
@click.option(
    "--sif",
    "image",
    metavar="FILE",
    type=EXISTING_FILE,
    help="Run the profile's image in this SIF file with Apptainer.",
)
@html_option
@click.option(
    "--against",
    metavar="REPORT",
    type=FILE,
    help="Fail if the epoch is slower or the accuracy is lower than in this earlier report.",
)
@click.option(
    "--devices",
    metavar="all|0,1,…",
    help=(
        "Also train on these devices, first each alone, then all together; on the CPU, the number"
        " of processes."
    ),
)
@json_option
def command(
    request: Request,
    epochs: int | None,
    quick: bool,
    data: Path | None,
    output: Path | None,
    image: Path | None,
    html: Path | None,
    against: Path | None,
    devices: str | None,
    executable: Path | None,
    inherit: bool,
    as_json: bool,
) -> int:
    """Train MNIST inside an environment (built first if it is missing).

    The verdict is about the profile's device: training that ran on another device fails, whatever
    its accuracy. In a project, its required packages and its code's imports are imported, too: a
    required package that cannot be imported fails the verification, any other failed import is a
    warning. Exits with 5 if verification failed, or with --against if it was slower or more
    than 0.5 points less accurate than before; 2 if the two cannot be compared; 1 if it passed
    and a report could not be written.

    A busy machine changes no verdict: the report says that the speed was not judged, --against
    compares only the accuracy, also if the earlier report is such a one.

    \b
    Examples:
      envbuilder verify --backend venv
      envbuilder verify --profile xpu --output report.json --html report.html
      envbuilder verify --python ~/mine/bin/python --profile cuda
      envbuilder verify --python "$(which python)" --inherit-environment
      envbuilder verify --profile cpu --sif /shared/cpu.sif
      envbuilder verify --against before-the-update.json
      envbuilder verify --devices all
    """
    settings = load_settings()
    progress = console.progress()
    places = (
        console.Place("--output", output, model.is_report),
        console.Place("--html", html, console.is_page),
    )
    console.require_places(*places)
    dataset = mnist.local(data, quick=quick)
    small = quick or (dataset is not None and dataset.subset)
    earlier = regression.yardstick(against, quick=small) if against is not None else None

    subject = start.prepare(request, executable, settings, progress, inherit=inherit, image=image)
    profile = subject.facts["profile"]
    backend = subject.facts["backend"]
    # Before any build, download or training.
    require_image(backend)
    if devices is not None:
        start.require_torch("--devices", profile, subject.expects)
    parallel.require(devices, subject.expects.device)

    if outlook := subject.outlook(settings, quick=small):
        progress.note(outlook)

    def fetched() -> mnist.Dataset:
        return dataset or mnist.obtain(settings, console.PlainProgress(progress.note))

    with process.beside(fetched) as fetching:
        subject, build = subject.built()
        data_used = fetching.result()
    name, facts = identified(subject)
    errors: list[EnvbuilderError] = []
    job = Job(expects=subject.expects, dataset=data_used, epochs=epochs, quick=quick)
    selection = parallel.selection(devices, subject.expects.device)
    try:
        measured = trained(subject, job, selection, settings, progress, name, as_found=inherit)
        if build and (outcome := import_check.tried(build, has_trained=True)):
            measured = _with_imports(measured, outcome)
    except VerifyError as error:
        errors.append(error)
        measured = unfinished(job, error)
    if devices is not None:
        measured = parallel.extend(
            measured,
            devices,
            subject.run,
            data_used.folder,
            progress,
            settings.logs_dir / f"{name}-devices.log",
            quick=quick or data_used.subset,
        )
    report = speed.with_speed(model.assemble(measured, facts))
    if earlier is not None:
        report = _judged(report, earlier, errors)
    checked = model.check(report)
    errors = [
        *errors,
        *isolation.unreached(report, None if inherit else executable, os.environ),
        *_deliver(report, checked, places, as_json=as_json),
    ]
    return _exit_code(passed=checked.status == "passed", errors=errors)


def identified(subject: start.Subject) -> tuple[str, dict[str, Any]]:
    """Return a unique name for a verification's files, and the metadata for its report."""
    stamp = text.stamp_now()
    facts = redacted_values({**subject.facts, "envbuilder": __version__, "time": stamp})
    # Two verifications may begin in the same second.
    return f"{stamp}-{facts['profile']}-{facts['backend']}-{token_hex(3)}", facts


def trained(
    subject: start.Subject,
    job: Job,
    selection: Sequence[str],
    settings: Settings,
    progress: console.Progress,
    name: str,
    *,
    as_found: bool = False,
) -> dict[str, Any]:
    """Run the training inside an environment, and return the report that the training produces.

    Raise `VerifyError` if the report cannot be trusted.
    """
    log = settings.logs_dir / f"{name}-payload.log"
    measured = examine(job, selection, subject.run, settings, progress, log)
    isolation.require(measured, redacted_values(subject.facts["artifact"]), as_found=as_found)
    return measured


def _with_imports(report: dict[str, Any], outcome: import_check.Outcome) -> dict[str, Any]:
    """Return the report with the results of importing the project's packages added.

    In the returned report, the status is "failed" if a required package could not be imported.
    """
    if outcome.status == "failed":
        reasons = [*report["reasons"], f"imports: {outcome.detail}"]
        report = {**report, "status": "failed", "reasons": reasons}
    return model.with_check(report, "imports", outcome.status, outcome.detail)


def _judged(
    report: dict[str, Any],
    earlier: regression.StoredReport,
    errors: list[EnvbuilderError],
) -> dict[str, Any]:
    """Return the report with a comparison to the earlier report added.

    If the two reports cannot be compared, append the error to `errors` and return the report
    unchanged.
    """
    try:
        return regression.judge(report, earlier)
    except InvalidError as error:
        errors.append(error)
        return report


def _deliver(
    report: dict[str, Any],
    checked: model.Report,
    places: tuple[console.Place, console.Place],
    *,
    as_json: bool,
) -> list[EnvbuilderError]:
    """Print the report, and write it as a file and as an HTML page where requested.

    Return the errors that occurred.
    """

    def print_report() -> None:
        if as_json:
            console.data(report)
        else:
            show.print_verdict(checked, console.rich_console())

    file, page = places
    return console.deliver(
        (
            ("report", lambda: file.write(lambda: model.encoded(report))),
            ("page", lambda: page.write(lambda: show.render(report))),
        ),
        print_report,
    )


def _exit_code(*, passed: bool, errors: list[EnvbuilderError]) -> int:
    """Return the exit code: 0 if the verification passed, or 5 if it failed.

    If there are errors, raise a single error instead that combines all of them. The exit code of
    that error is 5 if the verification failed, otherwise 2 if a comparison could not be made,
    otherwise 1. A report that cannot be written is thus a failure, but never hides a failed
    verification or comparison.
    """
    if not errors:
        return 0 if passed else VERIFY_FAILED
    hints = chain.from_iterable(error.hints for error in errors)
    kind: type[EnvbuilderError] = BuildError
    if not passed:
        kind = VerifyError
    elif any(isinstance(e, InvalidError) for e in errors):
        kind = InvalidError
    raise kind("\n".join(e.message for e in errors), hints)
