"""Our dropout layer against what dropout is, with a real torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from envbuilder import payload
from tests.conftest import ran, succeeded

PROGRAM = """
import json, torch
from envbuilder.payload.training import model

found = {"shares": {}}
values = torch.ones(1 << 21)
for share in (0.0, 0.25, 0.5, 255 / 256):
    layer = model.byte_dropout(torch, share)
    torch.manual_seed(1)
    dropped = layer(values)
    kept = dropped[dropped != 0]
    found["shares"][share] = float((dropped == 0).double().mean())
    assert torch.allclose(kept, torch.full_like(kept, 1 / (1 - share))), share
    torch.manual_seed(1)
    assert torch.equal(dropped, layer(values)), "not the seed's"
    assert share == 0 or not torch.equal(dropped, layer(values)), "always the same"
    assert torch.equal(layer.eval()(values), values)

# Elements that share one drawn number must not know of one another.
torch.manual_seed(2)
octets = (model.byte_dropout(torch, 0.5)(values) == 0).double().view(-1, 8)
found["means"] = octets.mean(0).tolist()
found["correlation"] = (torch.corrcoef(octets.T) - torch.eye(8)).abs().max().item()
within, after = octets[:-1], octets[1:]
found["in_turn"] = torch.corrcoef(torch.stack([within[:, 7], after[:, 0]]))[0, 1].abs().item()

# The gradient passes where the value passed, in any layout and size.
for shape in ((3, 5, 7, 11), (1,), (2, 3)):
    images = torch.randn(shape, dtype=torch.float64)
    if len(shape) == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    images.requires_grad_()
    result = model.byte_dropout(torch, 0.25)(images)
    assert (result.shape, result.stride(), result.dtype) == (
        images.shape, images.stride(), images.dtype)
    result.sum().backward()
    assert torch.allclose(images.grad * images.detach(), result.detach())
print(json.dumps(found))
"""


def test_masks_are_independent_and_as_frequent_as_asked(torch_python: Path) -> None:
    done = succeeded(
        ran(
            [str(torch_python), "-c", PROGRAM],
            env={**os.environ, "PYTHONPATH": str(Path(payload.__file__).parents[1])},
        )
    )
    found: dict[str, Any] = json.loads(done.stdout)
    # 2,097,152 draws: five standard deviations are 0.0017 at most, of an eighth 0.005.
    for share, dropped in found["shares"].items():
        assert abs(dropped - float(share)) < 0.0018
    for mean in found["means"]:
        assert abs(mean - 0.5) < 0.005
    assert found["correlation"] < 0.01
    assert found["in_turn"] < 0.01
