"""`envbuilder jupyter`: open notebooks with a kernel that runs in an environment."""

from __future__ import annotations

import os
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import click
from msgspec.structs import replace

from envbuilder.builds import access, jupyter, pipeline
from envbuilder.commands.add import read_project
from envbuilder.commands.options import (
    FILE,
    FOLDER,
    environment_options,
    load_settings,
    locked_option,
    require_image,
)
from envbuilder.commands.run import prepare_locked
from envbuilder.core import console, process
from envbuilder.profiles.backends import makes_image

if TYPE_CHECKING:
    from envbuilder.builds.backends.container import DockerEnvironment
    from envbuilder.builds.request import Built, Request


@click.command(
    "jupyter",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@environment_options
@locked_option
@click.option(
    "--install-kernel",
    is_flag=True,
    help="Only install the kernel (kernel.json) for VS Code and your own Jupyter.",
)
@click.option(
    "--remove-kernel", is_flag=True, help="Remove the kernel that --install-kernel installed."
)
@click.option("--project", type=FOLDER, hidden=True)
@click.option("--connection-file", type=FILE, hidden=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARG…]")
def command(
    request: Request,
    install_kernel: bool,
    remove_kernel: bool,
    project: Path | None,
    connection_file: Path | None,
    arguments: tuple[str, ...],
) -> int:
    """Open JupyterLab, with a kernel in the project's environment on any backend.

    Prints a link with a token; only this machine can open it. Ctrl-C ends the server and its
    kernels. JupyterLab runs in a separate environment, built from a lock shipped with envbuilder.
    ipykernel also comes from there unless your lock has it. Your project is not changed.

    Kernels and terminals start in the environment of the current lock. Arguments after envbuilder's
    own options are passed to JupyterLab, which uses the first free port from 8888 on. Exit code 125
    means that envbuilder itself failed.

    \b
    Examples:
      envbuilder jupyter
      envbuilder jupyter --backend docker --port 9000 --no-browser
      envbuilder jupyter explore.ipynb
      envbuilder jupyter --install-kernel
    """
    if project is not None and connection_file is not None:
        return _start_kernel(request, project, connection_file)
    settings = load_settings()
    _, definition_file = read_project(settings)
    choice = jupyter.Choice(
        project=definition_file.parent, environment=settings.environment, request=request
    )
    if remove_kernel:
        folder = jupyter.remove(choice, jupyter.data_folder(os.environ, Path.home()))
        console.result(f"removed {folder}" if folder else "nothing to remove")
        return 0
    build = prepare_locked(request, settings, console.progress())
    require_image(build.backend)
    build = pipeline.finish(build)
    _, version = jupyter.beside(build)
    if not makes_image(build.backend):
        choice = replace(choice, request=replace(request, base_image=None))
    if install_kernel:
        spec = jupyter.spec(choice, version, os.environ)
        folder = jupyter.install(choice, spec, jupyter.data_folder(os.environ, Path.home()))
        console.result(f"kernel '{choice.title}' → {folder}")
        return 0
    return _serve(choice, build, version, arguments)


def _serve(
    choice: jupyter.Choice,
    build: Built,
    version: str,
    arguments: tuple[str, ...],
) -> NoReturn:
    """Replace this process with the JupyterLab server."""
    prefix = jupyter.prefix(build)
    # What was built and said above, even if the host changes while the server runs.
    decided = replace(choice.request, profile=build.profile.name, backend=build.backend)
    choice = replace(choice, request=decided)
    served = jupyter.Server(
        folder=str(choice.project),
        browser=jupyter.has_display(os.environ),
        kernel=jupyter.spec(choice, version, os.environ),
        shell=choice.command("shell"),
    )
    argv, variables = jupyter.server_command(
        prefix, served, arguments[1:] if arguments[:1] == ("--",) else arguments, build.settings
    )
    build.progress.note("Ctrl-C ends JupyterLab and its kernels")
    process.exec_program(argv, {**served.kernel.env, **variables})


def _start_kernel(request: Request, project: Path, connection_file: Path) -> int:
    """Run the kernel of a project's environment in the current folder, and return its exit code.

    If the kernel does not run in a container, it replaces this process, and the function does not
    return.
    """
    with chdir(project):
        settings = load_settings()
    build = pipeline.finish(pipeline.prepare(request, settings, console.progress(), running=True))
    environment = build.environment
    (beside, _) = jupyter.beside(build)
    # Its ports are for commands: of several kernels, only one could have them.
    given = replace(access.of_project(settings), ports=())
    if makes_image(environment.plan.backend):
        if settings.project and not Path.cwd().is_relative_to(settings.project):
            os.chdir(settings.project)  # a container sees the project, not a notebook elsewhere
        return jupyter.run_kernel(
            cast("DockerEnvironment", environment), connection_file, given, beside
        )
    argv = jupyter.kernel_command(str(connection_file), str(beside or ""))
    return environment.become(argv, os.environ, given)
