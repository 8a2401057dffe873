"""What programs in a container download is still there the next time."""

from __future__ import annotations

import re
from pathlib import Path

from envbuilder.build.backends import container
from envbuilder.containers.engine.container import Volume


def test_each_project_of_each_user_has_a_cache_of_its_own() -> None:
    models = Volume(source="models", target="/models")
    (_, cache) = container.with_cache([models], 1000, None)
    assert cache == Volume(source="envbuilder-cache-1000", target="/tmp/.cache")
    pairs = [(uid, f) for uid in (1000, 1001) for f in (None, Path("/a/x"), Path("/b/x"))]
    sources = [container.with_cache([], *pair)[0].source for pair in pairs]
    assert len({*sources}) == 6
    assert sources == [container.with_cache([], *pair)[0].source for pair in pairs]
    assert re.fullmatch("envbuilder-cache-1000-[0-9a-f]{12}", sources[1])
    mine = Volume(source="/srv/cache", target=cache.target)
    assert container.with_cache([mine], 1000, None) == (mine,)
