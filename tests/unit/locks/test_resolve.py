"""A lock says exactly what was resolved, how sure that is, and nothing about where from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest

from envbuilder.core.errors import BuildError
from envbuilder.core.process import Completed
from envbuilder.core.settings import Settings
from envbuilder.locks import compare, resolve
from envbuilder.locks.blockers import Blocker
from envbuilder.packages.conda.solve import UnsolvableError
from envbuilder.packages.debian import suite as debian
from envbuilder.packages.python.uv import Found, Offer, UnresolvableError
from envbuilder.packages.sources.source_locker import SourceLocker
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import File, Lock, reason
from envbuilder.profiles.profile import Profile, Python, Tools
from tests.support.resolving import (
    CPU,
    DEB,
    JINJA,
    UV,
    FakeUv,
    answer,
    done,
    in_project,
    made,
    offer,
    package,
    profile,
)
from tests.support.tools import tools


@pytest.mark.parametrize(
    ("accelerator", "left_out"),
    [("cpu", "triton"), ("rocm", "triton"), ("xpu", "triton"), ("cuda", "triton-rocm")],
)
def test_what_requires_the_triton_of_other_hardware_does_not_bring_it(
    found: Settings, offered: list[Offer], accelerator: str, left_out: str
) -> None:
    uv = FakeUv()
    made(found, uv, profile(accelerator=accelerator))
    excluded = uv.calls[0]["--excludes"].split()
    assert left_out in excluded
    assert f"triton-{accelerator}" not in excluded


class Measure:
    """States some sizes by URL; notes which URLs it was asked for."""

    def __init__(self, known: dict[str, int]) -> None:
        self.known = known
        self.asked: list[str] = []

    def __call__(self, urls: Iterable[str]) -> dict[str, int]:
        self.asked = sorted(urls)
        return {url: self.known[url] for url in self.asked if url in self.known}


def sizes_of(lock: Lock) -> dict[str, int | None]:
    return {f.name: f.size for f in lock.files}


def test_a_lock_says_what_was_seen_and_what_is_claimed(
    found: Settings, offered: list[Offer]
) -> None:
    lock = made(found, FakeUv())
    (target,) = lock.targets
    assert [(f.kind, f.name) for f in target.files] == [
        ("wheel", "jinja2"), ("wheel", "torch"),
    ]  # fmt: skip
    jinja, torch = target.files
    assert (torch.source, torch.provenance, torch.by) == ("pytorch-cpu", "claim", "a lock")
    assert torch.sha256 == "a" * 64
    assert (jinja.source, jinja.provenance) == ("default", "read")
    assert jinja.file == "Jinja2-3.1-py3-none-any.whl"
    assert lock.state == "claimed"
    assert "torch 2.13.0+cpu (linux/amd64, Python 3.11)" in lock.why
    assert "://" not in profile_lock.dump(lock)
    assert compare.check(profile(), lock) == ()


def test_uv_is_locked_for_every_platform_that_envbuilder_runs_on(
    found: Settings, offered: list[Offer]
) -> None:
    """Whichever platforms the profile is for, and whichever uv resolves."""
    lock = made(found, FakeUv())
    assert [t.platform for t in lock.targets] == ["linux/amd64"]
    assert {p: f.file for p, f in lock.tools.items()} == {p: f.file for p, f in tools().items()}
    assert {(f.kind, f.version, f.source) for f in lock.tools.values()} == {
        ("tool", CPU.tools.uv, "default")
    }


def test_an_index_without_a_uv_for_some_platform_cannot_lock(
    found: Settings, offered: list[Offer]
) -> None:
    def only_linux(requirements: str, url: str) -> str | Completed:
        if requirements.startswith("uv==") and len(uv.calls) == 4:
            return done(1, "No solution found when resolving dependencies: no wheels for macOS")
        return FakeUv.usual(requirements, url)

    uv = FakeUv(only_linux)
    lock = made(found, uv)
    assert (lock.state, lock.tools) == ("unlocked", {})
    assert lock.why.startswith("macos/arm64 with Python 3.11: ")


def test_a_uv_that_is_only_claimed_is_named(found: Settings, offered: list[Offer]) -> None:
    offered[0] = offer(provenance="read")
    uv_file = "uv-0.13.8-py3-none-any.whl"
    offered.append(offer(distribution="uv", version="0.13.8", file=uv_file, source="default"))

    def from_index(requirements: str, url: str) -> str:
        if requirements.startswith("uv=="):
            return package("uv", "0.13.8", f"{url.removesuffix('simple')}files/{offered[1].file}")
        return FakeUv.usual(requirements, url)

    lock = made(found, FakeUv(from_index))
    assert lock.state == "claimed"
    assert lock.why.endswith(
        "uv 0.13.8 (linux/amd64); uv 0.13.8 (linux/arm64); uv 0.13.8 (macos/arm64)"
    )


def test_all_seen_is_locked(found: Settings, offered: list[Offer]) -> None:
    offered[0] = offer(provenance="read")
    lock = made(found, FakeUv())
    assert lock.state == "locked"
    assert lock.why == ""


def test_how_uv_is_called(found: Settings, offered: list[Offer]) -> None:
    uv = FakeUv()
    mac = profile(platforms=("macos/arm64",), indexes={}, requirements=("jinja2",))
    uv.answer = lambda *_: package("jinja2", "3.1", "https://i/jinja2-3.1-py3-none-any.whl")
    assert made(found, uv, mac).targets[0].base is None
    first = uv.calls[0]
    assert "aarch64-apple-darwin" in first["argv"]
    assert first["env"]["MACOSX_DEPLOYMENT_TARGET"] == "14.0"
    assert first["argv"][first["argv"].index("--cache-dir") + 1].startswith(str(found.cache_dir))
    for a in first["argv"]:
        assert "://" not in a


def test_what_nobody_states_makes_it_unlocked(found: Settings, offered: list[Offer]) -> None:
    offered.clear()
    uv = FakeUv()
    lock = made(found, uv)
    assert (lock.state, lock.targets) == ("unlocked", ())
    assert lock.why.startswith("torch==2.13.0+cpu: the index pytorch-cpu cannot be reached")
    assert uv.calls == []


def test_no_solution_makes_it_unlocked_and_names_no_place(
    found: Settings, offered: list[Offer]
) -> None:
    text = (
        "error: No solution found when resolving dependencies\n  cause: Because only a<1 is at\n"
        "  https://user:secret@index.invalid/simple and you require a>1\n  hint: try harder\n"
    )
    lock = made(found, FakeUv(lambda *_: done(1, text)))
    assert lock.state == "unlocked"
    assert lock.why == (
        "linux/amd64 with Python 3.11: no wheels satisfy all requirements (nothing is built from"
        " source; PIP_FIND_LINKS may name folders with your own wheels). Proof: Because only a<1 is"
        " at <url> and you require a>1 hint: try harder"
    )


def test_earlier_versions_are_fixed_then_preferred(found: Settings, offered: list[Offer]) -> None:
    before = made(found, FakeUv())
    uv = FakeUv(lambda *_: done(1, "No solution found when resolving dependencies: x"))
    assert made(found, uv, previous=before).state == "unlocked"
    fix, prefer = uv.calls
    assert '{name = "jinja2", version = "3.1"}' in prefer["before"]
    assert prefer["constraints"] == ""
    assert fix["before"] == ""
    assert "jinja2==3.1\n" in fix["constraints"]


@pytest.mark.parametrize(
    ("basis", "moving", "fixed"),
    [
        (lambda lock: {"previous": lock}, {"upgrade_packages": ["Jinja2"]}, "torch==2.13.0+cpu\n"),
        (
            lambda lock: {"origin": (profile(), lock)},
            {"upgrade_packages": ["torch"]},
            "jinja2==3.1\n",
        ),
        (lambda lock: {"previous": lock}, {"upgrade": True}, ""),
    ],
    ids=["a package", "a package of a variant's first lock", "all"],
)
def test_what_is_to_be_upgraded_is_free_and_the_rest_is_fixed(
    found: Settings, offered: list[Offer], basis: Any, moving: dict[str, Any], fixed: str
) -> None:
    before = made(found, FakeUv())
    uv = FakeUv()
    made(found, uv, **basis(before), **moving)
    assert uv.calls[0]["constraints"] == fixed
    for call in uv.calls:
        assert call["before"] == ""


def test_sources_of_what_is_not_upgraded_stay(
    found: Settings, offered: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    staying: list[set[str]] = []

    def locker(*arguments: Any) -> SourceLocker:
        staying.append({file.name for file in arguments[-1]})
        return SourceLocker(*arguments)

    monkeypatch.setattr(resolve, "SourceLocker", locker)
    before = made(found, FakeUv())
    made(found, FakeUv(), previous=before)
    made(found, FakeUv(), previous=before, upgrade_packages=["Jinja2"])
    made(found, FakeUv(), previous=before, upgrade=True)
    both = {"jinja2", "torch"}
    assert [names & both for names in staying] == [set(), both, {"torch"}, set()]


def test_debs_are_kept_while_the_profile_stands(
    found: Settings, offered: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = profile(system_packages=("tool",))
    calls: list[object] = []

    def lock(*args: object, **_: object) -> tuple[File, ...]:
        calls.append(args)
        return (DEB,)

    monkeypatch.setattr(debian, "load", lambda *_: {})
    monkeypatch.setattr(debian, "lock", lock)
    before = made(found, FakeUv(), asked)
    assert before.targets[0].of_kind("deb") == (DEB,)
    made(found, FakeUv(), asked, previous=before)
    assert len(calls) == 1
    made(found, FakeUv(), asked, previous=before, upgrade=True)
    assert len(calls) == 2


def test_without_an_image_or_preload_there_are_no_debs(
    found: Settings, offered: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "load", lambda *_: {})
    monkeypatch.setattr(debian, "lock", lambda *_, **__: (DEB,))
    bare = profile(base={}, backends=("venv",), system_packages=("tool",))
    (target,) = made(found, FakeUv(), bare).targets
    assert (target.base, target.of_kind("deb")) == (None, ())
    preloaded = msgspec.structs.replace(bare, preload=("libtool.so.1",))
    assert made(found, FakeUv(), preloaded).targets[0].of_kind("deb") == (DEB,)


WHEEL = "https://i/a-1-py3-none-any.whl"


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (package("a", "1", WHEEL, sha256=None), "provides no sha256"),
        (package("a", "1; rm", WHEEL), "an invalid file"),
        (done(2, "error: Failed to fetch https://user:secret@index.invalid/x"), "be reached"),
    ],
    ids=["no hash", "an odd name", "a failing index"],
)
def test_answers_that_no_lock_can_be_made_of(
    found: Settings, offered: list[Offer], said: str | Completed, problem: str
) -> None:
    with pytest.raises(BuildError, match=problem) as caught:
        made(found, FakeUv(lambda *_: said))
    assert "secret" not in caught.value.message


def two(requirements: str, url: str) -> str:
    """Two wheels for any Python."""
    if requirements.startswith("uv=="):
        return answer(requirements, url)
    files = {"left": "d" * 64, "right": "e" * 64}
    return "".join(
        package(name, "1.0", f"https://i/{name}-1.0-py3-none-any.whl", sha256=sha256)
        for name, sha256 in files.items()
    )


def clash(wheels: Sequence[Found], python: str) -> dict[str, dict[str, str]]:
    """For Python 3.12, each wheel has another data file of one name."""
    return {w.file.sha256: {"share/tool": w.file.name if python == "3.12" else "x"} for w in wheels}


def test_two_wheels_with_other_bytes_at_one_path_cannot_be_locked(
    found: Settings, offered: list[Offer]
) -> None:
    twice = profile(python=Python(default="3.11", supported=("3.11", "3.12")))
    lock = made(found, FakeUv(two), twice, contents=clash)
    assert (lock.state, lock.targets) == ("unlocked", ())
    assert lock.why == (
        "linux/amd64 with Python 3.12: left-1.0-py3-none-any.whl and right-1.0-py3-none-any.whl"
        " both install share/tool, perhaps with different content, so the result would depend on"
        " chance. Exclude one (exclude: [left] or [right]), replace one by the other"
        " (overrides: {left: right}), or pin another version of one"
    )
    partly = made(
        in_project(found),
        FakeUv(two),
        twice,
        contents=clash,
        explain=lambda *_: pytest.fail("no index page is to blame"),
    )
    assert [t.python for t in partly.targets] == ["3.11"]
    assert str(partly.missing["linux/amd64 3.12"]).startswith(
        "left-1.0-py3-none-any.whl (required by right) and right-1.0-py3-none-any.whl (listed) both"
    )


def test_a_version_that_is_too_old_is_refused_unless_a_lock_has_it(
    found: Settings, offered: list[Offer]
) -> None:
    twice = profile(python=Python(default="3.11", supported=("3.11", "3.12")))
    old = Blocker(name="left", kind="source", version="4.0", instead=("left 1.0",))

    def doubt(_: Profile, place: Any, wheels: Iterable[Found], __: Any) -> tuple[Blocker, ...]:
        is_old = place[1] == "3.12" and "left" in {wheel.file.name for wheel in wheels}
        return (old,) if is_old else ()

    def explain(*_: object) -> list[Blocker]:
        pytest.fail("it is known")

    options: dict[str, Any] = {"find_outdated": doubt, "explain": explain}
    lock = made(found, FakeUv(two), twice, **options)
    assert (lock.state, lock.targets) == ("unlocked", ())
    assert (
        "left 4.0 (required by others): has no wheel for Python 3.12, only its source" in lock.why
    )
    accepted = made(found, FakeUv(two), twice)
    project = in_project(found)
    partly = made(project, FakeUv(two), twice, **options)
    assert [t.python for t in partly.targets] == ["3.11"]
    assert "require them: left==1.0" in str(partly.missing["linux/amd64 3.12"])
    again = made(project, FakeUv(two), twice, previous=accepted, **options)
    assert (len(again.targets), again.missing) == (2, {})
    upgraded = made(project, FakeUv(two), twice, previous=accepted, upgrade=True, **options)
    assert len(upgraded.targets) == 1
    old = msgspec.structs.replace(old, kind="wheel")
    said: list[str] = []
    lock = made(found, FakeUv(two), twice, on_progress=said.append, **options)
    assert len(lock.targets) == 2, "there is nothing to build"
    (note,) = [line for line in said if line.startswith("note: ")]
    assert note.startswith("note: linux/amd64 with Python 3.12 gets left 1.0, because left 4.0 has")


def test_one_opencv_takes_the_place_of_another_that_a_package_requires_as_well(
    found: Settings, offered: list[Offer]
) -> None:
    def opencv(requirements: str, url: str) -> str:
        names = ["opencv-python-headless"]
        names += [] if names[0] in requirements else ["opencv-python"]
        wheels = (
            package(
                n, "4.0", f"https://h/{n.replace('-', '_')}-4.0-py3-none-any.whl", sha256=c * 64
            )
            for n, c in zip(names, "de", strict=False)
        )
        return FakeUv.usual(requirements, url) + "".join(wheels)

    def same(wheels: Sequence[Found], _: str) -> dict[str, dict[str, str]]:
        return {
            w.file.sha256: {"cv2/x": w.file.name} if "cv" in w.file.name else {} for w in wheels
        }

    lock = made(found, FakeUv(opencv), contents=same)
    assert [f.name for f in lock.targets[0].files][1:2] == ["opencv-python-headless"]
    assert lock.inputs == profile_lock.inputs_digest(profile()), "the profile's own requirements"


def test_a_wheel_that_no_server_lets_us_read_says_so(found: Settings, offered: list[Offer]) -> None:
    lock = made(found, FakeUv(answer), contents=lambda *_: {})
    assert {f.name: f.unread for f in lock.targets[0].of_kind("wheel")} == {
        "jinja2": True, "torch": False,  # a claim says so itself
    }  # fmt: skip
    text = profile_lock.dump(lock)
    assert text.count('"unread": true') == 1
    assert profile_lock.dump(made(found, FakeUv(answer))) == text.replace(', "unread": true', "")


def test_sizes_that_no_index_states_are_asked_for(found: Settings, offered: list[Offer]) -> None:
    measure = Measure({JINJA: 134899, UV: 17389450})
    lines: list[str] = []
    lock = made(found, FakeUv(answer), measure=measure, on_progress=lines.append)
    assert sizes_of(lock) == {"jinja2": 134899, "torch": None, "uv": 17389450}
    # torch is only claimed: there is no place to ask, least of all the index of this very run.
    assert measure.asked == [JINJA, UV]
    assert "requesting the sizes of 2 files" in lines
    without = profile_lock.dump(made(found, FakeUv(answer)))
    assert profile_lock.dump(lock).replace("134899", "null").replace("17389450", "null") == without


def test_a_size_that_is_only_about_right_stays_apart_from_the_exact_one(
    found: Settings, offered: list[Offer]
) -> None:
    offered[0] = offer(size_about=6_200_000_000)
    (torch,) = [f for f in made(found, FakeUv(answer)).files if f.name == "torch"]
    assert (torch.size, torch.size_about, torch.room) == (None, 6_200_000_000, 6_200_000_000)
    offered[0] = offer(size=200, size_about=6_200_000_000)
    (torch,) = [f for f in made(found, FakeUv(answer)).files if f.name == "torch"]
    assert (torch.size, torch.size_about, torch.room) == (200, None, 200)


def test_the_known_size_of_the_same_bytes_is_not_requested_again(
    found: Settings, offered: list[Offer]
) -> None:
    before = made(found, FakeUv(answer), measure=Measure({JINJA: 134899, UV: 17389450}))
    again = made(found, FakeUv(answer), previous=before, upgrade=True)
    assert sizes_of(again) == sizes_of(before)
    measure = Measure({JINJA: 7})
    assert sizes_of(made(found, FakeUv(answer), previous=before, measure=measure)) == sizes_of(
        before
    )
    # Other bytes have another size.
    moved = FakeUv(lambda r, url: answer(r, url).replace("b" * 64, "d" * 64))
    assert sizes_of(made(found, moved, previous=before))["jinja2"] is None


def test_the_locked_uv_is_kept_while_the_profile_names_it(
    found: Settings, offered: list[Offer]
) -> None:
    before = made(found, FakeUv())
    uv = FakeUv()
    assert made(found, uv, previous=before).tools == before.tools
    assert not [c for c in uv.calls if c["requirements"].startswith("uv==")]
    made(found, uv, previous=before, upgrade=True)
    assert [c for c in uv.calls if c["requirements"].startswith("uv==")], "a wrong hash would stay"
    # Another version is resolved for every platform.
    other = FakeUv(lambda r, url: FakeUv.usual(r, url).replace("0.13.8", "0.13.9"))
    moved = made(found, other, profile(tools=Tools(uv="0.13.9")), previous=before)
    assert {f.version for f in moved.tools.values()} == {"0.13.9"}


def test_constraints_hold_beside_earlier_versions(found: Settings, offered: list[Offer]) -> None:
    asked = profile(constraints=("rich==13.9.4", "numpy<3"))
    uv = FakeUv()
    before = made(found, uv, asked)
    assert uv.calls[0]["constraints"] == "rich==13.9.4\nnumpy<3\n"
    uv = FakeUv()
    made(found, uv, asked, previous=before)
    assert uv.calls[0]["constraints"].startswith("rich==13.9.4\nnumpy<3\n")
    assert "jinja2==3.1" in uv.calls[0]["constraints"]


VISION = "torchvision-0.28.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def vision_of(uv_calls: list[str], best: str) -> Callable[[str, str], str]:
    """An index page where PyPI has a newer torchvision, which uv takes unless it is excluded."""

    def answered(requirements: str, url: str) -> str:
        usual = FakeUv.usual(requirements, url)
        if requirements.startswith("uv=="):
            return usual
        uv_calls.append(requirements)
        if len(uv_calls) == 1 or not best:
            number = 30 - len(uv_calls)
            there = f"https://i/p/torchvision-0.{number}.0-py3-none-any.whl"
            return usual + package("torchvision", f"0.{number}.0", there)
        root = url.removesuffix("simple")
        return usual + package("torchvision", best, f"{root}files/{VISION.replace('+', '%2B')}")

    return answered


def with_vision(offered: list[Offer]) -> Profile:
    offered.append(offer(distribution="torchvision", version="0.28.0+cpu", file=VISION))
    return profile(
        requirements=(*profile().requirements, "torchvision"),
        indexes={**profile().indexes, "torchvision": "pytorch-cpu"},
    )


def test_a_companion_of_the_package_index_is_excluded(
    found: Settings, offered: list[Offer]
) -> None:
    asked = with_vision(offered)
    uv = FakeUv(vision_of([], "0.28.0+cpu"))
    lock = made(found, uv, asked)
    names = {f.name: (f.version, f.source) for f in lock.targets[0].files}
    assert names["torchvision"] == ("0.28.0+cpu", "pytorch-cpu")
    assert [c["constraints"] for c in uv.calls[:2]] == ["", "torchvision!=0.29.0\n"]


def test_a_companion_without_a_build_for_the_hardware(
    found: Settings, offered: list[Offer]
) -> None:
    asked = with_vision(offered)
    uv = FakeUv(vision_of([], ""))
    lock = made(found, uv, asked)
    assert lock.state == "unlocked"
    assert lock.why == (
        "linux/amd64 with Python 3.11: torchvision is required, but no index or public lock has"
        " the hash of a matching build for this hardware (index pytorch-cpu), and PyPI's builds are"
        " for other hardware: lock on a machine that can reach it, or set a mirror"
        " (ENVBUILDER_INDEX_PYTORCH_CPU=URL, or indexes: in envbuilder.yaml)"
    )
    assert len(uv.calls) < 30


def test_a_reason_is_one_line_of_limited_length() -> None:
    """Locks hold nothing else, whatever git or a build printed."""
    error = UnresolvableError("git failed:\n  fatal: \x1b[1mno\n")
    assert str(error) == r"git failed: fatal: \x1b[1mno"
    assert len(str(UnresolvableError("x" * 1_000_000))) == 20_000
    assert str(UnsolvableError(reason("a\r\nb"), "")) == "a b"
