"""The formats that come from outside: how a hostile input of each is made, and what reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from msgspec import Struct

from envbuilder.builds.image import debian_base
from envbuilder.packages import upstream
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.python import kernels
from envbuilder.profiles import lock as profile_lock
from tests.fuzz import archives, texts
from tests.fuzz.inputs import alone


class Format(Struct, frozen=True):
    """One kind of input."""

    make: Callable[[Random, Path], Path]
    readers: tuple[Callable[[Path, Path], object], ...]
    expected: tuple[type[BaseException], ...] = ()
    """Exceptions that belong to a reader's interface, besides `EnvbuilderError`."""


FORMATS = {
    "repository": Format(texts.make_repository, (texts.read_repository,)),
    "wheel": Format(
        archives.make_wheel,
        (
            archives.read_conflicts,
            archives.read_wheel_files,
            archives.read_licences,
            alone(upstream.read_wheel),
            alone(kernels.of_wheel),
            archives.read_tool,
        ),
    ),
    "deb": Format(
        archives.make_deb,
        (
            archives.read_clean,
            archives.read_deb_files,
            alone(debian_base._control),
            archives.read_libraries,
        ),
    ),
    "package list": Format(archives.make_lists, (archives.read_suite,)),
    "conda package": Format(archives.make_conda, (archives.read_conda,)),
    "layer": Format(archives.make_layer, (archives.read_layer,)),
    "layout": Format(archives.make_layout, (archives.read_layout, archives.read_held)),
    "image archive": Format(archives.make_archive, (archives.read_layout,)),
    "yaml": Format(
        texts.make_yaml,
        (texts.read_profile, texts.read_settings, texts.read_indexes),
    ),
    "lock": Format(
        texts.grown("lock", "locks/cpu.json"),
        (alone(profile_lock.load), alone(conda_lock.load)),
    ),
    "report": Format(texts.grown("report", "report.json"), (texts.read_report,)),
    "index page": Format(texts.make_page, (texts.read_page, texts.read_pylock)),
}
