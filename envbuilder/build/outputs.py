"""Outputs: the ends of a plan that deliver its image to a file or a registry, not to an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.build.plan import Push, Save, names_of, tool_versions
from envbuilder.containers.engine.interface import LABEL
from envbuilder.core import console
from envbuilder.core.errors import EnvbuilderError

if TYPE_CHECKING:
    from envbuilder.build.plan import Artifact, Plan
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Target

_Digests = tuple[str, str | None]
"""Of an image's configuration and of its manifest, if that is known."""


class Output:
    """An image that a plan saves, pushes, or both; nothing can be run in it."""

    def __init__(
        self,
        target: Target,
        plan: Plan,
        settings: Settings,
        made_by: dict[str, str] | None = None,
    ) -> None:
        """`made_by`: versions of what makes the image; None: envbuilder itself does."""
        self.target, self.plan, self._settings = target, plan, settings
        self._made_by = made_by

    def existing(self) -> Artifact | None:
        """Return the image if an earlier build delivered exactly this one wherever the plan does.

        Raises `BuildError` if it is to be pushed and may not be, so that the build does not fail
        at its end.
        """
        digests: list[_Digests | None] = []
        for step in self.plan.steps:
            if isinstance(step, Push):
                digests.append(_pushed(step, self.plan.fingerprint, self._settings))
            elif isinstance(step, Save):
                digests.append(_saved(step, self.plan))
        if not digests or not all(digests):
            return None
        assert digests[0] is not None, "all were found"
        return self.plan.artifact.identified(*digests[0])

    def changed(self) -> str:
        """Return an empty string: an image that is not intact byte by byte is built again."""
        return ""

    def made_by(self) -> dict[str, str]:
        """Return the versions of programs that decide the image's bytes."""
        from envbuilder.containers.oci.layer import compressor

        if self._made_by is not None:
            return self._made_by
        return tool_versions(self.plan) | {"zstd": str(compressor()["zstd"])}

    def restore_names(self) -> None:
        """Do nothing: an image without the names is no `existing` one."""


def _pushed(step: Push, fingerprint: str, settings: Settings) -> _Digests | None:
    """Return the image's digests if its tag names what a build here pushed; else None."""
    from envbuilder.build.attestation import publish

    with console.progress().task(f"look up {step.ref}"):
        record = publish.pushed_record(step.ref, fingerprint, settings)
        if record is None:
            publish.require_allowed(step.ref, settings)
            return None
    return record.digest, record.manifest_digest


def _saved(step: Save, plan: Plan) -> _Digests | None:
    """Return the digests of the plan's image if the file or folder has it under the plan's names.

    Every byte is intact then. A folder may have it under further names, and other images, too.
    """
    from envbuilder.containers.oci import archive

    def is_planned(config: dict[str, Any]) -> bool:
        labels = (config.get("config") or {}).get("Labels") or {}
        return bool(labels.get(f"{LABEL}fingerprint") == plan.fingerprint)

    names = {archive.named(name)[archive.NAME] for name in names_of(plan)}
    target = Path(step.target)
    try:
        for image in archive.held(target, is_planned):
            if image.names == names or (target.is_dir() and image.names > names):
                return image.digest, image.manifest
    except EnvbuilderError:
        return None
    return None
