"""What programs in a container download is still there the next time."""

from __future__ import annotations

import re
from pathlib import Path

from envbuilder.build.backends import caches
from envbuilder.containers.engine.container import Volume


def test_each_project_of_each_user_has_a_cache_of_its_own() -> None:
    models = Volume(source="models", target="/models")
    (_, cache) = caches.with_cache([models], 1000, None)
    assert cache == Volume(source="envbuilder-cache-1000", target="/tmp/.cache")
    pairs = [(uid, f) for uid in (1000, 1001) for f in (None, Path("/a/x"), Path("/b/x"))]
    sources = [caches.with_cache([], *pair)[0].source for pair in pairs]
    assert len({*sources}) == 6
    assert sources == [caches.with_cache([], *pair)[0].source for pair in pairs]
    assert re.fullmatch("envbuilder-cache-1000-[0-9a-f]{12}", sources[1])
    mine = Volume(source="/srv/cache", target=cache.target)
    assert caches.with_cache([mine], 1000, None) == (mine,)


def test_programs_find_it_unless_another_is_stated() -> None:
    variables = caches.variables(())
    assert variables["HF_HOME"] == "/tmp/.cache/huggingface"
    assert all(value.startswith("/tmp/.cache") for value in variables.values())
    assert {*variables} - {*caches.variables({"HF_HOME", "A"})} == {"HF_HOME"}
