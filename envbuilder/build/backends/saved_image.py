"""Planned images that are written to disk instead of loaded into an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from envbuilder.build.backends.native import tool_versions
from envbuilder.containers.engine.client import LABEL
from envbuilder.core.errors import EnvbuilderError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from envbuilder.build.plan import Artifact, Plan
    from envbuilder.core.process import Completed
    from envbuilder.profiles.lock import Target


class SavedImage:
    """A planned image on disk."""

    def __init__(self, target: Target, made: Plan) -> None:
        self.target, self.plan = target, made

    def existing(self) -> Artifact | None:
        """Return the image if an earlier build wrote exactly this one and every byte is intact."""
        from envbuilder.containers.oci import archive

        label = f"{LABEL}fingerprint"
        try:
            for config, digest in archive.held(Path(self.plan.artifact.ref)):
                labels = (config.get("config") or {}).get("Labels") or {}
                if labels.get(label) == self.plan.fingerprint:
                    return msgspec.structs.replace(self.plan.artifact, digest=digest)
        except EnvbuilderError:
            return None
        return None

    def changed(self) -> str:
        """Return an empty string: an image that is not intact byte by byte is built again."""
        return ""

    def made_by(self) -> dict[str, str]:
        """Return the versions of programs that decide the image's bytes."""
        from envbuilder.containers.oci.layer import compressor

        return tool_versions(self.plan) | {"zstd": str(compressor()["zstd"])}

    def run_payload(
        self,
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> Completed:
        """Raise `InvalidError`: an image on disk cannot be run."""
        raise InvalidError(f"{self.plan.artifact.ref}: not in an engine", "Build without --output.")

    def become(self, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
        """Raise `InvalidError`: an image on disk cannot be run."""
        raise InvalidError(f"{self.plan.artifact.ref}: not in an engine", "Build without --output.")
