"""What uv is offered from named indexes, without reading any."""

from __future__ import annotations

import pytest

from envbuilder.packages import upstream
from envbuilder.packages.python.uv import Offer
from tests.support.resolving import offer


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[Offer]:
    found = [offer()]
    monkeypatch.setattr(upstream, "offers", lambda *_: tuple(found))
    return found
