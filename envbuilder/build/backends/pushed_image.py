"""Planned images that are pushed to a registry instead of loaded into an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.build.backends.saved_image import SavedImage

if TYPE_CHECKING:
    from envbuilder.build.plan import Artifact, Plan
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Target


class PushedImage(SavedImage):
    """A planned image in a registry, and possibly also on disk."""

    def __init__(self, target: Target, made: Plan, ref: str, settings: Settings) -> None:
        super().__init__(target, made)
        self._ref, self._settings = ref, settings

    def existing(self) -> Artifact | None:
        """Return the image if an earlier build pushed exactly this one and its tag still names it.

        Raises `BuildError` if not, and it may not be pushed now: better known before a build than
        after it.
        """
        from envbuilder.build.attestation import publish

        record = publish.pushed_record(self._ref, self.plan.fingerprint, self._settings)
        if record is None:
            publish.require_allowed(self._ref, self._settings)
            return None
        if self.plan.artifact.kind != "registry":
            return super().existing()
        return replace(self.plan.artifact, digest=record.digest)
