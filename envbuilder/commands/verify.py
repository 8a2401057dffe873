"""`envbuilder verify`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import msgspec

from envbuilder import __version__, console, settings, workflow
from envbuilder.errors import VERIFY_FAILED, InvalidError
from envbuilder.options import Request, environment_options, json_option


@click.command(
    "verify", short_help="Train MNIST inside an environment and report what did the work."
)
@environment_options
@click.option(
    "--epochs",
    type=click.IntRange(1, 100),
    help="Training passes. Without it 1, and 3 over the small subset.",
)
@click.option("--quick", is_flag=True, help="A small subset and no comparisons: seconds.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder with the four MNIST files; without it they are fetched once.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the JSON report here, too.",
)
@click.option(
    "--python",
    "executable",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Check this interpreter as it is, instead of an environment of ours.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Skip the host check, and leave out device flags that the engine cannot satisfy.",
)
@json_option
def command(
    profile: str | None,
    backend: str | None,
    python: str | None,
    base_image: str | None,
    epochs: int | None,
    quick: bool,
    data: Path | None,
    output: Path | None,
    executable: Path | None,
    force: bool,
    as_json: bool,
) -> int:
    """Train MNIST inside an environment (built first if it is missing).

    The verdict is about the device that the profile is for: work that ran on another one fails,
    whatever its accuracy. Exits 5 when verification failed.

    \b
    Examples:
      envbuilder verify --backend venv
      envbuilder verify --profile xpu --output report.json
      envbuilder verify --python ~/mine/bin/python --profile cuda
    """
    from envbuilder import mnist, report, verify

    found = settings.load()
    progress = console.progress()
    request = Request(
        profile=profile, backend=backend, python=python, base_image=base_image, force=force
    )
    if executable is not None and (backend or base_image or python):
        raise InvalidError("--python checks an interpreter as it is; leave out the build options")
    dataset = mnist.from_folder(data) if data else None
    if executable is not None:
        from envbuilder import external

        chosen, known, start = external.prepare(executable, request, found, progress)
    else:
        chosen, known, start = _built(request, found, progress)
    if dataset is None:
        dataset = mnist.subset() if quick else mnist.obtain(found, progress)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"{stamp}-{known['profile'] or 'external'}-{known['backend']}"

    def arguments(seen: str) -> tuple[str, ...]:
        return verify.payload_arguments(chosen, dataset, seen, epochs=epochs, quick=quick)

    outcome = verify.run_payload(
        lambda on_line: start(arguments, dataset.folder, on_line),
        progress,
        found.logs_dir / f"{name}-payload.log",
    )
    known = {**known, "envbuilder": __version__, "time": stamp}
    whole = report.assemble(outcome.data, known)
    paths = [found.reports_dir / f"{name}.json", *([output] if output else [])]
    if as_json:
        click.echo(msgspec.json.encode(whole).decode())
    else:
        from envbuilder.summary import print_verdict

        print_verdict(whole, outcome.measured, console.rich_console())
    for path in paths:
        report.write(whole, path)
    progress.note(f"report: {paths[-1]}")
    return 0 if outcome.measured.status == "passed" else VERIFY_FAILED


def _built(request: Request, found: settings.Settings, progress: console.Progress) -> Any:
    """An environment of ours, built if missing: expectations, report facts, how to start."""
    profile, host, environment = workflow.prepare(request, found, progress, running=True)
    result = workflow.build(environment, request, found, progress)
    known = {
        "profile": profile.name,
        "backend": result.backend,
        "artifact": msgspec.to_builtins(result.artifact),
        "fingerprint": result.fingerprint,
        "host": msgspec.to_builtins(host),
    }
    return profile.expects, known, environment.run_payload
