"""`envbuilder run`, `watch` and `shell`: run a command or a shell inside an environment."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from envbuilder.builds import isolation, pipeline, project_folder
from envbuilder.builds.access import (
    Access,
    combined,
    hooked,
    of_project,
    project_command,
)
from envbuilder.builds.backends import foreign_programs
from envbuilder.commands.options import (
    html_option,
    load_settings,
    require_image,
    running_options,
)
from envbuilder.core import console, process
from envbuilder.core.errors import Hint, InvalidError, UnlockedError
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.project.scripts import of_script

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from envbuilder.builds.request import Planned, Request
    from envbuilder.commands.watch import Watching
    from envbuilder.containers.engine.container import Port
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.locks.blockers import Diagnosis
    from envbuilder.locks.entries import Entry
    from envbuilder.profiles.lock import Lock
    from envbuilder.project.variants import ReleaseOptions


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
)
@running_options
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD [ARG]…]")
def command(
    request: Request,
    given: Access,
    argv: tuple[str, ...],
) -> int:
    """Run a command inside the environment, with the flags that its device needs.

    Without a command, runs the one in envbuilder.yaml (command:). Outside of a project, a script
    that lists its requirements (PEP 723) gets its own environment. The environment is first locked,
    if its lock for this hardware is missing or stale, and built, if it is missing. The command's
    exit code is passed through; 127 means that the command is missing, 126 that it cannot be
    executed, as in a shell, and 125 that envbuilder itself failed, or refused to run an installer
    (pip, conda), another Python, or a tool such as jupyter that is on PATH but not in the
    environment. Add packages with `envbuilder add`; to run such a program anyway, give its path.

    In an image the command runs as you (for root: as the folder's owner), without any capability.
    It can write the project, volumes and /tmp, and gets the network and its device.

    \b
    Examples:
      envbuilder run --profile cpu -- python train.py
      envbuilder run
      envbuilder run train.py --epochs 1
      envbuilder run -p 8000 -v ./data:/data:ro -e HF_TOKEN -- python serve.py
      envbuilder run -- python -c "import torch; print(torch.__version__)"
    """
    settings, words = _command(argv, "run")
    return enter(settings, request, lambda name: words, given)


def _command(argv: tuple[str, ...], by: str) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings and the command to run.

    The command is `argv` or, if `argv` is empty, the command in the project file. Raise
    `EnvbuilderError` if the command must not be run.
    """
    settings = load_settings()
    words = argv[1:] if argv[:1] == ("--",) else argv
    words = words or project_command(settings, by)
    own_settings = of_script(settings, Path(words[0]))
    if own_settings is not settings:
        return own_settings, ("python", *words)
    if os.sep in words[0] and (words[0][0] != os.sep or Path(words[0]).exists()):
        process.require_runnable(Path(words[0]))  # what is in a container alone is not seen here
    if settings.definition is not None:
        foreign_programs.require_unchanged(words, "", of_project=True)
    return settings, words


@click.command(
    "watch",
    context_settings={"allow_interspersed_args": False},
)
@running_options
@click.option(
    "--device",
    type=click.Choice([*ACCELERATORS]),
    help="Device that should do the work.  [default: the profile's device]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report to this file, as JSON.",
)
@html_option
@click.option(
    "--against",
    metavar="REPORT",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also report what changed since this earlier report.",
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD [ARG]…]")
def watch(
    request: Request,
    given: Access,
    device: str | None,
    output: Path | None,
    html: Path | None,
    against: Path | None,
    argv: tuple[str, ...],
) -> int:
    """Run a command inside the environment like `run`, and report where its training ran.

    The script needs no change. A hook from outside the environment samples some steps of PyTorch,
    JAX or TensorFlow in all of the command's processes: devices and dtypes of parameters,
    gradients, activations and operators, copies, how long the device waited for data, and whether
    the training learns. The report follows the command's own output, on stderr. It is advice, not
    proof: the script could lie.

    The command's own exit code is passed through; 5 means that it succeeded but the work was not on
    the device, 127 that it is missing, 126 that it cannot be executed, 125 that envbuilder itself
    failed.

    \b
    Examples:
      envbuilder watch -- python train.py
      envbuilder watch --html training.html -- torchrun --nproc-per-node 2 train.py
      envbuilder watch --profile cuda --output watch.json -- accelerate launch train.py
      envbuilder watch --against watch.json -- python train.py --epochs 1
    """
    from envbuilder.commands.watch import Watching, places
    from envbuilder.watch import model

    file, page = places(output, html)
    earlier = model.read(against) if against else None  # before anything is built
    watching = Watching(device=device, file=file, page=page, earlier=earlier)
    settings, words = _command(argv, "watch")
    return enter(settings, request, lambda name: words, given, watching=watching)


class _Brief:
    """The progress output of a command that rarely has anything to build.

    Notes are held back until the first task starts.
    """

    def __init__(self, progress: console.Progress) -> None:
        self._progress = progress
        self._held: list[str] | None = []

    def note(self, text: str) -> None:
        """Print a line if a task has started. Otherwise, hold the line back until a task starts."""
        if self._held is None:
            self._progress.note(text)
        else:
            self._held.append(text)

    def task(
        self, name: str, total: int | None = None, unit: str = ""
    ) -> contextlib.AbstractContextManager[console.Task]:
        """Print the lines that were held back, and start a task."""
        self.release()
        return self._progress.task(name, total, unit)

    def release(self, *, briefly: bool = False) -> None:
        """Print the lines that were held back.

        If `briefly` is true, print only the profile in use and the warnings.
        """
        held = self._held or []
        self._held = None
        for line in held:
            if not briefly or line.startswith(("profile ", "warning: ")):
                self._progress.note(line)


def enter(
    settings: Settings,
    request: Request,
    argv: Callable[[str], tuple[str, ...]],
    given: Access,
    watching: Watching | None = None,
) -> int:
    """Build the environment if it is missing, then replace this process with the command.

    If `watching` is given, the command runs as a child process instead, and its exit code is
    returned. `argv` is a function that receives the environment's name (the profile or, in a
    project, ENVIRONMENT.PROFILE) and returns the command. If there is nothing to build, print at
    most one line and the warnings before the command's own output.
    """
    project_folder.require_own(settings.project or Path.cwd())
    always = of_project(settings)
    progress = _Brief(console.progress())
    try:
        planned = prepare_locked(request, settings, progress)
        require_image(planned.backend)
        name = planned.profile.name
        in_project = settings.definition is not None
        words = argv(f"{settings.environment}.{name}" if in_project else name)
        if not in_project:
            foreign_programs.require_unchanged(words, name, of_project=False)
        build = pipeline.finish(planned)
        environment = build.environment
    except BaseException:
        progress.release()
        raise
    progress.release(briefly=True)
    access = combined(hooked(always, settings, environment.plan), given)
    if environment.plan.artifact.kind == "image":
        ports = (p for p in access.ports if p in given.ports or _is_free(p, progress.note))
        access = replace(access, ports=tuple(ports))
    else:
        if given.ports:
            listed = ", ".join(str(port.outside) for port in given.ports)
            why = "without a container, the command opens its own ports"
            progress.note(f"note: -p {listed} is ignored: {why}")
        if always.volumes:
            listed = ", ".join(volume.target for volume in always.volumes)
            progress.note(f"warning: volumes: nothing is mounted at {listed} without a container")
        for warning in isolation.shadowing(os.environ):
            progress.note(f"warning: {warning}")
    if watching:
        return watching.run(build, words, access)
    return environment.become(words, os.environ, access)


_WRITE = Hint("Lock as a user who can write to the project's folder", ("lock",))
_NO = frozenset({"", "0", "false", "no"})


def prepare_locked(request: Request, settings: Settings, progress: Progress) -> Planned:
    """Return the planned build of the environment in which a command is about to run.

    If a project's lock for the profile is missing or stale, make the lock first. However, with
    `--locked`, in CI, or if locks must be signed, raise `UnlockedError` instead.
    """
    build = pipeline.judge(pipeline.choose(request, settings, progress, running=True))
    name = build.profile.name
    signers = settings.configuration.signatures.locks
    try:
        return pipeline.plan(pipeline.lock(build))
    except UnlockedError as error:
        if request.locked or signers or os.environ.get("CI", "").lower() not in _NO:
            raise
        progress.note(f"{error.message}: locking it now (`envbuilder lock` locks all profiles)")
    lock_profile(name, settings, progress)
    # Named, so that what was decided is not printed again.
    named = replace(request, profile=name, backend=build.backend)
    return pipeline.prepare(named, settings, progress, running=True)


def lock_profile(
    name: str, settings: Settings, progress: Progress, diagnosis: Diagnosis | None = None
) -> Lock:
    """Make and save the lock of a project's environment for one profile, and return the lock.

    `diagnosis` contains what the command has already learned from indexes. Raise `InvalidError` if
    the lock cannot be made. In that case, an existing lock is kept.
    """
    from envbuilder.commands import resolution
    from envbuilder.locks import entries

    def listed(choosing: ReleaseOptions) -> list[Entry]:
        with progress.task("read the project's requirements"):
            every = [*entries.entries(settings, name, choosing=choosing)]
        return [entry for entry in every if entry.environment == settings.environment]

    (outcome,) = resolution.resolve_all(settings, listed, report=progress.note, diagnosis=diagnosis)
    if outcome.obstacle or outcome.lock is None:
        what = f"{outcome.entry.label} cannot be locked"
        again = outcome.hints or Hint("Then run", ("lock",))
        raise InvalidError(f"{what}: {outcome.problem}", again)
    entries.save({outcome.entry.path: outcome.lock}, _WRITE)
    return outcome.lock


def _is_free(port: Port, note: Callable[[str], None]) -> bool:
    """Return whether a port is free. If the port is in use, call `note` with a warning.

    The port may be in use by another command of the same project.
    """
    import socket  # takes 3 ms; without a container, no port is opened

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.host, port.outside))
        except OSError as error:  # this user may not open each port that the engine may
            if error.errno == errno.EADDRINUSE:
                note(
                    f"warning: port {port.outside} is in use on this machine, so it is not"
                    " forwarded to the container"
                )
                return False
    return True


@click.command("shell")
@running_options
def shell(
    request: Request,
    given: Access,
) -> int:
    """Open an interactive shell inside the environment, with the flags that its device needs.

    The prompt begins with the environment's name, unless VIRTUAL_ENV_DISABLE_PROMPT is set. fish
    keeps its own prompt.

    \b
    Examples:
      envbuilder shell --profile cpu --backend venv
      envbuilder shell --backend docker -p 8000
    """
    # None if the user wants none, as for a venv.
    prompt = "" if os.environ.get("VIRTUAL_ENV_DISABLE_PROMPT") else "(envbuilder {}) "
    return enter(
        load_settings(),
        request,
        lambda name: shell_command(os.environ.get("SHELL", "/bin/sh"), prompt.format(name)),
        given,
    )


_STARTS = {
    "bash": r"""
export ENVBUILDER_PATH="$PATH" ENVBUILDER_PROMPT="$1"
exec "$0" --rcfile /dev/fd/3 -i 3<<'END'
[ ! -f ~/.bashrc ] || . ~/.bashrc
PATH="$ENVBUILDER_PATH:$PATH"
_envbuilder_name="$ENVBUILDER_PROMPT"
unset ENVBUILDER_PATH ENVBUILDER_PROMPT
_envbuilder_prompt() {
  [[ $PS1 == *"$_envbuilder_name"* ]] || PS1="$_envbuilder_name$PS1"
}
PROMPT_COMMAND="${PROMPT_COMMAND:+$PROMPT_COMMAND
}_envbuilder_prompt"
exec 3<&-
END
""",
    "zsh": r"""
if ENVBUILDER_FOLDER=$(mktemp -d); then
export ENVBUILDER_FOLDER ENVBUILDER_PATH="$PATH" ENVBUILDER_PROMPT="$1"
[ -z "${ZDOTDIR+set}" ] || export ENVBUILDER_ZDOTDIR="$ZDOTDIR"
export ZDOTDIR="$ENVBUILDER_FOLDER"
cat >"$ZDOTDIR/.zshenv" <<'END'
if (( ${+ENVBUILDER_ZDOTDIR} )); then ZDOTDIR=$ENVBUILDER_ZDOTDIR; else unset ZDOTDIR; fi
rm -f -- "$ENVBUILDER_FOLDER/.zshenv" && rmdir -- "$ENVBUILDER_FOLDER"
_envbuilder_path=$ENVBUILDER_PATH _envbuilder_name=$ENVBUILDER_PROMPT
unset ENVBUILDER_FOLDER ENVBUILDER_PATH ENVBUILDER_PROMPT ENVBUILDER_ZDOTDIR
_envbuilder_prompt() {
  (( ! ${+_envbuilder_path} )) || PATH=$_envbuilder_path:$PATH
  unset _envbuilder_path
  [[ $PROMPT == *"$_envbuilder_name"* ]] || PROMPT=$_envbuilder_name$PROMPT
  precmd_functions=(${precmd_functions:#_envbuilder_prompt} _envbuilder_prompt)
}
precmd_functions+=(_envbuilder_prompt)
[[ ! -f ${ZDOTDIR:-$HOME}/.zshenv ]] || . "${ZDOTDIR:-$HOME}/.zshenv"
END
fi
exec "$0" -i
""",
    "fish": r"""
export ENVBUILDER_PATH="$PATH"
exec "$0" -i -C '
set -gx PATH (string split : -- $ENVBUILDER_PATH) $PATH
set -e ENVBUILDER_PATH'
""",
}
"""Name of a shell → script that starts the shell. zsh reads only `.zshenv` from our folder, and
that file makes zsh read its other files from the user's own folder."""
_OTHER = r"""
[ -z "$1" ] || export PS1="$1$([ "$(id -u)" = 0 ] && echo '#' || echo '$') "
"""


def shell_command(shell: str, name: str) -> tuple[str, ...]:
    """Return a command that starts `shell`, or `sh` if `shell` does not exist.

    Every image contains `sh`. The prompt begins with `name` if the shell supports this. If `name`
    is empty, the prompt is left unchanged.
    """
    start = _STARTS.get(shell.rpartition("/")[2], _OTHER + 'exec "$0" -i\n')
    script = f'if [ -x "$0" ]; then{start}fi{_OTHER}exec /bin/sh -i\n'
    return ("/bin/sh", "-c", script, shell, name)
