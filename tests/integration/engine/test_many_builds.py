"""Many images at once with one store, one cache of layers and one engine: nothing is lost."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.containers.engine.interface import LABEL
from tests.integration.conftest import locked
from tests.support import small_profiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def name(docker_client: Any) -> Iterator[str]:
    """What the names of the profiles begin with; their images are gone in the end."""
    made = f"many-{secrets.token_hex(4)}"
    yield made
    for image in docker_client.api.images(filters={"label": [f"{LABEL}profile"]}):
        if image["Labels"][f"{LABEL}profile"].startswith(made):
            docker_client.images.remove(image["Id"], force=True, noprune=True)


@pytest.mark.parametrize(
    "copies",
    [pytest.param(2, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.soak)],
    ids=lambda copies: f"{copies * small_profiles.COUNT} builds",
)
def test_many_images_at_once_share_one_store_and_one_engine(
    tmp_path: Path,
    session_environment: dict[str, str],
    base_image: str,
    docker_client: Any,
    name: str,
    copies: int,
) -> None:
    wheels = small_profiles.lay(tmp_path, name)
    environment = {**session_environment, "PIP_FIND_LINKS": str(wheels)}
    for profile in small_profiles.names(name):
        locked(tmp_path, profile, environment)
    environment["ENVBUILDER_CACHE_DIR"] = str(tmp_path / "cache")
    # Each folder of records gets each profile from two builds at the same time.
    environments = [
        {**environment, "ENVBUILDER_DATA_DIR": str(tmp_path / f"data-{copy // 2}")}
        for copy in range(copies)
    ]
    options = ("--builder", "layers", "--base-image", base_image)
    builds = small_profiles.build_at_once(tmp_path, environments, *options, prefix=name)
    assert [b for b in builds if b.code != 0] == []
    files = small_profiles.locked_files(tmp_path, name)
    small_profiles.require_whole(tmp_path / "cache", files)

    for profile in small_profiles.names(name):
        built = [json.loads(b.stdout)["artifact"] for b in builds if b.profile == profile]
        assert len({artifact["digest"] for artifact in built}) == 1, "the same bytes each time"
        number = profile.rpartition("-")[2]
        script = f"import small_common, small_{number}; assert small_{number}.HERE"
        argv = ["python", "-c", script]
        docker_client.containers.run(built[0]["ref"], argv, remove=True, network_disabled=True)
