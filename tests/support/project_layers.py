"""Projects whose own files are the last layer of their image."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from envbuilder.builds.project_layer import ProjectLayer
from envbuilder.project.image_files import Contents, ImageFile


def lay(folder: Path, files: dict[str, bytes], **options: Any) -> ProjectLayer:
    """Write files, and return the layer that they make."""
    listed = []
    for name, content in sorted(files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        listed.append(ImageFile(path=name, sha256=sha256, size=len(content)))
    contents = Contents(files=tuple(listed))
    return ProjectLayer(folder=str(folder), digest=contents.digest, files=contents.files, **options)
