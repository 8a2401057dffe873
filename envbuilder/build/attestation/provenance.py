"""Write an artifact's provenance: an in-toto Statement v1 with SLSA Provenance v1.

The statement is unsigned and self-asserted: it records what envbuilder did on a machine that is not
a trusted build platform (SLSA Build L1). Its claims can still be verified, because the same build
gives the same digest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder import __version__
from envbuilder.build import payload
from envbuilder.build.attestation import components
from envbuilder.build.plan import project_of
from envbuilder.signatures import statement as statement_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.build.plan import Plan
    from envbuilder.signatures.statement import Signed

MEDIA_TYPE = statement_format.PAYLOAD_TYPE
SUFFIX = ".provenance.json"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:envbuilder:build:v1"
"""docs/explanation/supply-chain.md describes the parameters."""
BUILDER = "urn:envbuilder:local:v1"
"""envbuilder on a local machine."""


Subject = statement_format.Subject
"""An artifact: its name, and its digests by in-toto algorithm name."""


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
        "_type": statement_format.TYPE,
        "subject": [{"name": s.name, "digest": s.digest} for s in subjects],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _parameters(plan),
                "internalParameters": {"fingerprint": plan.fingerprint, **_signatures(plan)},
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
    document = _parsed(content)
    if subject.digest not in [s["digest"] for s in document["subject"]]:
        document["subject"].append({"name": subject.name, "digest": subject.digest})
    return _encode(document)


def also_signed(content: bytes, signatures: Sequence[Signed]) -> bytes:
    """Return an envbuilder statement that records accepted signatures of its inputs.

    Raise `ValueError` as `also_about` does.
    """
    document = _parsed(content)
    definition = document["predicate"]["buildDefinition"]
    parameters = {"signatures": msgspec.to_builtins(signatures)}
    definition["internalParameters"] = {**definition.get("internalParameters", {}), **parameters}
    return _encode(document)


def _parsed(content: bytes) -> dict[str, Any]:
    """Return a statement by envbuilder; raise `ValueError` for anything else."""
    try:
        document: dict[str, Any] = json.loads(content)
        definition = document["predicate"]["buildDefinition"]
        ours = definition["buildType"] == BUILD_TYPE
        _ = [s["digest"] for s in document["subject"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a provenance statement: {error}") from error
    if not ours:
        raise ValueError("a provenance statement of another builder")
    return document


def _encode(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _signatures(plan: Plan) -> dict[str, Any]:
    """Return which signatures of the inputs were required and accepted; nothing if none were."""
    accepted = [msgspec.to_builtins(signed) for signed in plan.signatures]
    return {"signatures": accepted} if accepted else {}


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
    if project := project_of(plan):
        resources.append(_resource("project files", "urn:envbuilder:project", project.digest))
    resources.append(_resource("payload.pyz", "urn:envbuilder:payload", payload.payload_sha256()))
    return resources


def _resource(name: str, uri: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "uri": uri, **({"digest": {"sha256": sha256}} if sha256 else {})}


def _versions(plan: Plan, further: Mapping[str, str]) -> dict[str, str]:
    tools = {f.name: f.version for f in plan.files if f.kind == "tool"}
    return {"envbuilder": __version__, **tools, **further}
