"""What programs in a container download is still there the next time."""

from __future__ import annotations

from envbuilder.build.backends import caches
from envbuilder.containers.engine.container import Volume


def test_a_user_has_one_cache_for_all_projects() -> None:
    models = Volume(source="models", target="/models")
    (_, cache) = caches.with_cache([models], 1000)
    assert cache == Volume(source="envbuilder-cache-1000", target="/tmp/.cache")
    assert caches.with_cache([], 1001)[0].source == "envbuilder-cache-1001"
    mine = Volume(source="/srv/cache", target=cache.target)
    assert caches.with_cache([mine], 1000) == (mine,)


def test_programs_find_it_unless_another_is_stated() -> None:
    variables = caches.variables(())
    assert variables["HF_HOME"] == "/tmp/.cache/huggingface"
    assert all(value.startswith("/tmp/.cache") for value in variables.values())
    assert {*variables} - {*caches.variables({"HF_HOME", "A"})} == {"HF_HOME"}
