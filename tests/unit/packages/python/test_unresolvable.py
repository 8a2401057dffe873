"""Why uv finds no solution, in one sentence with what to do; the proofs are uv's own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.packages.python.unresolvable import explained, holder, without_wheel

BUILD = (
    "build the wheel (pip wheel --no-deps --wheel-dir wheels {}) and set PIP_FIND_LINKS=$PWD/wheels"
    " to lock and to build"
)
SOURCE = "and nothing is built from source"
PROOFS = [
    (
        (
            "Because nosuchpackagexyz was not found in the package registry and you require\n"
            "      nosuchpackagexyz, we can conclude that your requirements are"
            " unsatisfiable."
        ),
        "no package index has nosuchpackagexyz: check its spelling",
    ),
    (
        (
            "Because only rich<=15.0.0 is available and you require rich>=99, we can conclude"
            " that your requirements are unsatisfiable."
        ),
        "rich>=99 is required, but only rich<=15.0.0 is available",
    ),
    (
        (
            "Because all versions of openai-whisper have no usable wheels and you require"
            " openai-whisper, we can conclude that your requirements are unsatisfiable."
        ),
        (
            f"openai-whisper has no wheel, {SOURCE}: leave it out, or"
            f" {BUILD.format('openai-whisper')}"
        ),
    ),
    (
        (
            "Because antlr4-python3-runtime>=4.9,<=4.9.3 has no usable wheels and only the"
            " following versions of antlr4-python3-runtime are available:"
            " antlr4-python3-runtime<4.9.dev0 antlr4-python3-runtime>=4.9,<=4.9.3"
            " antlr4-python3-runtime>4.10.dev0 we can conclude that"
            " antlr4-python3-runtime==4.9.* cannot be used. And because hydra-core==1.3.2"
            " depends on antlr4-python3-runtime==4.9.* and you require hydra-core==1.3.2, we"
            " can conclude that your requirements are unsatisfiable."
        ),
        (
            "hydra-core==1.3.2 needs antlr4-python3-runtime==4.9.*, which has no wheel,"
            f" {SOURCE}: require another version of hydra-core, or"
            f" {BUILD.format(chr(39) + 'antlr4-python3-runtime==4.9.*' + chr(39))}"
        ),
    ),
    (
        (
            "Because torchtext==0.18.0 has no wheels with a matching platform tag (e.g.,"
            " `manylinux_2_28_aarch64`) and you require torchtext==0.18, we can conclude that"
            " your requirements are unsatisfiable."
        ),
        (
            "torchtext==0.18.0 has no wheel for this platform: require a version that has one, or"
            ' another Python (python: "X.Y")'
        ),
    ),
    (
        (
            "Because facenet-pytorch>=2.6.0 depends on torch>=2.2.0,<2.3.0 and you require"
            " torch==2.13.0+cpu, we can conclude that your requirements and"
            " facenet-pytorch>=2.6.0 are incompatible. And because you require"
            " facenet-pytorch==2.6.0, we can conclude that your requirements are"
            " unsatisfiable."
        ),
        (
            "facenet-pytorch>=2.6.0 needs torch>=2.2.0,<2.3.0, but this profile has"
            " torch==2.13.0+cpu: require another version of facenet-pytorch, or leave the profile"
            " out (profiles: in envbuilder.yaml)"
        ),
    ),
    (
        (
            "Because lightning==2.0.0 depends on fsspec>=2022.5.0,<2024.0 and you require"
            " lightning==2.0.0, we can conclude that you require fsspec>=2022.5.0,<2024.0."
            " And because you require fsspec>=2025, we can conclude that your requirements"
            " are unsatisfiable."
        ),
        (
            "lightning==2.0.0 needs fsspec>=2022.5.0,<2024.0, but fsspec>=2025 is required:"
            " change one of the two"
        ),
    ),
    (
        (
            "Because all versions of holder depend on leaf<1.1 and you require leaf==1.1, we can"
            " conclude that your requirements and all versions of holder are incompatible. And"
            " because you require holder==1.0, we can conclude that your requirements are"
            " unsatisfiable."
        ),
        "holder needs leaf<1.1, but leaf==1.1 is required: change one of the two",
    ),
    (
        (
            "Because you require rich==13.0 and rich==14.0, we can conclude that your"
            " requirements are unsatisfiable."
        ),
        "rich==13.0 and rich==14.0 are both required: keep one of them",
    ),
]


def test_which_version_has_a_wheel() -> None:
    whisper, hydra = PROOFS[2][0], PROOFS[3][0]
    assert without_wheel(f"No solution found ╰─▶ {hydra}") == "antlr4-python3-runtime"
    assert without_wheel("No solution found ╰─▶ It is raining.") == ""
    assert "require a version that has one, such as 2.0, or" in explained(whisper, "2.0")
    assert "which has no wheel (4.13.2 has one), and nothing" in explained(hydra, "4.13.2")


def test_markers_in_the_proof_are_no_part_of_a_name() -> None:
    marked = "llguidance{platform_machine == 'aarch64' or platform_machine == 'x86_64'}"
    proof = (
        f"No solution found ╰─▶ Because {marked}>=1.7.0,<=1.7.6 has no usable wheels and only the"
        f" following versions of {marked} are available: {marked}<=1.7.6 {marked}>=1.8.0 we can"
        f" conclude that {marked}>=1.7.0,<1.8.0 cannot be used. And because vllm>=0.30.0 depends on"
        f" {marked}>=1.7.0,<1.8.0 and you require vllm>=0.30, we can conclude that your"
        " requirements are unsatisfiable."
    )
    assert without_wheel(proof) == "llguidance"
    assert explained(proof).startswith(
        "vllm>=0.30.0 needs llguidance>=1.7.0,<1.8.0, which has no wheel"
    )
    assert holder(proof, "vllm") == (
        "a newer one requires llguidance>=1.7.0,<1.8.0, which has no wheel"
    )


@pytest.mark.parametrize(("proof", "sentence"), PROOFS, ids=[s[:30] for _, s in PROOFS])
@pytest.mark.parametrize("mark", ["╰─▶ ", "cause: "])
def test_a_sentence_for_each_proof(proof: str, sentence: str, mark: str) -> None:
    printed = f"  × No solution found when resolving dependencies:\n  {mark}{proof}\n\n  hint: no\n"
    assert explained(printed) == sentence


def test_new_words_are_uvs_own_on_one_line() -> None:
    printed = "No solution found when resolving dependencies:\n ╰─▶ It is\n     raining.\n"
    assert explained(printed) == "It is raining."
    assert len(explained("No solution found" + "very " * 500)) <= 400


@given(st.text())
def test_any_text_gives_one_line(text: str) -> None:
    assert "\n" not in explained(text)


@given(st.lists(st.sampled_from(
    ["Because ", "a==1 ", "b>2,<3 ", "depends on ", "you require ", "and ", "torch==2 ", ", ",
     "has no usable wheels ", "only ", "is available ", "we can conclude ", ("was not found in the "
     "package registry ")]
)))  # fmt: skip
def test_any_order_of_its_words_gives_one_line(words: list[str]) -> None:
    assert "\n" not in explained("No solution found " + "".join(words))


def test_the_package_that_limits_another() -> None:
    proof = (
        "No solution found ╰─▶ Because lightning==2.0.0 depends on fsspec>=2022.5.0,<2024.0 and you"
        " require fsspec==2026, we can conclude that your requirements are unsatisfiable."
    )
    assert holder(proof, "fsspec") == "held by lightning, which requires fsspec>=2022.5.0,<2024.0"
    assert holder(proof, "rich") == holder("", "rich") == ""
