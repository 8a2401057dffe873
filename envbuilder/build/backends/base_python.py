"""Check the Python of a base image before anything is fetched for the image on top of it.

In a layout, it is read from the files. In an engine, the base is run as the build would run it; if
that gives no answer, the build itself fails on a wrong Python.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.build import conventions
from envbuilder.build.plan import BaseCheck
from envbuilder.containers.engine import connection
from envbuilder.containers.engine.container import Container
from envbuilder.containers.oci import rootfs
from envbuilder.core.errors import ToolError, VerifyError

if TYPE_CHECKING:
    from envbuilder.build.plan import Plan
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Lock, Target

_SECONDS = 60
# Looks for Python as the Dockerfile does.
_QUERY = (
    "python=$(command -v python{minor} || command -v python3) || {{ echo none; exit 0; }};"
    """ exec "$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])'"""
)


def check(lock: Lock, target: Target, ref: str, layout: str = "") -> BaseCheck | None:
    """Return what to check; None if the image gets its Python from the lock's packages.

    `layout` is the folder of the base's OCI layout; empty if an engine has the base, or will.
    """
    interpreters = re.compile(rf"python{re.escape(target.python)}(-minimal)?")
    if any(interpreters.fullmatch(deb.name) for deb in target.of_kind("deb")):
        return None
    locked = (t.python for t in lock.targets if t.platform == target.platform and t.base)
    return BaseCheck(ref=ref, layout=layout, pythons=tuple(locked))


def require(plan: Plan, settings: Settings, progress: Progress) -> None:
    """Raise `BuildError` if the plan's base has another Python than the locked files need.

    A base that the engine does not have is pulled for this check.
    """
    if plan.base_check is None:
        return
    if plan.base_check.layout:
        version = _of_layout(plan, plan.base_check, settings, progress)
    else:
        version = _of_engine(plan, plan.base_check, progress)
    if version is not None and version != plan.python:
        raise rootfs.OtherPythonError(plan.python, version, plan.base_check.pythons)


def _of_layout(
    plan: Plan, base_check: BaseCheck, settings: Settings, progress: Progress
) -> str | None:
    """Return the Python of the layout; None if it is the right one."""
    from envbuilder.build.image import base_layers, config
    from envbuilder.build.image.layer_cache import LayerCache

    cache = LayerCache(settings.cache_dir / "layers", progress.note, fresh=False)
    base = base_layers.read(base_check.layout, plan.platform, cache)
    try:
        base.root.python(plan.python, config.environment(base.config)["PATH"])
    except rootfs.OtherPythonError as error:
        return error.version
    return None


def _of_engine(plan: Plan, base_check: BaseCheck, progress: Progress) -> str | None:
    """Return the Python X.Y that the build would use, or that there is none; None if unknown."""
    from envbuilder.build.image import base as image_base

    with connection.connect() as engine:
        image = engine.image(base_check.ref)
        if image is None:
            image = image_base.pulled(engine, base_check.ref, plan.platform)
        with progress.task("check the base image's Python"):
            try:
                output = _output(engine, image.id, plan)
            except (VerifyError, ToolError):
                return None
    answer = re.fullmatch(r"([0-9]+\.[0-9]+|none)\s*", output)
    if answer is None:
        return None
    return "none on its PATH" if answer[1] == "none" else answer[1]


def _output(engine: Engine, identity: str, plan: Plan) -> str:
    """Return the output of a container of the base."""
    container = Container(
        image=identity,
        entrypoint=("/bin/sh",),
        arguments=("-c", _QUERY.format(minor=plan.python)),
        platform=plan.platform,
        user=conventions.USER,
        limits=engine.limits,
    )
    return engine.run(container, lambda _: None, _SECONDS).stdout
