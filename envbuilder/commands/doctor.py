"""`envbuilder doctor`: report this machine's problems, and how to fix each of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from envbuilder.builds import isolation
from envbuilder.builds.backends import integrity
from envbuilder.commands.options import (
    interpreter_option,
    json_option,
    load_settings,
    profile_option,
    require_one_host,
    root_option,
    target_host_option,
)
from envbuilder.core import console
from envbuilder.core.errors import (
    NOTHING_FITS,
    VERIFY_FAILED,
    HostError,
    InvalidError,
    VerifyError,
    public,
    wrapped,
)
from envbuilder.host import probe
from envbuilder.profiles import choice, fit, frameworks
from envbuilder.project import variants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.core import types
    from envbuilder.core.settings import Settings
    from envbuilder.doctor.problem import Problem
    from envbuilder.doctor.verdict import Judgement
    from envbuilder.host.model import Host
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.profile import Profile

_HEADINGS = {"blocks": "blocking", "limits": "degraded", "slows": "performance"}
_STYLES = {"blocks": "bold red", "limits": "yellow", "slows": "cyan"}


@click.command("doctor")
@profile_option
@interpreter_option
@click.option(
    "--prove",
    is_flag=True,
    help="Also run the quick verification in that environment.",
)
@root_option
@target_host_option
@json_option
def command(
    profile: str | None,
    executable: Path | None,
    prove: bool,
    root: Path,
    target_host: Path | None,
    as_json: bool,
) -> int:
    """Judge the Python environment in use, and report the problems of this machine.

    Prints whether its PyTorch, JAX or TensorFlow is right for the hardware, and the commands to fix
    it if not. The environment is that of --python, else of VIRTUAL_ENV or CONDA_PREFIX, else .venv,
    else the first on PATH. Nothing in it is run without --prove. For a recorded tree or another
    host, only the environment of --python is judged.

    Problems come worst first, each with its fix, and include what costs performance. Nothing is
    changed: a fix lists commands to copy. With --profile, reports what keeps that profile from
    working. For a recorded tree or another host, reports only what the recording shows, not disks
    and programs. Exits with 3 if a problem is blocking, or the environment is broken or cannot use
    the GPU; with 5 if --prove fails.

    \b
    Examples:
      envbuilder doctor
      envbuilder doctor --python ~/mine/bin/python --prove
      envbuilder doctor --profile xpu
      envbuilder doctor --target-host machine.json
    """
    require_one_host(root, target_host)
    settings = load_settings()
    recorded = root != Path("/") or target_host is not None
    host = probe.target(target_host) if target_host else probe.host(root)
    problems = _problems(profile, host, settings, recorded=recorded)
    judgement = _judged(executable, host, settings, {} if recorded else os.environ)
    if judgement and judgement.framework and not profile:
        # The builds of envbuilder's own profiles are not those of that environment.
        problems = tuple(p for p in problems if p.code not in fit.OF_RELEASE)
    proof = None
    if prove:
        if recorded or judgement is None or judgement.framework is None:
            raise InvalidError(
                "--prove needs an environment with a framework on this machine",
                "Name its interpreter with --python, or activate it.",
            )
        proof = _prove(judgement, judgement.framework, settings)
    if as_json:
        shown = {"problems": problems, "environment": judgement, "proof": proof}
        console.data({"schema": 2, **shown})
    else:
        _print(problems, judgement, proof)
        if judgement is None and not recorded and not profile:
            console.result("note: no environment with PyTorch, JAX or TensorFlow is in use")
            console.result("    To judge one, name its interpreter with --python.")
    if proof and proof["status"] != "passed":
        return VERIFY_FAILED
    wrong = judgement and judgement.verdict in {"broken", "unusable"}
    if wrong or any(p.severity == "blocks" for p in problems):
        return NOTHING_FITS
    return 0


def _problems(
    name: str | None, host: Host, settings: Settings, *, recorded: bool
) -> tuple[Problem, ...]:
    from envbuilder.doctor import diagnosis, surroundings
    from envbuilder.doctor.surroundings import Around, Case

    library = variants.library(settings)
    requested = library.named(name) if name else None
    candidates = library.candidates(requested.framework if requested else None)
    locks = library.locks(candidates)
    around = Around()
    if not recorded:
        chosen = requested or _chosen(library, settings, host)
        lock = locks.get(chosen.name) if chosen else None
        around = surroundings.look(chosen, lock, host, settings)
        altered = map(integrity.altered, sorted(settings.envs_dir.glob("[!.]*")))
        around = replace(
            around,
            shadowing=tuple(isolation.shadowing(os.environ)),
            altered=tuple(filter(None, altered)),
        )
    return diagnosis.diagnose(
        Case(
            host=host,
            around=around,
            candidates=candidates,
            locks=locks,
            requested=requested,
            advice=library.advice,
        )
    )


def _judged(
    executable: Path | None, host: Host, settings: Settings, environ: Mapping[str, str]
) -> Judgement | None:
    """Judge the given environment or, if none is given, the environment in use.

    Return None if there is no such environment, or if the environment is neither given nor active
    and contains no framework.
    """
    from envbuilder.doctor import installed, verdict
    from envbuilder.packages.python import indexes, libraries

    env = installed.find(executable, environ, sys.prefix)
    # A Python that merely is there need not be for a framework.
    if env is None or not (env.frameworks or env.place.because in {"--python", *installed.ACTIVE}):
        return None
    system = libraries.of_loader() if environ else b""
    around = verdict.Around(lambda name: public(indexes.url(name, settings)), system, environ)
    return verdict.judge(env, host, around)


def _prove(judgement: Judgement, framework: types.Framework, settings: Settings) -> dict[str, Any]:
    """Run the quick verification in the judged environment and return its report."""
    from envbuilder.builds import mnist
    from envbuilder.builds.request import Request
    from envbuilder.commands import verify
    from envbuilder.verify import start
    from envbuilder.verify.report import model
    from envbuilder.verify.run import Job, unfinished

    profile = frameworks.first_profile(framework, judgement.accelerator)
    progress = console.progress()
    request = Request(profile=profile, force=True)
    subject = start.prepare(request, Path(judgement.place.python), settings, progress)
    name, facts = verify.identified(subject)
    job = Job(expects=subject.expects, dataset=mnist.subset(), epochs=None, quick=True)
    try:
        measured = verify.trained(subject, job, (), settings, progress, name)
    except VerifyError as error:
        measured = unfinished(job, error)
    return model.assemble(measured, facts)


def _chosen(library: Library, settings: Settings, host: Host) -> Profile | None:
    try:
        return choice.choose(library, settings, host).profile
    except HostError:
        return None  # the diagnosis gives the reason


def _print(
    problems: Sequence[Problem], judgement: Judgement | None, proof: dict[str, Any] | None
) -> None:
    from rich.text import Text

    out = console.rich_console()

    def show(heading: str, style: str, text: str, fix: str = "") -> None:
        line = Text(wrapped(f"{heading}: {text}", console.WIDTH))
        line.stylize(style, 0, len(heading) + 2)
        out.print(line, soft_wrap=True)
        if fix:
            out.print(Text(wrapped(fix, console.WIDTH, "    ", "    ")), soft_wrap=True)

    if judgement:
        from envbuilder.doctor.verdict import VERDICTS

        show("environment", "bold", f"{judgement.place.prefix} ({judgement.place.because})")
        show(*VERDICTS[judgement.verdict], judgement.proof, judgement.fix)
        if judgement.paste:
            out.print(Text(judgement.paste), soft_wrap=True)
        for note in judgement.notes:
            show("note", "cyan", note)
    if proof:
        from envbuilder.verify import show as reports
        from envbuilder.verify.report import model

        passed = proof["status"] == "passed"
        line = reports.headline(model.check(proof)) if passed else "; ".join(proof["reasons"])
        show("proved" if passed else "NOT PROVED", "bold", line)
    for problem in problems:
        show(_HEADINGS[problem.severity], _STYLES[problem.severity], problem.text, problem.fix)
    if not problems and (judgement is None or judgement.verdict in {"right", "none"}):
        out.print(Text("no problems found", style="green"))
