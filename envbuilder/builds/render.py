"""Render files from a profile and its lock. The same input always gives the same bytes."""

from __future__ import annotations

from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import conventions
from envbuilder.core import types
from envbuilder.core.errors import Hint, InvalidError, is_public, public, secrets_in
from envbuilder.core.resources import MARK, filled
from envbuilder.core.settings import Environment
from envbuilder.packages.python import indexes
from envbuilder.profiles import backends
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.lock import BUILT, PRUNED, File, Lock, Target
from envbuilder.profiles.profile import Profile, require_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from envbuilder.builds.project_layer import ProjectLayer
    from envbuilder.core.settings import Settings


RenderTarget = Literal[
    "dockerfile",
    "compose",
    "devcontainer",
    "script",
    "requirements",
    "pylock",
    "conda",
]
TARGETS: tuple[RenderTarget, ...] = get_args(RenderTarget)
IMAGE_TARGETS: Mapping[RenderTarget, str] = MappingProxyType(
    {"dockerfile": "", "compose": "image/", "devcontainer": ".devcontainer/image/"}
)
"""The targets that include a Dockerfile, each with the Dockerfile's folder relative to the output
folder."""

MADE = frozenset({BUILT, PRUNED})
"""Sources of wheels that are not published. A rendered Dockerfile therefore builds these wheels."""

BAKE: Final = "bake"
_BAKE_FILE = "docker-bake.hcl"
_NOTHING = Environment()


class RenderedFile(Struct, frozen=True, kw_only=True):
    """A file to write: its path relative to the output folder, and its content.

    Creating an instance raises `InvalidError` if the content includes a credential, because
    rendered files end up in repositories and images.
    """

    name: str
    content: bytes

    def __post_init__(self) -> None:
        if not self.name.endswith((".tar", ".pyz")):
            for line, secret in secrets_in(self.content.decode(errors="replace")):
                raise InvalidError(
                    f"{self.name}, line {line}: the rendered file would contain a credential"
                    f" ({secret})",
                    "Remove it from envbuilder.yaml or the profile, and pass it when you run the"
                    " program: -e NAME.",
                )


class Requirement(Struct, frozen=True, kw_only=True):
    """A line in a requirements file, which contains a package's version and all accepted hashes."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    files: tuple[File, ...]


def default_target(profile: Profile) -> RenderTarget:
    """Return the render target to use if the user does not name one.

    This is `conda` if the profile has only the conda backend. Otherwise, it is `dockerfile` if
    images can be built from the profile, else `script`, which makes a native venv.
    """
    if _needs_conda(profile):
        return "conda"
    return "dockerfile" if profile.makes_images else "script"


def _needs_conda(profile: Profile) -> bool:
    return profile.backends == ("conda",)


def targets_for(lock: Lock, python: str) -> tuple[Target, ...]:
    """Return the lock's targets for a Python version. Raise `InvalidError` if there are none."""
    targets = tuple(t for t in lock.targets if t.python == python)
    if not targets:
        pythons = sorted({t.python for t in lock.targets})
        raise InvalidError(
            f"the lock of '{lock.profile}' has no Python {python}",
            f"It covers Python {', '.join(pythons) or '(nothing)'}.",
        )
    return targets


def requirements(targets: tuple[Target, ...]) -> tuple[Requirement, ...]:
    """Return one line for each package version in the targets.

    If a version is not in all targets, its line has a marker for the platforms that use the
    version.
    """
    return _lines([(target, target.packages) for target in targets])


def _lines(
    targets: Sequence[tuple[Target, Iterable[File]]],
) -> tuple[Requirement, ...]:
    """Return one line for each package version, with a marker if any target lacks that version."""
    by_pin: dict[tuple[str, str], list[tuple[Target, File]]] = {}
    for target, files in targets:
        for file in files:
            by_pin.setdefault((file.name.lower(), file.version), []).append((target, file))
    lines = []
    for _, entries in sorted(by_pin.items()):
        platforms = dict.fromkeys(target.platform for target, _ in entries)
        alternatives = []
        if len(platforms) < len(targets):
            for platform in platforms:
                system = types.system(platform)
                machine = types.machine(platform)
                alternatives.append(
                    f"(sys_platform == '{system}' and platform_machine == '{machine}')"
                )
        lines.append(_line((file for _, file in entries), " or ".join(alternatives)))
    return tuple(lines)


def _line(files: Iterable[File], marker: str = "") -> Requirement:
    """Return the requirements line for one package version, which accepts any one of `files`."""
    by_hash = dict(sorted((file.sha256, file) for file in files))
    ordered = tuple(by_hash.values())
    return Requirement(
        name=ordered[0].name.lower(),
        version=ordered[0].version,
        marker=marker,
        hashes=tuple(by_hash),
        files=ordered,
    )


def placeholder_urls(lock: Lock) -> dict[str, str]:
    """Return a placeholder URL for each source in the lock, by source.

    The placeholders are for rendered files that are used without downloading anything.
    """
    return {f.source: f"https://{f.source}.invalid" for f in lock.files}


def render(
    profile: Profile,
    lock: Lock,
    target: RenderTarget,
    python: str,
    urls: Mapping[str, str],
    environment: Environment = _NOTHING,
    project: ProjectLayer | None = None,
    chosen_by: Sequence[str] = (),
) -> Iterator[RenderedFile]:
    """Yield the files of a render target, main file first.

    Each file is rendered when it is requested.

    `urls` maps the symbolic sources of the lock's files to URLs. For `conda`, it also maps the
    profile's channels to URLs. The rendered files contain these URLs without credentials.

    `environment` is the project's environment, which the container definitions use. `project` is
    the layer with the project's own files, which the Dockerfile adds. `chosen_by` contains the
    options that chose the environment and its Python. A command quoted in a rendered file repeats
    these options.

    Raise `InvalidError` if the profile cannot be rendered as this target.
    """
    context = _context(profile, lock, targets_for(lock, python), python)
    public_urls = {name: public(url) for name, url in urls.items()}
    private = {name for name, url in urls.items() if not is_public(url)}
    if target in IMAGE_TARGETS:
        image = _image(profile, context, public_urls, private)
        if target != "dockerfile":
            volumes = [path for source, path in environment.volumes.items() if source[0] != "."]
            image = {**image, "volumes": volumes}
            yield from _services(target, image, environment)
        if project and target == "dockerfile":
            image |= {"project": project, "variables": project.variables(image["variables"])}
        yield from _dockerfile(context, image, IMAGE_TARGETS[target])
        return
    _require_named(context["requirements"], target)
    indexes = sorted(set(profile.indexes.values()))
    context["indexes"] = tuple(public_urls[name] for name in indexes if name in public_urls)
    context["private"] = [name for name in indexes if name in private]
    if target == "script":
        if _needs_conda(profile):
            require_backend(profile, "venv")
        yield _rendered("setup-venv.sh", "venv/setup-venv.sh.j2", context)
    if target == "conda":
        yield _conda(profile, context, urls)
    if target == "pylock":
        words = ("render", "--profile", profile.name, *chosen_by, "--target", "requirements")
        context["download"] = Hint("", (*words, "--output", "wheels")).command_line()
        name = f"pylock.{profile.name}-py{python.replace('.', '')}.toml"
        yield _rendered(name, "pylock.toml.j2", context)
        return
    yield _rendered("requirements.txt", "requirements.txt.j2", context)


def _require_named(lines: Iterable[Requirement], target: RenderTarget) -> None:
    """Raise `InvalidError` if a package is built from a source other than an sdist.

    Installers cannot both build such a package and verify it by its hash.
    """
    for file in chain.from_iterable(line.files for line in lines):
        if file.kind == "source" and file.recipe and file.recipe.kind != "sdist":
            raise InvalidError(
                f"{file.name} {file.version} is built from {file.recipe.location}, which --target"
                f" {target} cannot build and verify by its hash",
                "Use --target dockerfile, which builds it in the image.",
            )


def _conda(profile: Profile, context: Mapping[str, Any], urls: Mapping[str, str]) -> RenderedFile:
    """Return the file for conda, mamba and micromamba, without the profile's wheels.

    The wheels are in a requirements file. Raise `InvalidError` if the profile has no conda backend.
    """
    from envbuilder.packages.conda import lock as conda
    from envbuilder.packages.conda.solve import specs

    require_backend(profile, "conda")
    variables = {
        **context,
        "conda": conda,
        "specs": specs(profile, context["python"]),
        "channels": conda.channels(profile.conda.channels, urls),
    }
    return _rendered("environment.yml", "conda/environment.yml.j2", variables)


def _image(
    profile: Profile, context: Mapping[str, Any], urls: Mapping[str, str], private: Collection[str]
) -> dict[str, Any]:
    """Return the template variables for the Dockerfile.

    `private` contains the sources whose URLs had credentials. Raise `InvalidError` if no Dockerfile
    can be rendered for the profile.
    """
    if not profile.makes_images:
        reason = "containers cannot reach its device"
        if _needs_conda(profile):
            reason = "its packages come from conda channels"
        raise InvalidError(
            f"no Dockerfile can be rendered for profile '{profile.name}': {reason}",
            Hint(
                "Render a supported target",
                ("render", "--profile", profile.name, "--target", default_target(profile)),
            ),
        )
    targets = tuple(t for t in context["targets"] if t.platform.startswith("linux/"))
    base = targets[0].base if targets else None
    if base is None:
        pythons = sorted(profile.image_pythons)
        raise InvalidError(
            f"profile '{profile.name}' has no base image for Python {context['python']}",
            f"It has base images for Python {', '.join(pythons)}: use --python-version.",
        )
    debs: dict[str, tuple[File, ...]] = {}
    interpreters: dict[str, File] = {}
    contexts: dict[str, str] = {}
    built: dict[str, list[dict[str, Any]]] = {}
    others: list[tuple[Target, list[File]]] = []
    direct: list[tuple[Target, list[File]]] = []
    for target in targets:
        debs[target.platform] = target.of_kind("deb")
        contexts |= {file.source: "debs" for file in debs[target.platform]}
        if target.of_image:
            interpreters[target.platform] = target.of_image
            contexts[target.of_image.source] = "interpreter"
        built[target.platform] = [
            _source_build(f, target) for f in target.packages if f.source in MADE
        ]
        published = [file for file in target.packages if file.source not in MADE]
        others.append((target, published))
        direct.append((target, [file for file in published if file.recipe]))
    return {
        **context,
        "requirements": _lines(others),
        "direct": _lines(direct),
        "built": built if any(built.values()) else {},
        "base": base,
        "image": conventions,
        "volumes": (),
        "project": None,
        "variables": conventions.variables(profile),
        # A Dockerfile runs the locked uv on the platforms of its targets.
        "tools": (_line(context["lock"].tool(t.platform) for t in targets),),
        "private": sorted(set(private).intersection(profile.indexes.values())),
        "private_archives": {n: c for n, c in sorted(contexts.items()) if n in private},
        "debs": debs if any(debs.values()) else {},
        "interpreters": interpreters,
        "archives": sorted(contexts),
        "urls": urls,
        "indexes": {n: urls[n] for n in sorted(set(profile.indexes.values())) if n in urls},
    }


def _source_build(file: File, target: Target) -> dict[str, Any]:
    """Return the template variables with which a Dockerfile builds a package from its source.

    The value of `beside` lists the wheels that the build needs and the target installs anyway. The
    value of `needs` lists the other wheels that the build needs.
    """
    from envbuilder.packages.sources import sealed, source_locker

    wheels = source_locker.builders(file, target) if file.is_built else (sealed.unpruned(file),)
    every = [(wheel in target.files, _line([wheel])) for wheel in wheels]
    return {
        "file": file,
        "needs": [line for is_installed, line in every if not is_installed],
        "beside": [line for is_installed, line in every if is_installed],
    }


def _dockerfile(
    context: Mapping[str, Any], image: Mapping[str, Any], folder: str
) -> Iterator[RenderedFile]:
    """Yield a Dockerfile and the files that it copies, all in `folder` within the output folder."""
    yield _rendered("Dockerfile", "docker/Dockerfile.j2", image, folder)
    by_name = {**context, "requirements": image["requirements"], "by_name": True}
    yield _rendered("requirements.txt", "requirements.txt.j2", by_name, folder)
    from envbuilder.builds.payload import COMPILER, payload_pyz  # a print needs none

    if image["profile"].bytecode:
        program = f"# {MARK}; do not edit.\n{COMPILER.read_text()}"
        yield RenderedFile(name=f"{folder}{COMPILER.name}", content=program.encode())
    yield RenderedFile(name=f"{folder}payload.pyz", content=payload_pyz())


def _services(
    target: RenderTarget, image: Mapping[str, Any], environment: Environment
) -> Iterator[RenderedFile]:
    """Yield the files for the `compose` or `devcontainer` target, which mount the project."""
    folder = ".devcontainer/" if target == "devcontainer" else ""
    sources = [
        *(f"{name}_INDEX" for name in image["indexes"]),
        *(f"{name}_MIRROR" for name in image["archives"]),
    ]
    context = {
        **image,
        "target": target,
        "service": "env",
        "above": ".." if folder else ".",
        "stated": environment,
        "python_path": ":".join(f"{conventions.WORK}/{path}" for path in environment.python_path),
        "build_arguments": ["BASE_IMAGE", "PIP_INDEX_URL"]
        + [name.upper().replace("-", "_") for name in sources],
    }
    names = ("compose.yaml", "compose-override.sh")
    for name in ("devcontainer.json", *names) if folder else names:
        yield _rendered(name, f"compose/{name}.j2", context, folder)


def _context(
    profile: Profile, lock: Lock, targets: tuple[Target, ...], python: str
) -> dict[str, Any]:
    return {
        "mark": MARK,
        "profile": profile,
        "framework": FRAMEWORKS[profile.framework],
        "lock": lock,
        "python": python,
        "targets": targets,
        "requirements": requirements(targets),
        "indexes": (),
        "private": (),
        "by_name": False,
    }


def _rendered(
    name: str, template: str, context: Mapping[str, Any], folder: str = ""
) -> RenderedFile:
    text = filled(template, {**context, "file_name": name})
    return RenderedFile(name=folder + name, content=text.encode())


def source_urls(lock: Lock, settings: Settings) -> dict[str, str]:
    """Return the URLs to use in rendered files, by symbolic source in the lock.

    The user's own package index is never among these URLs.
    """
    examples = {f.source: f for f in lock.files if f.source != indexes.DEFAULT and not f.recipe}
    urls: dict[str, str] = {}
    for source, file in sorted(examples.items()):
        if file.kind == "deb":
            from envbuilder.packages.debian import mirrors

            urls[source] = mirrors.snapshot(file, settings)
        else:
            urls[source] = indexes.url(source, settings)
    return urls


# --- a bake file: one target for each profile and platform, built from rendered Dockerfiles


class BakeSource(Struct, frozen=True, kw_only=True):
    """A profile to include in a bake file, with its lock, Python version and file URLs."""

    profile: Profile
    lock: Lock
    python: str
    urls: dict[str, str]


class BakeTarget(Struct, frozen=True, kw_only=True):
    """A target in the bake file, which represents one profile on one platform."""

    name: str
    profile: str
    platform: types.Platform
    tag: str


def bake_files(
    sources: Sequence[BakeSource],
    project: ProjectLayer | None = None,
) -> Iterator[RenderedFile]:
    """Yield the bake file, then each profile's Dockerfile in a folder named after the profile.

    Raise `InvalidError` if a profile has no Dockerfile, or if two targets or groups would have the
    same name.
    """
    rendered: list[RenderedFile] = []
    targets: list[BakeTarget] = []
    for source in sources:
        name = source.profile.name
        files = render(
            source.profile, source.lock, "dockerfile", source.python, source.urls, project=project
        )
        rendered += (replace(file, name=f"{name}/{file.name}") for file in files)
        for target in targets_for(source.lock, source.python):
            if target.platform in backends.PLATFORMS:
                suffix = target.platform.replace("/", "-")
                targets.append(
                    BakeTarget(
                        name=f"{name}-{suffix}",
                        profile=name,
                        platform=target.platform,
                        tag=f"envbuilder/{name}:py{source.python}-{suffix}",
                    )
                )
    profiles = _grouped(targets, lambda target: target.profile)
    platforms = _grouped(targets, lambda target: target.platform.replace("/", "-"))
    taken = {"default", *platforms, *(target.name for target in targets)}
    for name in taken.intersection(profiles):
        raise InvalidError(
            f"profile '{name}' has the same name as another group or target in the bake file",
            "Remove this profile, or rename it.",
        )
    context = {
        "mark": MARK,
        "targets": targets,
        "groups": profiles | platforms,
        "amd": "linux-amd64" in platforms,
        "arm": "linux-arm64" in platforms,
    }
    yield RenderedFile(name=_BAKE_FILE, content=filled("bake/docker-bake.hcl.j2", context).encode())
    yield from rendered


def _grouped(
    targets: Iterable[BakeTarget], key: Callable[[BakeTarget], str]
) -> dict[str, list[str]]:
    """Return the names of the targets, grouped by `key` and otherwise in their original order."""
    groups: dict[str, list[str]] = {}
    for target in targets:
        groups.setdefault(key(target), []).append(target.name)
    return groups
