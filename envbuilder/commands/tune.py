"""`envbuilder tune`: measure settings, and report which of them speed up training here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from envbuilder import __version__
from envbuilder.commands.options import (
    environment_options,
    json_option,
    load_settings,
    measuring_options,
)
from envbuilder.core import console, text

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.builds.request import Request


@click.command("tune")
@environment_options
@measuring_options
@json_option
def command(
    request: Request,
    quick: bool,
    executable: Path | None,
    inherit: bool,
    as_json: bool,
) -> int:
    """Time settings (threads, allocators, compilers and more) against the defaults.

    Trains in short trials inside an environment (built first if missing), which takes a quarter of
    an hour, or less with --quick. Changes nothing: prints the settings that help here, with
    instructions.

    \b
    Examples:
      envbuilder tune --profile cpu --backend venv
      envbuilder tune --quick --profile cpu --python ~/mine/bin/python
      envbuilder tune --json > tuning.json
    """
    from envbuilder.builds import mnist
    from envbuilder.verify import start, tune

    settings = load_settings()
    progress = console.progress()
    dataset = mnist.local(None, quick=quick)
    subject = start.prepare(request, executable, settings, progress, inherit=inherit)
    start.require_torch("`tune`", subject.facts["profile"], subject.expects)
    subject, _ = subject.built()
    dataset = dataset or mnist.obtain(settings, progress)
    facts = {**subject.facts, "envbuilder": __version__, "time": text.stamp_now()}
    asking = tune.asking(subject.run, dataset.folder, subject.expects)
    outcome = tune.run(asking, subject.expects, progress, quick=quick)
    tune.finish(outcome, facts, settings, as_json=as_json)
    return 0
