"""Two keys for tests of signatures."""

from __future__ import annotations

import pytest

from envbuilder.core.signatures import PrivateKey
from tests.support import signing


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return signing.read_key(signing.lay_key(tmp_path_factory.mktemp("k") / "key.pem"))


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return signing.read_key(signing.lay_key(tmp_path_factory.mktemp("k") / "key.pem", "ed25519"))
