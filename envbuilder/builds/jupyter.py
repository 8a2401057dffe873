"""JupyterLab with a kernel in a built environment, natively or in a container.

JupyterLab is never part of the user's environment. It is installed in a separate environment, whose
lock is shipped with envbuilder. The Python of that environment runs `inside/serve_jupyter.py`. The
packages that a kernel needs are in a third environment, which is built for the user's Python and
searched after the user's packages.

A kernel's specification refers to this envbuilder, the project and the options, but never to the
folder of an environment. After a new lock, the kernel therefore runs in the new environment.
Jupyter's connection file contains a kernel's ports and the key for its messages.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace

from envbuilder.builds import pipeline
from envbuilder.builds.backends import venv
from envbuilder.builds.request import Built, Locked, Planned, Request, advance
from envbuilder.containers import inside
from envbuilder.containers.engine.container import LOOPBACK, Port, Volume
from envbuilder.core import decoding, files, process, resources
from envbuilder.core.errors import Hint, InvalidError, ToolError
from envbuilder.core.settings import DEFAULT
from envbuilder.profiles.library import Library
from envbuilder.profiles.lock import select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.builds.access import Access
    from envbuilder.builds.backends.container import DockerEnvironment
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Target


_SERVE = Path(__file__).with_name("inside") / "serve_jupyter.py"
PACKAGE = "ipykernel"
_CURVE = (7, 3)
"""The first version of ipykernel that supports encrypted connections."""
_LARGEST_SPEC = 64 << 10
"""Maximum size in bytes of a `kernel.json`, which any program may have written."""
_FILE = "kernel.json"
_BASE_IMAGE = "ENVBUILDER_BASE_IMAGE"
_FOLDERS = ("ENVBUILDER_CACHE_DIR", "ENVBUILDER_CONFIG_DIR", "ENVBUILDER_DATA_DIR")


class Choice(Struct, frozen=True, kw_only=True):
    """An environment of a project, and the options for building it."""

    project: Path
    environment: str
    request: Request

    @property
    def title(self) -> str:
        """The kernel's title in the list that the user sees."""
        return f"{self.project.name} ({self.environment})"

    def command(self, *words: str) -> tuple[str, ...]:
        """Return a command line that runs this envbuilder from any folder and with any PATH."""
        options = {
            "--environment": self.environment,
            "--profile": self.request.profile,
            "--backend": self.request.backend,
        }
        arguments: list[str] = []
        for name, value in options.items():
            if value:
                arguments += (name, value)
        # -P: a file of the notebook's folder shadows no module.
        return (sys.executable, "-P", "-m", "envbuilder", words[0], *arguments, *words[1:])


class Spec(Struct, frozen=True, kw_only=True):
    """The content of `kernel.json`."""

    argv: tuple[str, ...]
    env: dict[str, str]
    display_name: str
    language: str = "python"
    interrupt_mode: str = "message"
    """How Jupyter interrupts the kernel: by a message.

    A signal would reach only the launcher or the container's client, not the kernel.
    """
    metadata: dict[str, Any]


def spec(choice: Choice, version: str, environ: Mapping[str, str]) -> Spec:
    """Return the kernel specification for an environment. `version` is the version of ipykernel."""
    # Quiet: what is used was said when JupyterLab started, and each kernel would say it again.
    project = ("--quiet", "--project", str(choice.project))
    encrypts = tuple(map(int, re.findall(r"\d+", version)[:2])) >= _CURVE
    # An editor that the desktop started lacks what a shell's startup files set.
    variables = {
        name: str(Path(environ[name]).absolute()) for name in _FOLDERS if environ.get(name)
    }
    if choice.request.base_image:
        variables[_BASE_IMAGE] = choice.request.base_image
    return Spec(
        argv=choice.command("jupyter", *project, "--connection-file", "{connection_file}"),
        env=variables,
        display_name=choice.title,
        metadata={
            "debugger": True,
            **({"supported_encryption": "curve"} if encrypts else {}),
            "envbuilder": {"project": str(choice.project), "environment": choice.environment},
        },
    )


def data_folder(environ: Mapping[str, str], home: Path, system: str = sys.platform) -> Path:
    """Return Jupyter's data folder, in which Jupyter and the user's editors look for kernels."""
    if environ.get("JUPYTER_DATA_DIR"):
        return Path(environ["JUPYTER_DATA_DIR"])
    if system == "darwin":
        return home / "Library" / "Jupyter"
    return Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "jupyter"


def install(choice: Choice, content: Spec, data: Path) -> Path:
    """Write a kernel specification to the user's data folder, and return the kernel's folder."""
    folders = _folders(choice, data)
    folder = _installed(choice, data) or next((f for f in folders if not f.exists()), folders[-1])
    text = json.dumps(to_builtins(content), indent=1, ensure_ascii=False) + "\n"
    files.save(
        folder / _FILE,
        text.encode(),
        InvalidError,
        "Set JUPYTER_DATA_DIR to a folder you can write to.",
    )
    return folder


def remove(choice: Choice, data: Path) -> Path | None:
    """Remove the kernel from the user's data folder.

    Return the folder that was removed, or None if the kernel was not installed.
    """
    folder = _installed(choice, data)
    if folder is None:
        return None
    with files.explained(folder, done="removed"):
        shutil.rmtree(folder)
    return folder


def _folders(choice: Choice, data: Path) -> tuple[Path, Path]:
    """Return a kernel's preferred folder, and another folder to use if the preferred one is taken.

    The name of the folder is also the name of the kernel. Notebooks store that name, so it should
    be the same on every machine.
    """
    words = f"envbuilder-{choice.project.name}-{choice.environment}".lower()
    name = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    digest = hashlib.sha256(str(choice.project).encode()).hexdigest()
    kernels = data / "kernels"
    return kernels / name, kernels / f"{name}-{digest[:6]}"


def _installed(choice: Choice, data: Path) -> Path | None:
    """Return the folder in which the kernel is already installed, or None."""
    expected = {"project": str(choice.project), "environment": choice.environment}
    for folder in _folders(choice, data):
        try:
            content = decoding.strict_json(files.read(folder / _FILE, _LARGEST_SPEC))
            if content["metadata"]["envbuilder"] == expected:
                return folder
        except (OSError, ValueError, LookupError, TypeError):
            continue  # not there, or not ours
    return None


_LARGEST_CONNECTION = 16 << 10
"""Maximum size in bytes of a connection file passed to `jupyter --connection-file`."""
_Port = Annotated[int, Meta(ge=1, le=65535)]


class _Read(Struct, frozen=True):
    """The keys in a connection file that determine how to start the container.

    All other keys are intended only for the kernel.
    """

    shell_port: _Port
    iopub_port: _Port
    stdin_port: _Port
    control_port: _Port
    hb_port: _Port
    transport: Literal["tcp"]
    ip: Literal["127.0.0.1", "localhost"]


class Connection(Struct, frozen=True, kw_only=True):
    """The content of a kernel's connection file, adapted for a kernel in a container."""

    ports: tuple[Port, ...]
    """The ports on this machine to forward into the container."""
    text: str
    """The content of the file for the kernel, which listens on all addresses of the container."""


def read_connection(path: Path) -> Connection:
    """Read a kernel's connection file, and return it adapted for a container.

    Raise `InvalidError` if it is not a connection file of a local kernel.
    """
    try:
        content: dict[str, Any] = decoding.strict_json(files.read(path, _LARGEST_CONNECTION))
        connection = decoding.convert(content, _Read)
    except (OSError, ValueError) as error:  # msgspec's is a ValueError, too
        raise InvalidError(f"{path}: not a connection file of a local kernel: {error}") from error
    numbers = (
        connection.shell_port,
        connection.iopub_port,
        connection.stdin_port,
        connection.control_port,
        connection.hb_port,
    )
    if len(set(numbers)) != len(numbers):
        raise InvalidError(f"{path}: not a connection file of a local kernel: a port appears twice")
    return Connection(
        ports=tuple(Port(host=LOOPBACK, outside=number, inside=number) for number in numbers),
        text=msgspec.json.encode({**content, "ip": "0.0.0.0"}).decode(),  # noqa: S104
    )


_VARIABLES = {"JPY_PARENT_PID": "1"}
"""Variables to set for a kernel in a container.

Without `JPY_PARENT_PID`, the kernel would print advice intended for a shell, because its parent is
the container's first process.
"""


_BESIDE = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1));"
    f" runpy.run_module('{PACKAGE}_launcher', run_name='__main__', alter_sys=True)"
)
_FOLDER_INSIDE = "/opt/envbuilder-kernel"


def kernel_command(file: str, beside: str) -> tuple[str, ...]:
    """Return the command that starts a kernel with a connection file.

    `beside` is the folder that contains ipykernel. Python searches this folder last. `beside` is
    empty if the environment itself contains ipykernel.
    """
    start = ("-c", _BESIDE, beside) if beside else ("-m", f"{PACKAGE}_launcher")
    return ("python", *start, "-f", file)


def run_kernel(
    environment: DockerEnvironment, file: Path, given: Access, beside: Path | None
) -> int:
    """Run a kernel in a container, and return its exit code.

    The kernel runs until it exits or this process's parent exits. `given` is the access to folders,
    ports and variables that the project requests. `beside` is the folder that contains ipykernel,
    or None if the environment itself contains ipykernel. The content of the connection file is sent
    through a pipe, so that the key in the file appears in no argument list and no mounted file. The
    container exits when the pipe is closed, even if this process is killed.
    """
    opened = read_connection(file)
    kernel = kernel_command(inside.BEGINNING, _FOLDER_INSIDE if beside else "")
    folder = Volume(source=str(beside), target=_FOLDER_INSIDE, writable=False)
    access = replace(
        given,
        ports=opened.ports,
        volumes=(*given.volumes, folder) if beside else given.volumes,
        variables={**given.variables, **_VARIABLES},
    )
    argv = environment.command(inside.guarded(("python", "-I"), kernel), access)
    parent = os.getppid()
    return process.run_while_needed(argv, f"{opened.text}\n", lambda: os.getppid() == parent)


class Server(Struct, frozen=True, kw_only=True):
    """The settings of the JupyterLab server: its folder, kernel and terminals."""

    folder: str
    """The folder whose files JupyterLab shows."""
    browser: bool
    kernel: Spec
    shell: tuple[str, ...]
    """The command that runs in JupyterLab's terminals."""


def server_command(
    prefix: Path, server: Server, arguments: Sequence[str], settings: Settings
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command that starts the server, and the variables to set for it.

    `arguments` are passed on to JupyterLab. JupyterLab keeps its settings in envbuilder's folders,
    so that the settings of another JupyterLab have no effect. Raise `InvalidError` if files in
    these folders belong to other users, because JupyterLab would run them.
    """
    files.require_own(settings.data_dir / "jupyter")
    variables = {
        "JUPYTER_CONFIG_DIR": str(settings.config_dir / "jupyter"),
        "JUPYTER_DATA_DIR": str(settings.data_dir / "jupyter"),
        "JUPYTER_CONFIG_PATH": "",
        "JUPYTER_PATH": "",
    }
    # Isolated: modules of the user's are not JupyterLab's.
    python = (str(prefix / "bin" / "python"), "-I", str(_SERVE))
    return (*python, msgspec.json.encode(server).decode(), *arguments), variables


def has_display(environ: Mapping[str, str], system: str = sys.platform) -> bool:
    """Return whether a graphical browser can be opened.

    Without a display, a text browser would open.
    """
    return system == "darwin" or any(map(environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


NAME = "jupyter"
KERNEL = "kernel"
"""Name of the profile with the packages that kernels need. `NAME` is the name of JupyterLab's
profile."""


def library() -> Library:
    """Return the profiles of envbuilder's own tools, which the user's profiles cannot replace.

    The locks of these profiles are shipped with envbuilder, just like its code. Therefore, they
    need no signature by one of the user's keys.
    """
    shipped = resources.profiles_dir()
    return Library((shipped / "tools", shipped))


def prefix(project: Built, name: str = NAME, python: str | None = None) -> Path:
    """Build a tool's environment if it is missing, and return its folder.

    `name` is the tool's profile. The environment is protected from removal while it is in use.
    `project` is the build of the environment in which the kernel runs.
    """
    tools = library()
    profile = tools.profile(name)
    # It is of no project, whose link to its own environment it must not take over.
    build = Locked(
        request=Request(python=python),
        settings=replace(project.settings, project=None, definition=None, environment=DEFAULT),
        progress=project.progress,
        library=tools,
        host=project.host,
        running=True,
        profile=profile,
        backend="venv",
        lock=tools.usable_lock(profile),
    )
    product = venv.prepare(build)
    done = pipeline.finish(advance(build, Planned, product=product))
    product.stay_in_use()
    return Path(done.result.artifact.ref)


def beside(project: Built) -> tuple[Path | None, str]:
    """Return the folder that contains a kernel's packages, and the version of ipykernel.

    The folder is None if the environment's own lock contains ipykernel. Otherwise, raise
    `InvalidError` or `ToolError` if the packages cannot be installed separately.
    """
    own = _version(project.environment.target)
    if own:
        return None, own
    plan = project.plan
    tools = library()
    hint = Hint("Add it to the environment", ("add", PACKAGE))
    if plan.platform != project.host.platform:
        raise InvalidError(
            f"envbuilder cannot install {PACKAGE} for {plan.platform} on this machine", hint
        )
    try:
        target = select(tools.usable_lock(tools.profile(KERNEL)), plan.platform, plan.python)
        folder = prefix(project, KERNEL, plan.python)
    except (InvalidError, ToolError) as error:
        raise type(error)(
            f"the kernel's packages cannot be installed next to the environment: {error.message}",
            hint,
        ) from error
    return folder / "lib" / f"python{plan.python}" / "site-packages", _version(target)


def _version(target: Target) -> str:
    """Return the locked version of ipykernel, or an empty string if the target has no ipykernel."""
    for file in target.of_kind("wheel"):
        if file.name == PACKAGE:
            return file.version
    return ""
