"""Make the JSON schema and the page of envbuilder.yaml.

    make docs

Editors check, complete and explain the file by the schema. It says what the structures say that
read the file, in the draft that editors support. What no schema can say (that files exist, that
names are known) is checked by envbuilder alone.
"""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from envbuilder.core import resources, settings
from envbuilder.profiles import profile
from tools.matrix import REPOSITORY
from tools.struct_tables import kind, structures, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tools.struct_tables import Key, Structure

FILE = REPOSITORY / "share" / "envbuilder.schema.json"
EXAMPLE = """\
# The project: what it needs in addition to what the hardware needs.
framework: torch
framework_version: "2.13"
profiles: [cpu, cuda, mps]
python: "3.12"
requirements:
  - einops
  - rich>=13
requirements_from:
  - requirements.txt
  - file: pyproject.toml
    extras: [train]
    groups: [dev]
system_packages: [git, ffmpeg]
environment:
  WANDB_MODE: offline
files: [serve.py, src]
python_path: [src]
command: [python, serve.py, --port, "8000"]
ports: [8000]
volumes:
  models: /models
  ./data: /data
as_of: "2024-06-30"
build_from_source: [antlr4-python3-runtime]
cuda_architectures: ["8.6"]
overrides:
  opencv-python: opencv-python-headless
exclude: [triton]
install_project: true
environments:
  notebook:
    requirements: [jupyterlab]

# Configuration: what this place has in addition to what envbuilder knows.
profile: cpu
indexes:
  pytorch-cpu: https://mirror.example/whl/cpu
base_images:
  python:3.12-slim-bookworm: registry.example/python:3.12
mirrors:
  docker.io: mirror.example:5000/hub
shared_store: /srv/envbuilder
signatures:
  locks: [keys/release.pub]
  bundles: [keys/release.pub]
"""
"""A file that has every key."""
_DRAFT = "http://json-schema.org/draft-07/schema#"
_UNREADABLE = ((r"\Z", "$"), (r"\"", '"'), (r"\'", "'"))
"""What Python's regular expressions have and JavaScript's have not → the same in both."""


def examples() -> dict[str, dict[str, Any]]:
    """Return structure → key → its value in the example."""
    data = yaml.safe_load(EXAMPLE)
    (file,) = (entry for entry in data["requirements_from"] if isinstance(entry, dict))
    return {
        "Definition": data,
        "Environment": data,
        "ProjectConfiguration": data,
        "RequirementFile": file,
        "Signatures": data["signatures"],
    }


def schema() -> str:
    """Return the schema as the text of its file."""
    kinds = (settings.Definition, settings.ProjectConfiguration)
    _, made = msgspec.json.schema_components(kinds, ref_template="#/definitions/{name}")
    components: dict[str, Any] = _plain(made)
    _describe(components)
    definition, configuration = (components.pop(kind.__name__) for kind in kinds)
    properties = {**definition["properties"], **configuration["properties"]}
    names = profile.names([resources.profiles_dir()])
    properties["profiles"] |= {"uniqueItems": True}
    properties["profiles"]["items"] |= {"examples": names}
    properties["profile"] |= {"examples": names}
    _refuse_default(properties["environments"]["propertyNames"])
    whole = {
        "$schema": _DRAFT,
        "title": "envbuilder.yaml",
        "description": "What a project needs, and how envbuilder is configured for it.",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "definitions": components,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _refuse_default(names: dict[str, str]) -> None:
    """Add that an environment cannot have the name of the one at the top level."""
    pattern = names["pattern"].removeprefix("^")
    default = settings.DEFAULT
    names["pattern"] = f"^(?!{default}$){pattern}"
    names["patternErrorMessage"] = (
        f"Expected {names['description']}; '{default}' is what the top level describes."
    )


def _describe(components: Mapping[str, Any]) -> None:
    """Add the docstrings of keys, and examples."""
    described = [s for s in structures(settings) if s.name in components]
    # The keys of an environment may also stand at the top level.
    pairs = [(s.name, key) for s in described for key in s.keys]
    pairs += [("Definition", key) for name, key in pairs if name == "Environment"]
    for name, key in pairs:
        node = components[name]["properties"][key.name]
        node |= {"description": key.meaning, "examples": [examples()[name][key.name]]}
        if "`" in key.meaning:
            node["markdownDescription"] = key.meaning


def readable(node: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose pattern JavaScript reads, too, and whose description is unindented.

    Python 3.13 and later remove the indentation of docstrings themselves. A property may have one
    of these two names, so values that are no text stay as they are.
    """
    changed = {}
    if isinstance(pattern := node.get("pattern"), str):
        for python, both in _UNREADABLE:
            pattern = pattern.replace(python, both)
        changed["pattern"] = pattern
    if isinstance(description := node.get("description"), str):
        changed["description"] = inspect.cleandoc(description)
    return {**node, **changed}


def _plain(node: Any) -> Any:
    """Return a schema without what editors cannot read, and with messages instead of patterns.

    Without nothing as a value, too: a key that is left out is not written.
    """
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = readable({key: _plain(value) for key, value in node.items()})
    if "pattern" in plain and "description" in plain:
        plain["patternErrorMessage"] = f"Expected {plain['description']}."
    values = [item for item in plain.get("anyOf", ()) if item != {"type": "null"}]
    if len(values) == 1:
        plain = {key: value for key, value in plain.items() if key != "anyOf"} | values[0]
    # Editors insert defaults; titles are the names of classes.
    dropped = {"default", "title"} | ({"required"} if plain.get("required") == [] else set())
    return {key: value for key, value in plain.items() if key not in dropped}


_HEAD = f"""\
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

envbuilder installs a JSON schema of this file as `share/envbuilder.schema.json`, for editors with
[yaml-language-server](https://github.com/redhat-developer/yaml-language-server), such as VS Code
with its YAML extension. To print the path of the schema, run this command, where `PYTHON` is
envbuilder's interpreter:

```sh
PYTHON -c 'import sysconfig; print(sysconfig.get_path("data") + "/share/envbuilder.schema.json")'
```

Name it in the settings of the editor, for VS Code:

```json
{{ "yaml.schemas": {{ "/PATH/share/envbuilder.schema.json": "envbuilder.yaml" }} }}
```

or, by a path relative to envbuilder.yaml, in the file's first line. Copy the schema into the
project for that.

```yaml
# yaml-language-server: $schema=envbuilder.schema.json
```

`envbuilder check` also checks what the schema cannot, such as whether a profile or a file exists.
"""
_TITLES = {"Definition": "Project"}
_EMPTY = {"()": "`[]`", "{}": "`{}`", "None": "none", "": "must be stated"}


def page() -> str:
    """Return the page."""
    found = {structure.name: structure for structure in structures(settings)}
    names = ("Definition", "Environment", "RequirementFile")
    return _HEAD + "".join(_section(found[name]) for name in names)


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
