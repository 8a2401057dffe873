"""Make the page of `docs/reference` on the keys of envbuilder.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core import settings
from tools.project_schema import EXAMPLE
from tools.struct_tables import kind, structures, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.struct_tables import Key, Structure

HEAD = f"""\
# envbuilder.yaml

The folder with this file is the project. Every key is optional. Unknown keys, wrong types and names
that do not exist are refused (exit 2) with file, line, key and a suggestion. The file is plain
data: anchors, aliases and tags are not supported, text that looks like a number or like `true` must
be in quotes, and a key without a value is an error.

```yaml
{EXAMPLE}```

The keys of [Project](#project) and [Environment](#environment) say what the project needs. The
others say how envbuilder works here, and may also stand in your own `config.yaml`: they are in
[Configuration](configuration.md).

## In an editor

`share/envbuilder.schema.json` of the Python environment or prefix that envbuilder is installed into
is a JSON schema of this file, for editors with
[yaml-language-server](https://github.com/redhat-developer/yaml-language-server), such as VS Code
with its YAML extension. This prints its path, if `PYTHON` is the interpreter that envbuilder is
installed for:

```sh
PYTHON -c 'import sysconfig; print(sysconfig.get_path("data") + "/share/envbuilder.schema.json")'
```

Name it in the settings of the editor, for VS Code:

```json
{{ "yaml.schemas": {{ "/PATH/share/envbuilder.schema.json": "envbuilder.yaml" }} }}
```

or in the file's first line. There, the path must be right on each machine: use one relative to
envbuilder.yaml, and put a copy of the schema into the project.

```yaml
# yaml-language-server: $schema=envbuilder.schema.json
```

What depends on more than the file, such as whether a profile or a file exists, is checked by
`envbuilder check` alone.
"""
_TITLES = {"Definition": "Project"}
_EMPTY = {"()": "`[]`", "{}": "`{}`", "None": "none", "": "must be stated"}


def page() -> str:
    """Return the page."""
    found = {structure.name: structure for structure in structures(settings)}
    names = ("Definition", "Environment", "RequirementFile")
    return HEAD + "".join(_section(found[name]) for name in names)


def _section(structure: Structure) -> str:
    rows = list(_rows(structure))
    table = "\n".join(table_of(("key", "value", "default", "meaning"), rows))
    title = _TITLES.get(structure.name, structure.name)
    return f"\n## {title}\n\n{structure.about}\n\n{table}\n"


def _rows(structure: Structure) -> Iterator[tuple[str, ...]]:
    for key in structure.keys:
        value = kind(key.annotation).removesuffix(" or nothing")
        yield f"`{key.name}`", value, _default(key), key.meaning


def _default(key: Key) -> str:
    return _EMPTY.get(key.default) or f"`{key.shown_default}`"
