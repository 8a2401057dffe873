"""Documents of real builds: what they say is what is there, and nothing but them is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds.backends import integrity as seal
from tests.conftest import succeeded
from tests.integration.conftest import Cli
from tests.support.boms import problems


def built(cli: Cli, *arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(
        succeeded(cli("build", "--profile", "tiny", "--json", *arguments)).stdout
    )
    return result


def content(result: dict[str, Any]) -> dict[str, bytes]:
    return {name: Path(path).read_bytes() for name, path in result["documents"].items()}


@pytest.mark.slow
def test_a_venvs_documents_lie_beside_it_and_survive_its_verification(cli: Cli, tiny: Path) -> None:
    # A test before this one may have built it from a lock that says the same in other bytes.
    result = built(cli, "--backend", "venv", "--rebuild")
    prefix = Path(result["artifact"]["ref"])
    documents = content(result)
    bill = json.loads(documents["sbom"])
    assert problems(documents["sbom"]) is None
    assert [(c["name"], c["licenses"]) for c in bill["components"] if c["scope"] == "required"] == [
        ("setuptools", [{"license": {"acknowledgement": "declared", "id": "MIT"}}])
    ]
    statement = json.loads(documents["provenance"])
    assert statement["subject"] == [
        {
            "name": prefix.name,
            "digest": {"envbuilderTree": result["artifact"]["digest"].removeprefix("sha256:")},
        }
    ]
    seal.require_unchanged(prefix, "bin/python")

    # Reused: nothing is written; removed: written again, the same; built anew: the same.
    assert built(cli, "--backend", "venv")["status"] == "reused"
    Path(result["documents"]["sbom"]).unlink()
    assert content(built(cli, "--backend", "venv")) == documents
    again = built(cli, "--backend", "venv", "--rebuild")
    assert again["status"] == "built"
    assert content(again) == documents

    assert cli("clean", "--all", "--yes", "--profile", "tiny").returncode == 0
    assert not [p for p in result["documents"].values() if Path(p).exists()]


@pytest.mark.engine
@pytest.mark.parametrize("builder", [pytest.param("buildkit", marks=pytest.mark.soak), "layers"])
def test_an_images_documents_name_what_its_base_holds(
    cli: Cli, tiny: Path, base_image: str, docker_client: Any, builder: str
) -> None:
    how = ("--backend", "docker", "--builder", builder, "--base-image", base_image)
    result = built(cli, *how, "--rebuild")
    try:
        documents = content(result)
        assert problems(documents["sbom"]) is None
        purls = {c["purl"] for c in json.loads(documents["sbom"])["components"]}
        assert "pkg:pypi/setuptools@80.9.0" in purls
        assert any(p.startswith("pkg:deb/debian/base-files@") for p in purls)
        statement = json.loads(documents["provenance"])
        subject = statement["subject"][0]["digest"]["sha256"]
        assert f"sha256:{subject}" == result["artifact"]["digest"]
        definition = statement["predicate"]["buildDefinition"]
        assert definition["externalParameters"]["baseImage"] == base_image
        versions = statement["predicate"]["runDetails"]["builder"]["version"]
        assert result["made_by"]
        assert result["made_by"].items() <= versions.items()
        image = docker_client.images.get(result["artifact"]["ref"])
        went_in = {d["name"]: d.get("digest") for d in definition["resolvedDependencies"]}
        assert went_in["tiny.lock"] == {"sha256": image.labels["io.envbuilder.lock"]}
        assert definition["externalParameters"]["builder"] == builder
        assert content(built(cli, *how)) == documents
    finally:
        cleaned = cli("clean", "--all", "--yes", "--profile", "tiny")
    stays = [path for path in result["documents"].values() if Path(path).exists()]
    assert not stays, cleaned.stdout + cleaned.stderr
