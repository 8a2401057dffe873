"""Prepare the payload's start: in an environment, built if missing, or in what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.build import pipeline
from envbuilder.core.errors import InvalidError
from envbuilder.profiles.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from envbuilder.build.request import Request
    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Expected

    Started = tuple[Expected, dict[str, Any], Callable[..., Completed]]
    """Expectations of the device, facts for the report, and a function that starts the payload."""


def prepare(
    request: Request,
    executable: Path | None,
    settings: Settings,
    progress: Progress,
    *,
    inherit: bool = False,
    image: Path | None = None,
    require: Callable[[str, str, Expected], None] = lambda profile, backend, expected: None,
) -> Started:
    """Select the environment of a request and build it if missing, or use what is there.

    That is `executable`, an interpreter, or `image`, a file of Apptainer's.

    `require` receives profile, backend and expectations, and may raise before anything is built.
    Raises `InvalidError` if options contradict each other.
    """
    if executable is not None and (request.backend or request.base_image or request.python):
        raise InvalidError("--python checks an interpreter as it is; leave out the build options")
    if inherit and executable is None:
        raise InvalidError(
            "--inherit-environment needs --python: it passes your variables to that interpreter",
            "Add --python.",
        )
    if image is not None and (request.backend or executable is not None):
        raise InvalidError("--sif is an image that is there: leave out --backend and --python")
    if image is not None:
        from envbuilder.verify import sif

        expects, facts, start = sif.prepare(image, request, settings, progress)
    elif executable is not None:
        from envbuilder.verify import external

        expects, facts, start = external.prepare(
            executable, request, settings, progress, inherit=inherit
        )
    else:
        return _built(request, settings, progress, require)
    require(facts["profile"], facts["backend"], expects)
    return expects, facts, start


def _built(
    request: Request,
    settings: Settings,
    progress: Progress,
    require: Callable[[str, str, Expected], None],
) -> Started:
    build = pipeline.prepare(request, settings, progress, running=True)
    profile, environment, artifact = build.profile, build.environment, build.plan.artifact
    expected = profile.expected(build.plan.python)
    require(profile.name, build.backend, expected)
    if not environment.changed():  # else starting the payload fails, and the report states why
        artifact = pipeline.finish(build).result.artifact
    facts = {
        "profile": profile.name,
        "backend": build.backend,
        "artifact": msgspec.to_builtins(artifact),
        "fingerprint": build.plan.fingerprint,
        "host": msgspec.to_builtins(build.host),
    }
    return expected, facts, environment.run_payload


def require_torch(what: str, profile: str, expected: Expected) -> None:
    """Raise `InvalidError` for what measures PyTorch alone, on a profile with another framework."""
    if expected.framework != "torch":
        raise InvalidError(
            f"{what} measures PyTorch alone, and profile '{profile}' has"
            f" {FRAMEWORKS[expected.framework].title}",
            "Name a profile with PyTorch: envbuilder profiles",
        )
