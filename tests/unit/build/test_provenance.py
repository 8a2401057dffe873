"""Provenance: statements that follow in-toto's and SLSA's specifications, the same bytes each time.

The schema below is written from the texts of in-toto's Statement v1 (with ResourceDescriptor and
DigestSet) and SLSA's Provenance v1.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packageurl import PackageURL

from envbuilder import __version__
from envbuilder.build import attestations, plan
from envbuilder.build import payload as pack
from envbuilder.core import resources
from envbuilder.profiles import lock as lockfile
from envbuilder.signatures.statement import Signed, Subject

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
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
LOCKS = {p.stem: lockfile.load(p) for p in (resources.profiles_dir() / "locks").glob("*.json")}
IMAGE = Subject(name="envbuilder/cpu:latest", digest={"sha256": "ef" * 32})


def planned(name: str = "cpu", number: int = 0, **facts: Any) -> plan.Plan:
    lock = LOCKS[name]
    target = lock.targets[number]
    return plan.Plan(
        **{
            "profile": name,
            "backend": "docker",
            "builder": "buildkit",
            "platform": target.platform,
            "python": target.python,
            "fingerprint": "12" * 32,
            "artifact": plan.Artifact(kind="image", ref="envbuilder/cpu:latest"),
            "lock": lockfile.lock_digest(lock),
            "base": plan.UsedBase(ref="python:3.11-slim", digest="sha256:" + "cd" * 32),
            "workdir": "/work",
            "files": (lock.tool(target.platform), *target.files),
            "steps": (),
            **facts,
        }
    )


def read(content: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(content)
    VALIDATOR.validate(document)
    return document


@pytest.mark.parametrize("name", sorted(n for n, lock in LOCKS.items() if lock.targets))
def test_a_statement_names_everything_that_went_in(name: str) -> None:
    made = planned(name)
    document = read(attestations.provenance(made, IMAGE, {}))
    definition = document["predicate"]["buildDefinition"]
    went_in = {d["name"]: d["digest"]["sha256"] for d in definition["resolvedDependencies"]}
    assert {f.basename: f.sha256 for f in made.files}.items() <= went_in.items()
    assert went_in["python:3.11-slim"] == "cd" * 32
    assert went_in[f"{name}.lock"] == made.lock
    assert went_in["payload.pyz"] == pack.payload_sha256()
    assert len(went_in) == len(made.files) + 3
    for dependency in definition["resolvedDependencies"]:
        if dependency["uri"].startswith("pkg:"):
            PackageURL.from_string(dependency["uri"])


def test_a_statement_says_what_was_asked_for_and_who_built_it() -> None:
    document = read(attestations.provenance(planned(), IMAGE, {"buildkit": "0.13.2"}))
    assert document["subject"] == [{"name": IMAGE.name, "digest": IMAGE.digest}]
    predicate = document["predicate"]
    assert predicate["buildDefinition"]["externalParameters"] == {
        "profile": "cpu",
        "platform": "linux/amd64",
        "python": "3.11",
        "backend": "docker",
        "builder": "buildkit",
        "baseImage": "python:3.11-slim",
    }
    assert predicate["buildDefinition"]["internalParameters"] == {"fingerprint": "12" * 32}
    assert predicate["runDetails"]["builder"]["version"] == {
        "envbuilder": __version__,
        "uv": "0.13.8",
        "buildkit": "0.13.2",
    }
    assert "metadata" not in predicate["runDetails"]


def test_accepted_signatures_are_recorded() -> None:
    signed = Signed(name="cpu.json", digest=f"sha256:{'ab' * 32}", type="urn:a", keyid="cd" * 32)
    document = read(attestations.provenance(planned(signatures=(signed,)), IMAGE, {}))
    parameters = document["predicate"]["buildDefinition"]["internalParameters"]
    assert parameters["signatures"] == [
        {"name": "cpu.json", "digest": signed.digest, "type": "urn:a", "keyid": signed.keyid}
    ]
    earlier = attestations.provenance(planned(), IMAGE, {})
    assert json.loads(attestations.also_signed(earlier, (signed,))) == document
    with pytest.raises(ValueError, match="not a provenance"):
        attestations.also_signed(b"{}", (signed,))


def test_the_same_build_gives_the_same_bytes() -> None:
    twice = [attestations.provenance(planned(), IMAGE, {}) for _ in range(2)]
    assert twice[0] == twice[1]


def test_a_venv_has_no_base_image_and_a_base_without_a_digest_is_named_only() -> None:
    document = read(attestations.provenance(planned(base=None), IMAGE, {}))
    assert "baseImage" not in document["predicate"]["buildDefinition"]["externalParameters"]
    unknown = plan.UsedBase(ref="base:latest", digest="")
    document = read(attestations.provenance(planned(base=unknown), IMAGE, {}))
    named = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"name": "base:latest", "uri": "pkg:docker/library/base@latest"} in named


def test_a_statement_can_be_about_a_registrys_manifest_as_well() -> None:
    content = attestations.provenance(planned(), IMAGE, {})
    manifest = Subject(name="registry/cpu", digest={"sha256": "99" * 32})
    both = attestations.also_about(content, manifest)
    assert [s["digest"]["sha256"][:2] for s in read(both)["subject"]] == ["ef", "99"]
    assert attestations.also_about(both, manifest) == both
    before, after = (json.loads(c)["predicate"] for c in (content, both))
    assert before == after


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"predicate": 1}', b'{"subject": [1]}', b"\xff"]
)
def test_only_our_statements_get_further_subjects(content: bytes) -> None:
    with pytest.raises(ValueError, match="statement"):
        attestations.also_about(content, IMAGE)
    foreign = json.loads(attestations.provenance(planned(), IMAGE, {}))
    foreign["predicate"]["buildDefinition"]["buildType"] = "https://example.org/other"
    with pytest.raises(ValueError, match="another builder"):
        attestations.also_about(json.dumps(foreign).encode(), IMAGE)


@given(name=st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_name_of_a_subject_survives(name: str) -> None:
    subject = Subject(name=name, digest={"sha256": "ef" * 32})
    document = read(attestations.provenance(planned(files=()), subject, {}))
    assert document["subject"][0]["name"] == name
