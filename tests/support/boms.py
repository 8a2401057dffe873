"""What the official schema of CycloneDX 1.6 has against a document."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclonedx.validation.json import JsonStrictValidator


@cache
def _validator() -> JsonStrictValidator:
    # Imported here: the grammars of its formats take seconds, in each process that collects tests.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6)


def problems(document: bytes) -> Any:
    """Return what is wrong with it; None for a valid document."""
    return _validator().validate_str(document.decode())
