"""Write the SBOM of an environment: a CycloneDX 1.6 document, the same bytes each time.

CycloneDX rather than SPDX, because it can express a file's hash, build-time components, base images
and licences that are not SPDX expressions, and its library writes and validates the format.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cyclonedx.model import Property
    from cyclonedx.model.component import Component

    from envbuilder.build.attestation import components

MEDIA_TYPE = "application/vnd.cyclonedx+json"
SUFFIX = ".sbom.cdx.json"
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:envbuilder:sbom")
"""Namespace of serial numbers, which are derived from the document's content."""


def document(
    name: str, parts: Iterable[components.Component], facts: Mapping[str, str] | None = None
) -> bytes:
    """Return a CycloneDX document: the components of `name`, and facts about it.

    It contains no timestamp or random number; its serial number is derived from its content.
    """
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output.json import JsonV1Dot6

    # The library sorts components by comparing many fields: sorted ones need few comparisons.
    ordered = sorted(parts, key=lambda part: (part.kind, part.name, part.version, part.purl))
    tool = Component(name="envbuilder", type=ComponentType.APPLICATION)
    root = Component(
        name=name, type=ComponentType.APPLICATION, bom_ref=f"urn:envbuilder:environment:{name}"
    )
    bom = Bom(
        metadata=BomMetaData(
            tools=ToolRepository(components=[tool]),
            component=root,
            properties=_properties((facts or {}).items()),
        ),
        components=[_component(part) for part in ordered],
    )
    bom.register_dependency(root, bom.components)
    data = json.loads(JsonV1Dot6(bom).output_as_string())
    del data["metadata"]["timestamp"], data["serialNumber"]
    content = hashlib.sha256(_encode(data)).hexdigest()
    data["serialNumber"] = uuid.uuid5(NAMESPACE, content).urn
    return _encode(data)


def _encode(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _component(part: components.Component) -> Component:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from cyclonedx.model.license import LicenseAcknowledgement
    from packageurl import PackageURL

    factory, declared = LicenseFactory(), LicenseAcknowledgement.DECLARED
    if len(part.licences) == 1:
        licences = [factory.make_from_string(part.licences[0], license_acknowledgement=declared)]
    else:
        # CycloneDX allows a single expression; several licences have to be given as names.
        licences = [factory.make_with_name(t, acknowledgement=declared) for t in part.licences]
    return Component(
        type=ComponentType(part.kind),
        name=part.name,
        version=part.version or None,
        bom_ref=part.purl,
        purl=PackageURL.from_string(part.purl),
        scope=ComponentScope.REQUIRED if part.installed else ComponentScope.EXCLUDED,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else [],
        licenses=licences,
        properties=_properties(part.facts),
    )


def _properties(facts: Iterable[tuple[str, str]]) -> list[Property]:
    from cyclonedx.model import Property

    return [Property(name=f"envbuilder:{name}", value=value) for name, value in facts]
