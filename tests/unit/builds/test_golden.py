"""What is rendered, byte for byte: every shipped profile, every target it has.

After a wanted change: `make golden`, then read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.builds import render
from envbuilder.core import resources, settings
from envbuilder.core.errors import InvalidError
from envbuilder.packages import interpreters
from envbuilder.packages.conda import lock as conda
from envbuilder.packages.debian import suite
from envbuilder.profiles import lock as lockfile, profile as profiles
from envbuilder.project.release import bases
from tests.support import project_layers
from tests.support.repositories import lay
from tests.support.shipped import FOLDERS, shipped_lock, shipped_profile

NAMES = profiles.names(FOLDERS)
LOCKED = [n for n in NAMES if shipped_lock(n).targets]


def rendered(
    name: str, target: render.RenderTarget, found: settings.Settings
) -> tuple[render.RenderedFile, ...]:
    profile = shipped_profile(name)
    lock = shipped_lock(name)
    image = profile.image_python
    python = image if target in render.IMAGE_TARGETS else profile.python.default
    urls = render.source_urls(lock, found)
    urls |= conda.channel_urls(profile.conda.channels, found)
    return tuple(render.render(profile, lock, target, python, urls))


@pytest.mark.parametrize("target", render.TARGETS)
@pytest.mark.parametrize("name", LOCKED)
def test_rendered_files_are_the_golden_ones(
    name: str,
    target: render.RenderTarget,
    repository: Path,
    found: settings.Settings,
    rewrite_golden: bool,
) -> None:
    folder = repository / "tests/golden" / name / target
    try:
        files = rendered(name, target, found)
    except InvalidError:
        backend = "conda" if target == "conda" else "docker"
        assert backend not in shipped_profile(name).backends
        return
    # The payload changes with its sources; its own tests look at it.
    files = tuple(f for f in files if not f.name.endswith("payload.pyz"))
    for f in files:
        assert resources.MARK.encode() in f.content
    if place := render.IMAGE_TARGETS.get(target):
        # Beside these files stands all that the target `dockerfile` has.
        image = {f.name: f.content for f in files if f.name.startswith(place)}
        alone = rendered(name, "dockerfile", found)
        assert image == {place + f.name: f.content for f in alone if f.name != "payload.pyz"}
        files = tuple(f for f in files if f.name not in image)
    files = tuple(f for f in files if f.name != "compile_bytecode.py")  # a module of the product
    if rewrite_golden:
        lay(folder, {file.name: file.content for file in files})
    assert {f.name: f.content.decode() for f in files} == {
        p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()
    }


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("cpu", ""),
        ("cuda", "--gpus all "),
        ("xpu", "--device /dev/dri $(stat -c --group-add=%g /dev/dri/renderD*) "),
    ],
)
def test_a_dockerfile_says_how_to_run_it_and_what_it_lacks(
    name: str, device: str, found: settings.Settings
) -> None:
    (file, *_) = rendered(name, "dockerfile", found)
    head = file.content.decode().partition("\nARG ")[0]
    assert f"#   docker run --rm {device}--shm-size 1g \\\n" in head
    assert '-v "$PWD:/work"' in head
    assert "The project's code is not in it" in head
    assert ("torch.compile lacks a compiler" in head) == (name != "cpu")


def test_a_dockerfile_with_the_projects_files_starts_its_command(
    found: settings.Settings, tmp_path: Path
) -> None:
    layer = project_layers.lay(tmp_path, {"serve.py": b""}, ports=(8000,))
    lock = shipped_lock("cpu")
    urls = render.source_urls(lock, found)
    file = next(
        render.render(shipped_profile("cpu"), lock, "dockerfile", "3.11", urls, project=layer)
    )
    head = file.content.decode().partition("\nARG ")[0]
    assert "\\\n#     -p 127.0.0.1:8000:8000 cpu\n" in head
    assert "code is not in it" not in head


def test_an_interpreter_of_the_lock_in_a_dockerfile(
    repository: Path, found: settings.Settings, rewrite_golden: bool
) -> None:
    """As a project with Python 3.10 gets it on the profile `cpu`."""
    profile = shipped_profile("cpu")
    lock = shipped_lock("cpu")
    profile = replace(profile, base=bases(profile, ["3.10"], managed=False))
    targets = []
    for target in (t for t in lock.targets if t.python == "3.11"):
        other = replace(target, python="3.10")
        base = suite.base(profile, target.platform, "3.10", target.of_kind("deb"))
        interpreter = interpreters.of_target(other, None)
        targets.append(replace(other, base=base, interpreter=interpreter))
    lock = replace(lock, targets=tuple(targets))
    urls = render.source_urls(lock, found)
    first = next(render.render(profile, lock, "dockerfile", "3.10", urls))
    path = repository / "tests/golden/python310/dockerfile/Dockerfile"
    if rewrite_golden:
        lay(path.parent, {path.name: first.content})
    assert first.content.decode() == path.read_text()


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(LOCKED)))
def test_an_unlocked_profile_says_why(name: str) -> None:
    lock = shipped_lock(name)
    assert lock.state == "unlocked"
    assert lock.why
    with pytest.raises(InvalidError, match="not locked"):
        lockfile.require_usable(shipped_profile(name), lock)
