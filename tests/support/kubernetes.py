"""The Job of the guide to Kubernetes."""

from __future__ import annotations

from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/kubernetes.md"


def job_text() -> str:
    """Return the guide's Job."""
    text = GUIDE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    return "".join(f"{line.removeprefix('    ')}\n" for line in text.splitlines())
