"""The table of conda's Python packages, made from upstream's mappings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import refresh_conda_names as refresh

FORGE = {
    "numpy": ["numpy"],
    "mkl_fft": ["mkl_fft"],
    "pytorch": ["torch"],
    "bleach": ["bleach", "six"],
    "python-avro": ["avro-python3", "Avro"],
    "cvxpy-base": ["cvxpy", "unknown"],
    "nsight": ["pip"],
    "_dvc": ["dvc"],
    "redis": None,
}
TABLE = ["bleach", "cvxpy-base cvxpy", "mkl-fft", "numpy", "python-avro avro,avro-python3"]


def test_the_table_is_written_from_the_mappings_of_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "TABLE", tmp_path / "table.txt")
    (tmp_path / "forge.json").write_text(json.dumps(FORGE))
    (tmp_path / "other.json").write_text(json.dumps({"redis-py": ["redis"], "numpy": None}))
    paths = [str(tmp_path / name) for name in ("forge.json", "other.json")]
    assert refresh.main([*paths, "--version", "1234abcd of 2026-01-02"]) == 0
    text = (tmp_path / "table.txt").read_text()
    listed = [line for line in text.splitlines() if not line.startswith("#")]
    assert listed == [*TABLE, "pytorch torch", "redis-py redis"]
    assert "1234abcd of 2026-01-02" in text
