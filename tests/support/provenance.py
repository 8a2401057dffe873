"""The schema of a provenance statement: SLSA 1 in an in-toto statement."""

from __future__ import annotations

import json
from typing import Any

TEXT = {"type": "string", "minLength": 1}
URI = {"type": "string", "pattern": r"^[a-z][a-z0-9+.-]*:[^\s]+$"}
TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}
DIGESTS = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": TEXT,
    "properties": {"sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
}
RESOURCE = {
    "type": "object",
    "additionalProperties": False,
    "anyOf": [{"required": ["uri"]}, {"required": ["digest"]}, {"required": ["content"]}],
    "properties": {
        "name": TEXT,
        "uri": URI,
        "digest": DIGESTS,
        "content": TEXT,
        "downloadLocation": URI,
        "mediaType": TEXT,
        "annotations": {"type": "object"},
    },
}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["_type", "subject", "predicateType", "predicate"],
    "properties": {
        "_type": {"const": "https://in-toto.io/Statement/v1"},
        "predicateType": {"const": "https://slsa.dev/provenance/v1"},
        "subject": {
            "type": "array",
            "minItems": 1,
            "items": {"allOf": [RESOURCE, {"required": ["digest"]}]},
        },
        "predicate": {
            "type": "object",
            "additionalProperties": False,
            "required": ["buildDefinition", "runDetails"],
            "properties": {
                "buildDefinition": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["buildType", "externalParameters"],
                    "properties": {
                        "buildType": URI,
                        "externalParameters": {"type": "object", "additionalProperties": TEXT},
                        "internalParameters": {
                            "type": "object",
                            "properties": {"signatures": {"type": "array"}},
                            "additionalProperties": {"type": ["string", "array"]},
                        },
                        "resolvedDependencies": {"type": "array", "items": RESOURCE},
                    },
                },
                "runDetails": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["builder"],
                    "properties": {
                        "builder": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["id"],
                            "properties": {
                                "id": URI,
                                "version": {"type": "object", "additionalProperties": TEXT},
                                "builderDependencies": {"type": "array", "items": RESOURCE},
                            },
                        },
                        "metadata": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "invocationId": TEXT,
                                "startedOn": TIME,
                                "finishedOn": TIME,
                            },
                        },
                        "byproducts": {"type": "array", "items": RESOURCE},
                    },
                },
            },
        },
    },
}


def read(content: bytes) -> dict[str, Any]:
    """Read a statement that follows the schema."""
    # Imported here, and below `tests/` only where it is used: its formats' grammars take seconds.
    from jsonschema import Draft202012Validator

    document: dict[str, Any] = json.loads(content)
    Draft202012Validator(SCHEMA).validate(document)
    return document
