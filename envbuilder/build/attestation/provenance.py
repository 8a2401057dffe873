"""Write an artifact's provenance: an in-toto Statement v1 with SLSA Provenance v1.

The statement is unsigned and self-asserted: it records what envbuilder did on a machine that is not
a trusted build platform (SLSA Build L1). Its claims can still be verified, because the same build
gives the same digest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder import __version__
from envbuilder.build import payload
from envbuilder.build.attestation import components

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.build.plan import Plan

MEDIA_TYPE = "application/vnd.in-toto+json"
SUFFIX = ".provenance.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:envbuilder:build:v1"
"""docs/explanation/supply-chain.md describes the parameters."""
BUILDER = "urn:envbuilder:local:v1"
"""envbuilder on a local machine."""


class Subject(Struct, frozen=True, kw_only=True):
    """An artifact: its name, and its digests by in-toto algorithm name."""

    name: str
    digest: dict[str, str]


def statement(
    plan: Plan,
    subjects: Sequence[Subject],
    *,
    versions: Mapping[str, str] | None = None,
) -> bytes:
    """Return the statement that `plan` made `subjects`.

    `versions` are those of further builders, such as BuildKit. The same build gives the same bytes,
    because nothing in it is specific to one run. Raise `ValueError` for a subject without a digest.
    """
    if not subjects or not all(s.digest for s in subjects):
        raise ValueError("each subject of a statement needs a digest")
    document = {
        "_type": STATEMENT,
        "subject": [{"name": s.name, "digest": s.digest} for s in subjects],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _parameters(plan),
                "internalParameters": {"fingerprint": plan.fingerprint},
                "resolvedDependencies": dependencies(plan),
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": _versions(plan, versions or {})},
            },
        },
    }
    return _encode(document)


def also_about(content: bytes, subject: Subject) -> bytes:
    """Return an envbuilder statement with one more subject, such as a pushed manifest.

    Raise `ValueError` for anything but an envbuilder statement.
    """
    try:
        document = json.loads(content)
        ours = document["predicate"]["buildDefinition"]["buildType"] == BUILD_TYPE
        digests = [s["digest"] for s in document["subject"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a provenance statement: {error}") from error
    if not ours:
        raise ValueError("a provenance statement of another builder")
    if subject.digest not in digests:
        document["subject"].append({"name": subject.name, "digest": subject.digest})
    return _encode(document)


def _encode(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _parameters(plan: Plan) -> dict[str, str]:
    return {
        "profile": plan.profile,
        "platform": plan.platform,
        "python": plan.python,
        "backend": plan.backend,
        "builder": plan.builder,
        **({"baseImage": plan.base.ref} if plan.base else {}),
    }


def dependencies(plan: Plan) -> list[dict[str, Any]]:
    """Return all inputs of a build as in-toto resource descriptors."""
    resources: list[dict[str, Any]] = []
    if plan.lock:
        resources.append(
            _resource(f"{plan.profile}.lock", f"urn:envbuilder:lock:{plan.profile}", plan.lock)
        )
    if plan.conda_lock:
        name, uri = f"{plan.profile}.conda.lock", f"urn:envbuilder:conda-lock:{plan.profile}"
        resources.append(_resource(name, uri, plan.conda_lock))
    if plan.base:
        base = components.of_base(plan.base.ref, plan.base.digest, plan.platform)
        resources.append(_resource(base.name, base.purl, base.sha256))
    resources += [_resource(f.basename, components.file_purl(f), f.sha256) for f in plan.files]
    resources.append(_resource("payload.pyz", "urn:envbuilder:payload", payload.payload_sha256()))
    return resources


def _resource(name: str, uri: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "uri": uri, **({"digest": {"sha256": sha256}} if sha256 else {})}


def _versions(plan: Plan, further: Mapping[str, str]) -> dict[str, str]:
    tools = {f.name: f.version for f in plan.files if f.kind == "tool"}
    return {"envbuilder": __version__, **tools, **further}
