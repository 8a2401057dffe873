"""Options that several commands share, and the functions that check their values."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial, reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource
from msgspec.structs import replace

from envbuilder.containers.oci import reference
from envbuilder.core import console, decoding, process, settings as core_settings, types
from envbuilder.core.errors import EnvbuilderError, InvalidError
from envbuilder.core.settings import DEFAULT
from envbuilder.profiles.backends import BACKENDS, makes_image

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.builds.access import Access
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
FOLDER = click.Path(path_type=Path, file_okay=False)
EXISTING_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)
BUILDERS = ("buildkit", "layers")
"""Names of the tools that the docker backend can use to build an image."""


def _complete_profile(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from envbuilder.profiles.profile import names, search_path

    with suppress(EnvbuilderError):  # a shell has no place for a message
        settings = core_settings.load()
        candidates = names(search_path(settings.project, settings.config_dir))
        return [name for name in candidates if name.startswith(incomplete)]
    return []


def _complete_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _complete_profile(ctx, param, last)]


def _single(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value and "," in value:
        raise click.BadParameter(
            f"{value!r} names more than one profile: only build, bundle and render --target bake"
            " accept several",
            ctx,
            param,
        )
    return value


def several(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Split a value at its commas into names.

    Raise `BadParameter` if a name is empty or occurs twice.
    """
    names = tuple(name.strip() for name in value.split(",")) if value is not None else ()
    if not all(names):
        raise click.BadParameter(f"{value!r} has an empty name", ctx, param)
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{value!r} names {name} twice", ctx, param)
    return names


class RequestOption(click.Option):
    """An option whose value is stored in the field of `Request` that has the option's name."""


request_option = partial(click.option, cls=RequestOption)

profile_option: Decorator = request_option(
    "--profile",
    metavar="NAME",
    callback=_single,
    shell_complete=_complete_profile,
    help="Profile to use. Without it, this machine's hardware decides.",
)
profiles_option: Decorator = click.option(
    "--profile",
    metavar="NAME[,…]",
    callback=several,
    shell_complete=_complete_profiles,
    help="Profiles to use. Without it, this machine's hardware decides.",
)
_ENVIRONMENT = "envbuilder.environment"


def _keep_environment(ctx: click.Context, param: click.Parameter, value: str) -> None:
    ctx.meta[_ENVIRONMENT] = value


def _complete_environment(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from envbuilder.project import environments

    with suppress(EnvbuilderError):
        if definition := core_settings.load().definition:
            return [n for n in environments.names(definition) if n.startswith(incomplete)]
    return []


environment_option: Decorator = click.option(
    "--environment",
    metavar="NAME",
    default=DEFAULT,
    expose_value=False,
    callback=_keep_environment,
    shell_complete=_complete_environment,
    help="Name of the project's environment in envbuilder.yaml. Without it, `default`.",
)


def require_one_host(root: Path, target_host: Path | None) -> None:
    """Raise `UsageError` if both `--root` and `--target-host` are given on the command line."""
    source = click.get_current_context().get_parameter_source("target_host")
    if root != Path("/") and target_host and source is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "--root cannot be combined with --target-host, since both name a host"
        )


_SIGNATURES = "envbuilder.signatures"


def _keep_signatures(
    ctx: click.Context, param: click.Parameter, public_keys: tuple[Path, ...]
) -> None:
    keys = tuple(str(path.absolute()) for path in public_keys)
    if keys:
        ctx.meta[_SIGNATURES] = core_settings.Signatures(locks=keys, bundles=keys)


require_signature_option: Decorator = click.option(
    "--require-signature",
    metavar="PUB",
    multiple=True,
    type=EXISTING_FILE,
    expose_value=False,
    callback=_keep_signatures,
    help=(
        "Public key that must have signed all locks and bundles used; with several, one of them."
        " Replaces signatures: of the configuration."
    ),
)


def load_settings() -> core_settings.Settings:
    """Load the settings, and apply the command's --environment and --require-signature options."""
    chosen = click.get_current_context().meta
    settings = core_settings.load(environment=chosen.get(_ENVIRONMENT, DEFAULT))
    if _SIGNATURES not in chosen:
        return settings
    return replace(
        settings, configuration=replace(settings.configuration, signatures=chosen[_SIGNATURES])
    )


def locked_profile(
    library: Library,
    settings: Settings,
    name: str | None,
    target_host: Path | None = None,
) -> tuple[Profile, Lock]:
    """Return a profile and its lock, after checking that the lock can be used.

    If `name` is None, return the profile that fits the host.
    """
    if name is None:
        from envbuilder.host import probe
        from envbuilder.profiles import choice

        profile = choice.choose(library, settings, probe.target(target_host)).profile
    else:
        profile = library.named(name)
    return profile, library.usable_lock(profile)


json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON."
)
html_option: Decorator = click.option(
    "--html",
    type=FILE,
    help="Also write the report as a web page: one file that needs no network.",
)
python_option: Decorator = request_option(
    "--python-version", "python", metavar="X.Y", help="Python of the environment."
)

root_option: Decorator = click.option(
    "--root",
    type=EXISTING_FOLDER,
    default=Path("/"),
    help="Read a recorded tree (proc/ sys/ dev/) instead of this machine.",
)
target_host_option: Decorator = request_option(
    "--target-host",
    type=EXISTING_FILE,
    envvar="ENVBUILDER_TARGET_HOST",
    help="Decide for this host (written by `detect --json`) instead of this machine.",
)


def image_ref(ctx: click.Context, param: click.Parameter | None, value: str | None) -> str | None:
    """Validate an image reference, and return it unchanged.

    Raise `BadParameter` if the reference is malformed. The check is needed because the reference is
    inserted into a Dockerfile and into command lines.
    """
    if value is None:
        return None
    try:
        return decoding.convert(value, types.ImageRef)
    except msgspec.ValidationError as error:
        raise click.BadParameter(f"{value!r} is not an image reference", param=param) from error


def base_image_ref(
    ctx: click.Context, param: click.Parameter | None, value: str | None
) -> str | None:
    """Validate an image reference, and return it.

    If the reference specifies an image on disk, return it with an absolute path. Raise
    `BadParameter` if the reference is malformed, or if the image on disk does not exist.
    """
    if value and reference.is_on_disk(value):
        if not reference.path_on_disk(value).exists():
            raise click.BadParameter(f"{reference.path_on_disk(value)} does not exist", param=param)
        return reference.absolute_on_disk(value)
    return image_ref(ctx, param, value)


def _base_image_of_variable() -> str | None:
    """Return the base image from its environment variable, or None if the variable is not set.

    This function is used for commands that have no `--base-image` option. Raise `BadParameter` if
    the value is invalid.
    """
    try:
        context = click.get_current_context()
        return base_image_ref(context, None, os.environ.get(_BASE_IMAGE) or None)
    except click.BadParameter as error:
        error.param_hint = _BASE_IMAGE
        raise


def _only(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Return the only value of an option, or None if the option is not given.

    Raise `UsageError` if the option is given more than once. The option is declared with
    `multiple=True` because Click would otherwise silently use the last value.
    """
    if len(values) > 1:
        raise click.UsageError(
            f"{param.opts[0]} is given {len(values)} times, but a build accepts only one: for the"
            " others, build again, which reuses the first result",
            ctx,
        )
    return values[0] if values else None


def _output(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Return the absolute location on disk to which to write an image, or None if none is given.

    Raise `BadParameter` if the value is neither `oci:DIR` nor `FILE.tar`.
    """
    value = _only(ctx, param, values)
    if value is None:
        return None
    if not reference.is_on_disk(value) or not value.removeprefix("oci:"):
        raise click.BadParameter(f"{value!r} is neither oci:DIR nor FILE.tar", param=param)
    path = reference.absolute_on_disk(value)
    if reference.is_archive(path):
        console.Place("--output", Path(path), lambda head: head.startswith(b"blobs/")).require()
    return path


def _push(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Return the full reference, including a tag, under which to push an image to a registry.

    Return None if no value is given. Raise `BadParameter` if the value is not such a reference.
    """
    value = _only(ctx, param, values)
    if value is None:
        return None
    try:
        image = reference.parse(value)
    except InvalidError as error:
        raise click.BadParameter(error.message, param=param) from error
    if image.digest:
        raise click.BadParameter("the image determines its digest: name a tag instead", param=param)
    return f"{image.name}:{image.tag_or_digest}"


_BASE_IMAGE = "ENVBUILDER_BASE_IMAGE"
base_image_option: Decorator = request_option(
    "--base-image",
    metavar="REF",
    envvar=_BASE_IMAGE,
    callback=base_image_ref,
    help="Base image to use instead of the locked one: a reference, oci:DIR or FILE.tar.",
)
builder_option: Decorator = request_option(
    "--builder",
    type=click.Choice(BUILDERS),
    help=(
        "How to build an image: with an engine from a Dockerfile, or as layers by envbuilder"
        " itself."
    ),
)
output_option: Decorator = request_option(
    "--output",
    metavar="PLACE",
    multiple=True,
    callback=_output,
    help="Write the image to oci:DIR (an OCI layout) or FILE.tar instead of loading it.",
)
push_option: Decorator = request_option(
    "--push",
    metavar="REF",
    multiple=True,
    callback=_push,
    help="Push the image to a registry instead of loading it, and attach its attestations there.",
)


_IMAGE_ONLY = ("base_image", "builder", "push", "tag", "volume")
"""Names of the parameters that apply only to images."""
_FOLDERS_AS_THEY_ARE = " Without a container, commands see all folders at their usual paths."


def require_image(backend: str | None) -> None:
    """Raise `InvalidError` if an option for images is given, but the backend does not build images.

    Values from environment variables are ignored, because they apply to all commands.
    """
    context = click.get_current_context(silent=True)
    if backend is None or makes_image(backend) or context is None:
        return
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _IMAGE_ONLY or source is not ParameterSource.COMMANDLINE:
            continue
        option = max(parameter.opts, key=len)
        raise InvalidError(
            f"{option} applies only to images, but the {backend} backend makes none",
            f"Add --backend docker, or remove {option}."
            + (_FOLDERS_AS_THEY_ARE if option == "--volume" else ""),
        )


def adding(*options: Decorator) -> Decorator:
    """Return a decorator that adds options to a command.

    The command's `--help` shows the options in the given order.
    """
    return lambda function: reduce(lambda f, option: option(f), options[::-1], function)


backend_option: Decorator = request_option(
    "--backend",
    type=click.Choice(tuple(BACKENDS)),
    help="Image, native venv, or conda packages with a venv on top. Without it: venv"
    " if the project has one, else docker if an engine and the base image are available,"
    " else venv.",
)
SHARED = (environment_option, backend_option)
"""The options of every command that builds environments. To add an option to all of these commands,
add it here as a `request_option`."""


def request_options(profile: Decorator) -> Decorator:
    """Return a decorator that adds the option `profile` and the `SHARED` options to a command.

    The decorated function receives the values of all `request_option`s of the command in a single
    argument, `request`. If the command has no `--base-image` option, the base image is taken from
    the environment variable.
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def reading(**values: Any) -> Any:
            from envbuilder.builds.request import Request

            require_image(values["backend"])
            fields: dict[str, Any] = {}
            for param in click.get_current_context().command.params:
                if isinstance(param, RequestOption):
                    fields[str(param.name)] = values.pop(str(param.name))
            if "base_image" not in fields:
                fields["base_image"] = _base_image_of_variable()
            return function(request=Request(**fields), **values)

        return adding(profile, *SHARED)(reading)

    return decorated


environment_options = request_options(profile_option)
"""Decorator that adds `--profile`, `--environment` and `--backend`. The decorated function receives
their values as `request`."""


class _Interpreter(click.Path):
    """The type of an option whose value is the path of an interpreter or its name on PATH."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of the interpreter, looked up on PATH if only a name is given."""
        by_name = isinstance(value, str) and "/" not in value and not Path(value).exists()
        return super().convert(process.which(value) or value if by_name else value, param, ctx)


interpreter_option: Decorator = click.option(
    "--python",
    "executable",
    type=_Interpreter(path_type=Path, dir_okay=False, exists=True),
    help="Use this existing interpreter instead of an environment built by envbuilder.",
)
measuring_options = adding(
    click.option(
        "--quick",
        is_flag=True,
        help="Use a small subset and skip comparisons, which takes seconds.",
    ),
    interpreter_option,
    click.option(
        "--inherit-environment",
        "inherit",
        is_flag=True,
        help=(
            "With --python, keep your own variables (PYTHONPATH, LD_LIBRARY_PATH …), through"
            " which modules of some sites provide the framework. The verdict then states that the"
            " environment was used as found."
        ),
    ),
)
"""Decorator that adds `--quick`, `--python` and `--inherit-environment`."""


def access_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--publish`, `--volume` and `--env` to a command.

    `function` receives the `Access` that these options grant as the argument `given`.
    """

    @wraps(function)
    def reading(
        publish: tuple[str, ...], volume: tuple[str, ...], env: tuple[str, ...], **options: Any
    ) -> Any:
        return function(given=_access(publish, volume, env), **options)

    return adding(
        click.option(
            "-p",
            "--publish",
            multiple=True,
            metavar="[IP:]PORT[:PORT]",
            help=(
                "Make a port of the command's container reachable on this machine, at 127.0.0.1"
                " unless you give another address."
            ),
        ),
        click.option(
            "-v",
            "--volume",
            multiple=True,
            metavar="SOURCE:TARGET[:ro]",
            help="Mount a folder (./data, /data, ~/data) or a named volume in the container.",
        ),
        click.option(
            "-e",
            "--env",
            multiple=True,
            metavar="NAME[=VALUE]",
            help=(
                "Set a variable; NAME alone passes on your own value, which then appears in no"
                " argument list."
            ),
        ),
    )(reading)


locked_option: Decorator = request_option(
    "--locked",
    is_flag=True,
    help="Fail if the project is not locked or its lock is stale; the default in CI (CI=true).",
)
running_options = adding(environment_options, access_options, locked_option)
"""Decorator that adds the options of all commands that run something in an environment. The
decorated function receives their values as `request` and `given`."""


def _access(ports: tuple[str, ...], volumes: tuple[str, ...], variables: tuple[str, ...]) -> Access:
    """Return the access that the options grant. Raise `InvalidError` if an option is invalid."""
    from envbuilder.builds import access

    pairs = dict(_named("-e", access.variable, text, os.environ) for text in variables)
    result = access.Access(
        ports=tuple(_named("-p", access.port, text) for text in ports),
        volumes=tuple(_named("-v", access.volume, text, Path.cwd()) for text in volumes),
        variables={name: value for name, value in pairs.items() if value is not None},
        passed=tuple(name for name, value in pairs.items() if value is None),
    )
    access.require_distinct(result)
    return result


def _named(option: str, read_one: Callable[..., Any], text: str, *more: Any) -> Any:
    try:
        return read_one(text, *more)
    except InvalidError as error:
        raise InvalidError(f"{option}: {error.message}", error.hints) from error
