"""The base image as an OCI layout on the local disk, whatever its source, and images built on it.

The Python version of the base is checked before anything is fetched. If the base is in a layout,
the version is read from its files. If the base is in an engine, its Python is run in the same way
as in the build. If neither method determines the version, the build itself fails if the Python has
the wrong version.
"""

from __future__ import annotations

import datetime
import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import conventions, project_layer
from envbuilder.builds.plan import Assemble, BaseCheck, LoadBase, MakeBase, Plan, fingerprint
from envbuilder.containers.engine import connection
from envbuilder.containers.engine.container import Container
from envbuilder.containers.engine.interface import LABEL, Engine, Image, no_base
from envbuilder.containers.oci import archive, reference, rootfs
from envbuilder.containers.oci.layer import Layer
from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    LAYER,
    LAYER_ZSTD,
    MANIFEST,
    Descriptor,
    Index,
    Layout,
    Manifest,
    encode,
    oci_platform,
)
from envbuilder.core import console, files, process, types
from envbuilder.core.errors import BuildError, Hint, InvalidError, ToolError, VerifyError
from envbuilder.core.settings import DEFAULT, Settings, require_writable
from envbuilder.packages.sources import sealed
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import BUILT, File, Lock, LockedBase, Target, select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.builds.image.layer_cache import LayerCache
    from envbuilder.builds.project_layer import ProjectLayer
    from envbuilder.builds.request import Locked, Request
    from envbuilder.host.model import Host
    from envbuilder.profiles.profile import Base as BaseImage, Profile


LATEST = "latest"
"""Tag of a profile's newest image."""
RECIPE = 2
"""Version of the recipe for bases. Increment it when the same packages give different bytes."""
MAKER = "mmdebstrap"
"""Name of the program that makes a base from Debian packages."""
_MAKER_HINT = (
    "mmdebstrap makes the base from Debian packages. On Debian and Ubuntu, install it: apt-get"
    " install mmdebstrap. Elsewhere, use a base image: ENVBUILDER_BASE_IMAGE=REF."
)
_LONGEST = 40
"""Maximum number of characters that the names of the project and environment take up in an image's
name."""
_PYTHON_SECONDS = 60
# Looks for Python as the Dockerfile does.
_PYTHON_QUERY = (
    "python=$(command -v python{minor} || command -v python3) || {{ echo none; exit 0; }};"
    """ exec "$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])'"""
)

_LIBC_QUERY = "getconf GNU_LIBC_VERSION"


class Base(Struct, frozen=True, kw_only=True):
    """A plan's base image: its name, its identity, its location and the steps that provide it."""

    ref: str
    identity: str
    """An identifier of the image's content, independent of its location: the digest of the image's
    configuration, or a hash of the inputs that the base is made from. In a dry run, it may be the
    image's name."""
    folder: str = ""
    """Folder of the base's OCI layout. It is empty if the base is in an engine or will be loaded
    into an engine."""
    make: tuple[MakeBase | LoadBase, ...] = ()
    """Steps that make the layout and load the base. Empty if the base is an existing image."""


def target(profile: Profile, lock: Lock, host: Host, request: Request) -> Target:
    """Return the locked target for images on this host's architecture.

    Raise `InvalidError` if the target has no base image.
    """
    platform = types.container_platform(host.machine) or "linux/amd64"
    python = request.python or profile.image_python
    selected = select(lock, platform, python)
    if selected.base is None:
        raise InvalidError(f"the lock of '{profile.name}' has no base image for Python {python}")
    return selected


def base_ref(base: BaseImage | LockedBase, request: Request, settings: Settings) -> str:
    """Return the reference of the base image.

    This is the requested image if there is one, otherwise the configured image if there is one,
    otherwise the locked image.
    """
    if request.base_image:
        return request.base_image
    configured = settings.configuration.base_images.get(base.ref)
    if configured:
        return configured
    return f"{base.ref}@{base.digest}" if base.digest else base.ref


def repository(profile: str, settings: Settings) -> str:
    """Return the repository name for a profile's images, which differs between projects.

    The name contains the name of the project folder, the name of the environment (unless it is the
    default environment) and a few digits of a hash, which distinguish project folders of the same
    name. Outside projects, the repository name contains only the profile's name.
    """
    project = settings.project
    if project is None or settings.definition is None:
        return f"envbuilder/{profile}"
    words = (
        (project.name,) if settings.environment == DEFAULT else (project.name, settings.environment)
    )
    plain = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower())[:_LONGEST].strip("-")
    digits = files.folder_identity(project.joinpath(*words[1:]))[:6]
    return f"envbuilder/{plain or 'project'}-{digits}/{profile}"


def names(
    build: Locked, target: Target, digest: str, project: project_layer.ProjectLayer | None
) -> tuple[str, ...]:
    """Return the names to give to the image with the fingerprint `digest`.

    The first name is also the artifact's name.
    """
    request = build.request
    if request.only_tag:
        return (request.only_tag,)
    name = repository(build.profile.name, build.settings)
    newest = project_layer.NEWEST if project else LATEST
    fingerprinted = f"{name}:py{target.python}-{digest[:12]}"
    return (fingerprinted, f"{name}:{newest}", *([request.tag] if request.tag else []))


def project_files(request: Request, settings: Settings) -> project_layer.ProjectLayer | None:
    """Return the layer of the project's own files, or None if the request does not include them."""
    layer = project_layer.planned(settings) if request.with_project else None
    if layer is None or request.project_copy is None:
        return layer
    folder = str(request.project_copy)
    return replace(layer, folder=folder, laid=folder)


def labels(profile: Profile, digest: str, locked: str) -> dict[str, str]:
    """Return the labels of an image.

    `digest` is the fingerprint of the image, and `locked` is the digest of its lock.
    """
    values = {"fingerprint": digest, "profile": profile.name, "lock": locked}
    return {f"{LABEL}{key}": value for key, value in values.items()}


def debian_step(target: Target, settings: Settings) -> MakeBase:
    """Return the step that makes the target's base from Debian packages.

    This function has no side effects. The base is made only when the step is run.
    """
    base = target.base
    assert base is not None, "a target with a base"
    identity = fingerprint(
        {
            "recipe": RECIPE,
            "suite": base.suite,
            "platform": target.platform,
            "files": sorted(f.sha256 for f in target.base_files),
            "epoch": base.epoch,
            "unpacked": base.unpacked,
        }
    )
    return MakeBase(
        what=f"make the base from {len(target.base_files)} Debian packages",
        identity=identity,
        ref=base.ref,
        suite=base.suite,
        platform=target.platform,
        files=target.base_files,
        epoch=base.epoch,
        unpacked=base.unpacked,
        layout=str(settings.cache_dir / "bases" / f"debian-{identity}"),
    )


def require_maker(base: MakeBase | None = None) -> None:
    """Raise `ToolError` if mmdebstrap is missing, unless `base` has already been made."""
    if base is not None and (Path(base.layout) / "index.json").is_file():
        return
    if process.which(MAKER) is None:
        raise ToolError(f"{MAKER} is not on PATH", _MAKER_HINT)


def loaded(step: MakeBase, settings: Settings) -> LoadBase:
    """Return the step that loads a base into the engine under the name used in the Dockerfile."""
    return LoadBase(
        what="load the base into the engine",
        layout=step.layout,
        cache=str(settings.cache_dir / "layers"),
        ref=step.ref,
        identity=step.identity,
        folder=str(settings.records_dir / step.identity),
    )


def find(
    target: Target,
    engine: Engine | None,
    request: Request,
    settings: Settings,
    *,
    scripts: bool,
) -> Base:
    """Find the requested, configured or locked base image, and provide it as an OCI layout.

    `engine` is an already connected engine, or None. `scripts` must be true if packages run scripts
    during installation. In that case, the engine needs the base image in addition to the layout.
    """
    locked = target.base
    assert locked is not None, "a target with a base"
    override = request.base_image or settings.configuration.base_images.get(locked.ref)
    ref = base_ref(locked, request, settings)
    if override is None and locked.suite:
        step = debian_step(target, settings)
        if not request.dry_run:
            require_maker(step)
        make = (step, loaded(step, settings)) if scripts else (step,)
        return Base(ref=ref, identity=step.identity, folder=step.layout, make=make)
    if request.dry_run and not reference.is_on_disk(ref):
        return Base(ref=ref, identity=ref, folder="")
    if reference.is_on_disk(ref):
        layout = archive.opened(reference.path_on_disk(ref), require_writable(settings.bases_dir))
    elif override is None and locked.digest and not (scripts or (engine and engine.image(ref))):
        from envbuilder.containers.registry import transfer

        layout = transfer.obtain_base(
            locked.ref, locked.digest, target.platform, settings, console.progress()
        )
    else:
        layout = _of_engine(ref, target.platform, engine, settings)
    manifest = layout.manifest(target.platform)
    return Base(ref=ref, identity=manifest.config.digest, folder=str(layout.folder))


def _of_engine(
    ref: str, platform: types.Platform, connected: Engine | None, settings: Settings
) -> Layout:
    from envbuilder.containers.engine import images

    with nullcontext(connected) if connected else connection.connect() as engine:
        image = engine.image(ref)
        if image is None:
            image = pulled(engine, engine.pull_name(ref), platform)
        bases = require_writable(settings.bases_dir)
        was_copied = (bases / image.id.removeprefix("sha256:")).is_dir()
        copying = console.progress().task(f"copy the base image {ref} from the engine")
        with nullcontext() if was_copied else copying:
            layout = images.export(engine, image, bases)
    return layout


def identified(engine: Engine, ref: str, platform: str) -> tuple[str, str]:
    """Return the name to use for the base image in the engine, and the identity of the image.

    A reference with a digest is itself the identity, since it identifies an image even before the
    image is pulled. Otherwise, the identity is the image's id in the engine. An image that is named
    by a tag is pulled first, so that the fingerprint is the same before and after the build.
    """
    image = engine.image(ref)
    name = ref if image else engine.pull_name(ref)
    if "@" in ref:
        return name, ref
    image = image or pulled(engine, name, platform)
    return name, image.id


def pulled(engine: Engine, ref: str, platform: str) -> Image:
    """Have the engine pull an image, and return the image.

    Raise `BuildError` if the engine does not have the image afterwards.
    """
    with console.progress().task(f"pull the base image {ref}"):
        engine.pull(ref, platform)
    image = engine.image(ref)
    if image is None:
        raise BuildError(f"{ref}: pulled, but the engine does not have the image", no_base(ref))
    return image


def python_check(lock: Lock, target: Target, base: Base) -> BaseCheck | None:
    """Return a check of the base's Python version, or None if no check is needed.

    No check is needed if envbuilder makes the base, or if the image gets its Python from the lock.
    """
    interpreters = re.compile(rf"python{re.escape(target.python)}(-minimal)?")
    if (
        base.make
        or target.of_image
        or any(interpreters.fullmatch(deb.name) for deb in target.of_kind("deb"))
    ):
        return None
    locked = (t.python for t in lock.targets if t.platform == target.platform and t.base)
    return BaseCheck(ref=base.ref, layout=base.folder, pythons=tuple(locked))


def require_python(plan: Plan, settings: Settings, progress: console.Progress) -> None:
    """Raise `BuildError` if the base has a different Python version than the plan.

    If the base is supposed to be in the engine but is not, the base is pulled for this check.
    """
    check = plan.base_check
    if check is None:
        return
    if check.layout:
        base = _contents(check.layout, plan, settings, progress)
        try:
            base.root.python(plan.python, base_variables(base.config)["PATH"])
        except rootfs.OtherPythonError as error:
            raise rootfs.OtherPythonError(plan.python, error.version, check.pythons) from error
        return
    version = _python_of_engine(plan, check.ref, progress)
    if version not in {"", plan.python}:
        raise rootfs.OtherPythonError(plan.python, version, check.pythons)


def require_libc(
    plan: Plan, target: Target, settings: Settings, progress: console.Progress
) -> None:
    """Raise `BuildError` if a wheel built from source needs a newer glibc than the base has.

    In the image, Python would fail to import such a wheel.
    """
    store = Store.of(settings)
    needed: dict[File, int] = {}
    for file in plan.files:
        if file.source == BUILT and file.kind == "wheel" and not file.file.endswith("-any.whl"):
            needed[file] = store.derived(file.sha256, "glibc-1", int, sealed.glibc)
    if not needed:
        return
    file = max(needed, key=needed.__getitem__)
    has = _libc(plan, target, settings, progress)
    if needed[file] > (has or 0):
        raise BuildError(
            f"{file.name} {file.version} was compiled on a newer system than the base image: it"
            f" needs glibc 2.{needed[file]}, but the base image has"
            f" {'an unknown version' if has is None else f'2.{has}'}",
            (
                Hint(
                    "Use a base image at least as new as the system on which it was compiled:"
                    " ENVBUILDER_BASE_IMAGE=REF"
                ),
                Hint(
                    "Or write a Dockerfile that compiles it on the base image",
                    ("render", "--profile", plan.profile, "--output", "FOLDER"),
                ),
            ),
        )


def _libc(plan: Plan, target: Target, settings: Settings, progress: console.Progress) -> int | None:
    """Return the minor version of the base's glibc, such as 36 for glibc 2.36.

    Return None if the base has no glibc or if the version is unknown.
    """
    version = next((d.version for d in target.files if (d.kind, d.name) == ("deb", "libc6")), "")
    layouts = [step.base for step in plan.steps if isinstance(step, Assemble)]
    layouts += [plan.base_check.layout] if plan.base_check else []
    layout = next(filter(None, layouts), "")
    if not version and layout:
        root = _contents(layout, plan, settings, progress).root
        status = b"\n\n".join(root.contents.values()).decode("utf-8", "replace")
        package = re.search(r"^Package: libc6\n(?:.+\n)*?Version: (.+)", status, re.MULTILINE)
        version = package[1] if package else ""
    elif not version and plan.base:
        version = _said_by_engine(plan, plan.base.ref, _LIBC_QUERY, progress)
    minor = re.match(r"(?:glibc )?2\.([0-9]{1,3})", version)
    return int(minor[1]) if minor else None


def _contents(
    layout: str, plan: Plan, settings: Settings, progress: console.Progress
) -> BaseContents:
    from envbuilder.builds.image.layer_cache import LayerCache

    cache = LayerCache(settings.cache_dir / "layers", progress.note, fresh=False)
    return read_contents(layout, plan.platform, cache)


def _python_of_engine(plan: Plan, ref: str, progress: console.Progress) -> str:
    """Return the version (X.Y) of the Python that the build would use in the base.

    Return an empty string if the version is unknown. If the base has no Python, return a phrase
    that says so, for use in an error message.
    """
    answer = _said_by_engine(plan, ref, _PYTHON_QUERY.format(minor=plan.python), progress)
    if answer == "none":
        return "none on its PATH"
    return answer if re.fullmatch(r"[0-9]+\.[0-9]+", answer) else ""


def _said_by_engine(plan: Plan, ref: str, query: str, progress: console.Progress) -> str:
    """Run a shell command in the base, and return the command's output.

    Return an empty string if the command cannot be run.
    """
    with connection.connect() as engine:
        image = engine.image(ref) or pulled(engine, ref, plan.platform)
        container = Container(
            image=image.id,
            entrypoint=("/bin/sh",),
            arguments=("-c", query),
            platform=plan.platform,
            user=conventions.USER,
            limits=engine.limits,
        )
        with progress.task("check the base image"):
            try:
                return engine.run(container, lambda _: None, _PYTHON_SECONDS).stdout.strip()
            except (VerifyError, ToolError):
                return ""


# --- what a base contains, and the image on top of it


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH that Docker uses for images that set none."""
# Keys of the OCI specification. Builders add others, some of which describe the build machine.
_CARRIED = ("architecture", "os", "os.version", "os.features", "variant", "config", "history")
_OCI_TYPES = {
    "application/vnd.docker.image.rootfs.diff.tar": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": f"{LAYER}+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": LAYER_ZSTD,
}


class BaseContents(Struct, frozen=True, kw_only=True):
    """The contents of a base image in a layout."""

    layout: Layout
    manifest: Manifest
    config: dict[str, Any]
    root: rootfs.RootFs

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """The base's layers, with Docker's media types replaced with OCI's.

        An OCI manifest cannot contain layers with Docker's media types.
        """
        layers = []
        for blob in self.manifest.layers:
            kind = _OCI_TYPES.get(blob.media_type, blob.media_type)
            layers.append(Descriptor(media_type=kind, digest=blob.digest, size=blob.size))
        return tuple(layers)


def read_contents(folder: str, platform: types.Platform, cache: LayerCache) -> BaseContents:
    """Return the contents of a platform's image in the layout `folder`.

    The index of the image's root filesystem is cached. Raise `EnvbuilderError` if the image is
    missing or damaged.
    """
    layout = Layout.open(Path(folder))
    entry = layout.find(platform)
    manifest = layout.read_manifest(entry)
    root = cache.remembered(
        {"kind": "listing", "manifest": entry.digest},
        rootfs.RootFs,
        lambda: rootfs.read(layout, manifest),
    )
    return BaseContents(
        layout=layout, manifest=manifest, config=layout.read_config(manifest), root=root
    )


def write_image(
    layout: Layout,
    config: Mapping[str, Any],
    layers: tuple[Descriptor, ...],
    platform: types.Platform,
    names: Sequence[str],
) -> None:
    """Write an image's configuration, manifest and index to a layout that already has its layers.

    The index lists the image under each of `names`.
    """
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        config=layout.add(encode(config), CONFIG),
        layers=layers,
    )
    entry = layout.add(encode(manifest), MANIFEST, platform=oci_platform(platform))
    entries = tuple(replace(entry, annotations=archive.named(name)) for name in names) or (entry,)
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=entries))


def created(epoch: int) -> str:
    """Format a time in seconds since 1970 for use in an image's configuration."""
    time = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


class Added(Struct, frozen=True, kw_only=True):
    """A layer on top of the base, and the reason for adding it."""

    layer: Layer
    reason: str


def base_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables in an image's configuration.

    If the configuration does not set PATH, Docker's default is added. Raise `InvalidError` if the
    variables are not a list of strings.
    """
    pairs = (config.get("config") or {}).get("Env") or []
    if not isinstance(pairs, list) or not all(isinstance(p, str) for p in pairs):
        raise InvalidError("the base image's configuration: config.Env: not a list of strings")
    variables = dict(p.split("=", 1) for p in pairs if "=" in p)
    variables.setdefault("PATH", DEFAULT_PATH)
    return variables


def image_config(
    base: Mapping[str, Any],
    added: Sequence[Added],
    variables: Mapping[str, str],
    labels: Mapping[str, str],
    epoch: int,
    project: ProjectLayer | None = None,
) -> dict[str, Any]:
    """Return the configuration of an image that consists of a base and the layers added to it.

    Raise `InvalidError` if the base's configuration is damaged.
    """
    carried: dict[str, Any] = {k: base[k] for k in _CARRIED if k in base}
    base_ids = (base.get("rootfs") or {}).get("diff_ids")
    if not isinstance(base_ids, list) or not all(isinstance(d, str) for d in base_ids):
        raise InvalidError("the base image's configuration: rootfs.diff_ids: not a list of digests")
    inherited = base_variables(base)
    path = project.path if project else conventions.PATH
    overrides = {"PATH": f"{path}:{inherited['PATH']}", **variables}
    run = dict(base.get("config") or {})
    run |= {
        "Env": [f"{k}={v}" for k, v in {**inherited, **overrides}.items()],
        "Labels": {**(run.get("Labels") or {}), **labels},
        "User": conventions.USER,
        "WorkingDir": conventions.WORK,
        "Entrypoint": list(conventions.ENTRYPOINT),
        "Cmd": list(project.command if project else conventions.COMMAND),
        "ArgsEscaped": True,  # BuildKit says so of every image whose Dockerfile has a CMD
    }
    if project and project.ports:
        ports: dict[str, Any] = {f"{port}/tcp": {} for port in project.ports}
        run["ExposedPorts"] = {**(run.get("ExposedPorts") or {}), **ports}
    time = created(epoch)
    history = [{"created": time, "created_by": f"envbuilder: {a.reason}"} for a in added]
    return carried | {
        "created": time,
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [*base_ids, *(a.layer.diff_id for a in added)]},
        "history": [*(base.get("history") or []), *history],
    }
