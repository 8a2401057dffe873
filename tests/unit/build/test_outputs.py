"""An image on disk is reused only if it is the planned one, under the planned names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder.build.outputs import Output
from envbuilder.build.request import Request
from envbuilder.containers.engine.interface import LABEL
from envbuilder.containers.oci import archive
from tests.support.images import image
from tests.unit.build.test_publish import planned

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings


@pytest.fixture(params=["x.tar", "oci:x"])
def output(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def product(found: Settings, output: str, tag: str | None) -> Output:
    place = output.replace("x", str(found.data_dir / "x"))
    return Output(*planned(found, Request(output=place, tag=tag)), found)


def deliver(product: Output, scratch: Path, **config: Any) -> None:
    """What a build of the plan leaves."""
    (step, save) = product.plan.steps[-2:]
    labels = {f"{LABEL}fingerprint": product.plan.fingerprint}
    made = image(scratch, config={"Labels": labels}, **config)
    (manifest,) = made.index().manifests
    entries = (replace(manifest, annotations=archive.named(n)) for n in step.names)
    made.write_index(replace(made.index(), manifests=tuple(entries)))
    archive.save(made, Path(save.target))


def test_an_image_with_other_names_is_written_again(
    found: Settings, tmp_path: Path, output: str
) -> None:
    tagged = {tag: product(found, output, tag) for tag in ("me/a", "me/b", None)}
    assert [p.existing() for p in tagged.values()] == [None] * 3
    found.data_dir.mkdir()
    deliver(tagged["me/a"], tmp_path / "a")
    assert tagged["me/a"].existing() is not None
    assert tagged["me/b"].existing() is None
    # An archive has the names of one build, and a layout keeps those of earlier ones.
    assert (tagged[None].existing() is None) == output.endswith(".tar")
    deliver(tagged["me/b"], tmp_path / "b")
    assert tagged["me/b"].existing() is not None
    assert (tagged["me/a"].existing() is None) == output.endswith(".tar")


def test_an_image_with_other_layers_is_written_again(
    found: Settings, tmp_path: Path, output: str
) -> None:
    made = product(found, output, None)
    found.data_dir.mkdir()
    deliver(made, tmp_path / "a", rootfs={"type": "layers", "diff_ids": ["sha256:" + "0" * 64]})
    assert made.existing() is None
