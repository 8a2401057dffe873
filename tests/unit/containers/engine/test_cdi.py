"""Which devices CDI files describe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuilder.containers.engine import cdi

JSON = """{"cdiVersion":"0.6.0","kind":"amd.com/gpu","devices":[
 {"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/kfd"}]}},{"name":"all"}],
 "containerEdits":{"hooks":[{"hookName":"createContainer","path":"/x"}]}}"""
YAML = "---\ncdiVersion: 0.5.0\nkind: 'amd.com/gpu'\ndevices:\n- name: '0'\n- name: all\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (JSON, {"amd.com/gpu=0", "amd.com/gpu=all"}),
        (YAML, {"amd.com/gpu=0", "amd.com/gpu=all"}),
        ("devices:\n- name: all\n", set()),
        ("kind: nvidia.com/gpu\ndevices:\n- name: all\n", {"nvidia.com/gpu=all"}),
        ("\xff", set()),
    ],
)
def test_devices_are_named_as_their_kind_and_name(
    text: str, names: set[str], tmp_path: Path
) -> None:
    (tmp_path / ("gpu.json" if text == JSON else "gpu.yaml")).write_text(text)
    os.mkfifo(tmp_path / "pipe.yaml")  # nobody writes to it
    (tmp_path / "gpu.json.d").mkdir()
    assert cdi.devices((tmp_path, tmp_path / "none", tmp_path / "gpu.json.d")) == names
