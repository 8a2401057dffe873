"""Specs of conda packages, as profiles and PyPI have their versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.project.requirement_files import conda_spec


@pytest.mark.parametrize(
    ("text", "spec", "specifier"),
    [
        ("numpy", "numpy", ""),
        ("numpy=1.26", "numpy 1.26.*", "==1.26.*"),
        ("numpy=1.26.*", "numpy 1.26.*", "==1.26.*"),
        ("numpy=1.26*", "numpy 1.26.*", "==1.26.*"),
        ("numpy==1.26.4", "numpy ==1.26.4", "==1.26.4"),
        ("numpy==1.26.*", "numpy 1.26.*", "==1.26.*"),
        ("numpy 1.26.*", "numpy 1.26.*", "==1.26.*"),
        ("numpy 1.26.4", "numpy 1.26.4", "==1.26.4"),
        ("numpy>=1.26", "numpy >=1.26", ">=1.26"),
        ("numpy >= 1.26 , <2", "numpy >=1.26,<2", ">=1.26,<2"),
        ("numpy!=1.26.*", "numpy !=1.26.*", "!=1.26.*"),
        ("numpy=*", "numpy", ""),
        ("numpy *", "numpy", ""),
        ("numpy=1.26.4=py312_0", "numpy ==1.26.4", "==1.26.4"),
        ("numpy 1.26.4 py312_0", "numpy ==1.26.4", "==1.26.4"),
        ("numpy=1.26|1.27", "numpy =1.26|1.27", None),
        ("NumPy", "numpy", ""),
    ],
)
def test_versions(text: str, spec: str, specifier: str | None) -> None:
    parsed = conda_spec.parse(text, "x:1")
    assert parsed.text() == spec
    assert parsed.specifier() == specifier


def test_channel_and_build() -> None:
    spec = conda_spec.parse("conda-forge::numpy=1.26.4=py312_0", "x:1")
    assert (spec.channel, spec.name, spec.build) == ("conda-forge", "numpy", "py312_0")


@given(st.text(alphabet="ab1.*=<>!~,| :[]-_", max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        spec = conda_spec.parse(text, "x:1")
    except InvalidError as error:
        refused = error
    else:
        assert " " not in spec.versions
        return
    assert refused.message.startswith("x:1: ")
