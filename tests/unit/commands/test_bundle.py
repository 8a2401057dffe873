"""`envbuilder bundle`: what it prints about the members of a bundle."""

from __future__ import annotations

from envbuilder.bundle.format import KINDS
from envbuilder.commands import bundle


def test_members_are_counted_in_the_plural_if_needed() -> None:
    members = dict(zip(KINDS, (4, 1, 3, 32, 0, 4, 9), strict=True))
    text = "4 profiles, 1 lock, 3 project files, 32 wheels, 4 dataset files, 9 base image files"
    assert bundle._counts(members) == text
