"""Requirements of profiles that extend others: nothing is dropped silently, and lists add up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from packaging.utils import canonicalize_name

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.profiles import lock as profile_lock, profile as profiles, requirements
from envbuilder.profiles.profile import Profile

SHIPPED = resources.profiles_dir()
TORCH = "torch==2.13.0+cpu"
BARE = "extends: _cpu\nplatforms: [linux/amd64]\nexpects: {version: '2'}\n"
"""Its parent names no framework."""


def load(folder: Path, *texts: str) -> Profile:
    """The last of some profiles: `p0`, `p1`, … each with its text."""
    for number, text in enumerate(texts):
        (folder / f"p{number}.yaml").write_text(f"description: d\n{text}\n")
    return profiles.load(f"p{len(texts) - 1}", (folder, SHIPPED))


# --- replacing


@pytest.mark.parametrize(
    ("texts", "parent", "lost"),
    [
        (["extends: cpu\nrequirements: [einops]"], "cpu", "torch"),
        (["extends: cpu\nrequirements: []"], "cpu", "torch"),
        (["extends: cpu\nrequirements: [torchvision, pytorch-lightning]"], "cpu", "torch"),
        (["extends: mps\nrequirements: [einops]"], "mps", "torch"),
        (["extends: cpu", "extends: p0\nrequirements: [einops]"], "p0", "torch"),
        (
            [f"{BARE}requirements: [Torch]",
             "extends: p0\nrequirements: [einops]"],
            "p0", "Torch",
        ),
        (
            ["extends: cpu\nadd_requirements: [rich]", "extends: p0\nrequirements: [rich]"],
            "p0", "torch",
        ),
        ([f"extends: zendnn\nrequirements: ['{TORCH}', einops]"], "zendnn", "zentorch==2.13.0.2"),
        (
            ["extends: cpu-ipex\nrequirements: [torch==2.8.0+cpu]"],
            "cpu-ipex", "intel_extension_for_pytorch==2.8.0",
        ),
    ],
)  # fmt: skip
def test_a_list_that_drops_the_framework_or_its_extension_is_refused(
    texts: list[str], parent: str, lost: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidError) as caught:
        load(tmp_path, *texts)
    package = requirements.distribution(lost)
    name = f"p{len(texts) - 1}"
    line = 3
    assert caught.value.message == (
        f"{tmp_path}/{name}.yaml:{line}: '{name}' has no {package}, because requirements: replaces"
        f" the list of '{parent}'"
    )
    assert f"Repeat {lost}, or use add_requirements:" in caught.value.hint


@pytest.mark.parametrize(
    "texts",
    [
        ["extends: cpu\nrequirements: [torch==2.14.0, einops]"],
        ["extends: cpu\nrequirements: ['Torch>=2.13', einops]"],
        [f"{BARE}requirements: [setuptools]"],
        [f"{BARE}requirements: [setuptools]",
         "extends: p0\nrequirements: [wheel]"],
        # No extension is expected any more.
        [f"extends: zendnn\nrequirements: ['{TORCH}']\nexpects: {{extension: ''}}"],
    ],
)  # fmt: skip
def test_a_list_may_replace_what_is_not_expected(texts: list[str], tmp_path: Path) -> None:
    assert load(tmp_path, *texts).name


# --- adding


def test_added_requirements_follow_those_of_every_level(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        "extends: cpu\nadd_requirements: [einops]",
        "extends: p0\nadd_requirements: ['rich>=13', 'numpy[x]==2.1']",
        "extends: p1",
    )
    assert found.requirements == (TORCH, "einops", "rich>=13", "numpy[x]==2.1")


def test_a_lock_and_what_is_shown_see_the_whole_list_and_no_other_key(tmp_path: Path) -> None:
    added = load(tmp_path, "extends: cpu\nadd_requirements: [einops]")
    written = load(tmp_path, f"extends: cpu\nrequirements: ['{TORCH}', einops]")
    # With a list of its own no project chooses another release.
    assert (added.builds, written.builds) == (("cpu",), ())
    assert added.requirements == written.requirements
    assert profiles.canonical(added)["requirements"] == (TORCH, "einops")
    assert "add_requirements" not in profiles.canonical(added)
    assert profile_lock.inputs_digest(added) == profile_lock.inputs_digest(written)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"extends: cpu\nadd_requirements: ['{TORCH}']",
            "the requirements of 'cpu' already contain torch",
        ),
        ("extends: cpu\nadd_requirements: [torch]", "torch: .* already contain torch"),
        ("extends: cpu\nadd_requirements: [TORCH==2.14.0]", "TORCH==2.14.0: the requirements of"),
        (
            "extends: zendnn\nadd_requirements: [einops, zentorch>2]",
            "already contain zentorch==2.13.0.2",
        ),
        ("extends: cpu\nadd_requirements: [a-b==1, A_b==2]", "A_b==2: the lines above"),
        ("extends: cpu\nadd_requirements: [einops, 'einops[x]']", r"the lines above .* einops"),
        (
            f"extends: cpu\nadd_requirements: [einops]\nrequirements: ['{TORCH}']",
            "the profile also has requirements",
        ),
        ("extends: cpu\nadd_requirements: einops", "add_requirements: expected a list"),
        (
            "extends: cpu\nadd_requirements: [1]",
            r"add_requirements\.0: expected text|_requirements",
        ),
        ("extends: cpu\nadd_requirements: ['-r x.txt']", "add_requirements"),
        ("extends: cpu\nadd_requirements: ['x; rm']", "add_requirements"),
        ("extends: cpu\nadd_requirements: null", "add_requirements: expected a list"),
        ("add_requirements: [einops]", "does not extend a profile"),
    ],
)
def test_what_cannot_be_added_is_refused_with_its_place(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidError, match=message) as caught:
        load(tmp_path, text)
    line = text.splitlines().index(next(x for x in text.splitlines() if x.startswith("add"))) + 2
    assert caught.value.message.startswith(f"{tmp_path}/p0.yaml:{line}: add_requirements")


# --- names that people write instead


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        *(
            (k, "'add_requirements', which adds")
            for k in ("packages", "dependencies", "pip", "deps")
        ),
        ("dependancies", "'add_requirements', which adds"),
        ("add-requirements", "Did you mean 'add_requirements'?"),
        ("add_requirement", "Did you mean 'add_requirements'?"),
        ("requirments", "Did you mean 'requirements'?"),
        ("requirement", "Did you mean 'requirements'?"),
        ("system-packages", "Did you mean 'system_packages'?"),
        ("channels", "Did you mean 'conda.channels'?"),
        ("virtual_packages", "Did you mean 'conda.virtual_packages'?"),
        ("zzz", "Remove the key."),
    ],
)
def test_unknown_keys_lead_to_the_right_ones(key: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=rf"p0\.yaml:3: {key}: unknown key") as caught:
        load(tmp_path, f"extends: cpu\n{key}: [einops]")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("conda: {package: [gxx]}", "conda.package: unknown key", "Did you mean 'packages'?"),
        ("python: {supportet: []}", "python.supportet: unknown key", "Did you mean 'supported'?"),
        ("base: {'3.11': {reff: a}}", "reff: unknown key", "Did you mean 'ref'?"),
        ("run: {dependencies: []}", "run.dependencies: unknown key", ""),
    ],
)
def test_a_key_below_another_is_compared_with_those_that_may_stand_there(
    text: str, message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidError, match=re.escape(message)) as caught:
        load(tmp_path, f"extends: cpu\n{text}")
    assert hint in caught.value.hint
    assert "add_requirements" not in caught.value.hint


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,12}[A-Za-z0-9])?", fullmatch=True))
def test_distributions_are_spelled_as_packaging_does(name: str) -> None:
    for rest in ("", "==1.0", "[x,y]>=2", " < 3", "~=1.0, !=1.1"):
        assert requirements.distribution(name + rest) == canonicalize_name(name)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("torch==2.8.0+cpu", "2.8.0+cpu"),
        ("jax[cuda12,k8s] == 0.6.1 ; python_version < '3.12'", "0.6.1"),
        ("torch==2.8.*", ""),
        ("torch===2.8", ""),
        ("torch!=2.7,==2.8", ""),
        ("torch==2.8,>=2", ""),
        ("torch>=2.8", ""),
    ],
)
def test_a_pin_is_the_one_version_that_is_allowed(line: str, version: str) -> None:
    assert requirements.pin(line) == version
