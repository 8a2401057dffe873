"""Profiles and locks made at random, from the patterns of `core.types`."""

from __future__ import annotations

import hashlib
import re
from typing import Any, get_args

import msgspec
from hypothesis import settings, strategies as st
from msgspec.structs import replace

from envbuilder.builds import render
from envbuilder.core import types
from envbuilder.core.settings import Environment
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import File, Lock, LockedBase, Target
from tests.support.shipped import shipped_profile
from tests.support.tools import tools

CPU = shipped_profile("cpu")

PYTHON = "3.11"

LINUX: tuple[types.Platform, ...] = ("linux/amd64", "linux/arm64")

COMMON = settings(max_examples=settings().max_examples // 5)


def like(kind: Any) -> st.SearchStrategy[str]:
    """Text of a kind of `core.types`."""
    (pattern,) = (m.pattern for m in get_args(kind)[1:] if m.pattern)
    return st.from_regex(pattern)


NASTY = (
        "; rm -rf /", "&& id", "| sh", "> /etc/passwd", "#", "'", "(", "*", "{{ 7*7 }}", "{% if %}",
        "\\", "EOF", "RUN id", "prefix: /x", "$(id)", "`id`", '"', "%", "\u2028RUN id", "\x85x: y",
)  # fmt: skip


def text(kind: Any) -> st.SearchStrategy[str]:
    """Text of a kind, with what would hurt wherever the kind allows it."""
    pattern = re.compile(next(m.pattern for m in get_args(kind)[1:] if m.pattern))
    nasty = st.sampled_from([n for n in NASTY if pattern.search(n)])
    plain = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="\"'\\`$"))
    return st.lists(nasty | plain, max_size=3).map(" ".join)


versions = st.from_regex(
    r"\A[0-9]{1,3}(\.[0-9]{1,2}){0,2}((a|b|rc|\.post|\.dev)[0-9]{1,2})?(\+[a-z0-9]{1,5})?\Z"
)

hashes = st.integers(0, 2**256 - 1).map(lambda n: f"{n:064x}")

sources = st.from_regex(r"\A[a-z][a-z0-9-]{0,8}\Z")

urls = st.sampled_from(["https://a.invalid/x", "http://b.invalid:8080/y%20z", "file:///c/d+e"])


@st.composite
def files(draw: Any, kind: types.FileKind, names: Any, folder: str = "") -> tuple[File, ...]:
    """Files of one kind, of one name each."""
    named = draw(st.lists(names, unique_by=lambda n: re.sub(r"[-_.]+", "-", n).lower(), max_size=3))
    suffix = {"wheel": "py3-none-any.whl", "deb": "all.deb"}[kind]
    made = []
    for name in named:
        version = draw(like(types.FileVersion) if kind == "deb" else versions)
        extra = draw(st.from_regex(r"\A[A-Za-z0-9_+~%:-]{0,6}\Z"))
        made.append(
            {
                "kind": kind,
                "name": name,
                "version": version,
                "file": folder + re.sub(r"\.\.+", ".", f"{name}-{extra}-{suffix}"),
                "sha256": "0" * 64,
                "size": draw(st.none() | st.integers(1, 10**10)),
                "source": draw(sources),
                "provenance": "read",
                "by": draw(text(types.Sentence)),
            }
        )
    return tuple(map(hashed, msgspec.convert(made, tuple[File, ...])))


def hashed(file: File) -> File:
    """The file with a hash of its own: two that are alike in it are alike in everything."""
    plain = replace(file, sha256="0" * 64)
    digest = hashlib.sha256(msgspec.json.encode(plain)).hexdigest()
    return replace(file, sha256=digest)


@st.composite
def targets(draw: Any, platform: types.Platform, python: str, shared: tuple[File, ...]) -> Target:
    """A target that has some packages in common with others, in the same or in other bytes."""
    arch = platform.replace("/", "_")
    shared = tuple(
        hashed(replace(f, file=f"{arch}-{f.file}")) if draw(st.booleans()) else f for f in shared
    )
    own = draw(files("wheel", like(types.Distribution)))
    taken = {re.sub(r"[-_.]+", "-", f.name).lower() for f in shared}
    own = tuple(f for f in own if re.sub(r"[-_.]+", "-", f.name).lower() not in taken)
    linux = platform.startswith("linux/")
    debs = draw(files("deb", like(types.DebianPackage), "pool/main/")) if linux else ()
    base = LockedBase(
        ref=draw(like(types.ImageRef)),
        digest=draw(st.none() | hashes.map(lambda h: f"sha256:{h}")),
        date=None,
        python_path="/usr/bin/python3",
        python_version="3.11.2",
    )
    return Target(
        platform=platform,
        python=python,
        base=msgspec.convert(msgspec.to_builtins(base), LockedBase) if linux else None,
        files=(*shared, *own, *debs),
    )


def conda() -> st.SearchStrategy[dict[str, Any]]:
    """What a profile wants of channels."""
    virtual = st.dictionaries(like(types.VirtualPackage), like(types.VirtualVersion), max_size=2)
    # What YAML would make something else of, if it stood there bare.
    names = st.sampled_from(["no", "null", "1e3", "0x10", "2026-01-01", "123", "y"])
    return st.fixed_dictionaries(
        {
            "channels": st.lists(sources, min_size=1, max_size=2, unique=True),
            "packages": st.lists(like(types.CondaSpec) | names, max_size=3),
            "virtual_packages": st.dictionaries(st.sampled_from(types.PLATFORMS), virtual),
        }
    )


@st.composite
def cases(draw: Any, platforms: tuple[types.Platform, ...]) -> tuple[profiles.Profile, Lock]:
    """A profile and its lock for some of the platforms, and for a second Python."""
    chosen = draw(st.lists(st.sampled_from(platforms), unique=True, min_size=1))
    shared = draw(files("wheel", like(types.Distribution)))
    made = [draw(targets(p, PYTHON, shared)) for p in chosen]
    made.append(draw(targets("linux/amd64", "3.12", ())))
    data = profiles.canonical(CPU)
    data |= {
        "name": draw(like(types.Name)),
        "description": draw(text(types.Comment)),
        "warnings": draw(st.lists(text(types.Comment), max_size=2)),
        "environment": draw(
            st.dictionaries(like(types.Variable), text(types.VariableValue), max_size=3)
        ),
        "preload": draw(st.lists(like(types.Library), max_size=2)),
        "indexes": {"torch": draw(sources)},
        "platforms": chosen,
        "conda": draw(conda()),
    }
    profile = msgspec.convert(data, profiles.Profile)
    lock = Lock(
        schema=2,
        profile=profile.name,
        inputs="0" * 64,
        state=draw(st.sampled_from(["locked", "claimed"])),
        reason="",
        tools=tools(draw(versions)),
        targets=tuple(made),
    )
    return profile, msgspec.convert(msgspec.to_builtins(lock), Lock)


def urls_of(profile: profiles.Profile, lock: Lock) -> dict[str, str]:
    named = {f.source for t in lock.targets for f in t.files} | set(profile.indexes.values())
    named |= set(profile.conda.channels)
    return {n: f"https://{n}.invalid/x" for n in named}


def rendered(
    case: tuple[profiles.Profile, Lock],
    target: render.RenderTarget,
    stated: Environment = Environment(),  # noqa: B008 (it cannot be changed)
) -> dict[str, str]:
    profile, lock = case
    found = render.render(profile, lock, target, PYTHON, urls_of(profile, lock), environment=stated)
    return {f.name: f.content.decode() for f in found if not f.name.endswith("payload.pyz")}


def used(lock: Lock) -> tuple[Target, ...]:
    return tuple(t for t in lock.targets if t.python == PYTHON)


def wheel(version: str, sha256: str) -> File:
    return File(
        kind="wheel", name="torch", version=version, file=f"torch-{version}-{sha256[0]}.whl",
        sha256=sha256 * 64, size=None, source="default", provenance="read", by="",
    )  # fmt: skip
