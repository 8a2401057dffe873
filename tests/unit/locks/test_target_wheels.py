"""The wheels of one target, and their sizes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import requests
from msgspec.structs import replace
from urllib3 import HTTPResponse

from envbuilder.core import http, types
from envbuilder.core.settings import load as load_settings
from envbuilder.locks import target_wheels
from envbuilder.packages.python.uv import Found, Offer, StaticIndex, UnresolvableError, Uv
from envbuilder.profiles import profile as profiles, releases
from envbuilder.profiles.lock import File
from tests.support.http_server import Quiet, serving
from tests.support.resolving import offer
from tests.support.shipped import shipped_profile

NOTHING = StaticIndex(url="", offers={})
TENSORFLOW_CPU = shipped_profile("tensorflow-cpu")


def wheel(name: str, version: str) -> Found:
    file = File(
        kind="wheel", name=name, version=version, file=f"{name}-{version}-py3-none-any.whl",
        sha256="0" * 64, size=1, source="default", provenance="read", by="a test",
    )  # fmt: skip
    return Found(file=file, url="")


class Resolver:
    """An index on which tf-keras requires tensorflow, of which 2.22.0 is the newest."""

    index = NOTHING

    def __init__(self, *, fits: bool = True) -> None:
        self.fits = fits
        self.constraints: list[tuple[str, ...]] = []

    def compile(
        self,
        requirements: Sequence[str],
        platform: types.Platform,
        python: str,
        preferred: Any,
        constraints: Sequence[str],
    ) -> tuple[Found, ...]:
        self.constraints.append(tuple(constraints))
        limited = "tensorflow==2.21.0" in constraints
        if limited and not self.fits:
            raise UnresolvableError("tf-keras requires tensorflow>=2.22")
        if platform != "linux/amd64":
            return (wheel("tensorflow", "2.21.0"), wheel("tf-keras", "2.21.0"))
        version = "2.21.0" if limited else "2.22.0"
        return (
            wheel("tensorflow-cpu", "2.21.0"),
            wheel("tensorflow", version),
            wheel("tf-keras", version),
        )


def names(resolver: Resolver, platform: types.Platform) -> list[str]:
    wheels = target_wheels.of_target(TENSORFLOW_CPU, platform, "3.12", {}, cast("Uv", resolver))
    return [f"{w.file.name} {w.file.version}" for w in wheels]


def test_the_other_name_sets_limits_and_is_left_out() -> None:
    resolver = Resolver()
    assert names(resolver, "linux/amd64") == ["tensorflow-cpu 2.21.0", "tf-keras 2.21.0"]
    assert resolver.constraints == [(), ("tensorflow==2.21.0",)]


def test_where_the_profile_has_that_name_nothing_is_left_out() -> None:
    resolver = Resolver()
    assert names(resolver, "macos/arm64") == ["tensorflow 2.21.0", "tf-keras 2.21.0"]
    assert resolver.constraints == [()]


def test_pypi_s_build_is_no_other_one_in_a_folder_of_wheels() -> None:
    """To uv, torch==2.13.0 is also a 2.13.0+cpu."""
    cuda, cpu = (shipped_profile(n) for n in ("cuda", "cpu"))
    asked = Asked()
    for profile in (cuda, cpu):
        target_wheels.of_target(profile, "linux/amd64", "3.11", {}, cast("Uv", asked))
        target_wheels.with_dependencies((), profile, "linux/amd64", "3.11", cast("Uv", asked))
    first, edges, of_cpu, cpu_edges = asked.constraints
    assert {"torch!=2.13.0+cpu", "torch!=2.13.0+cu126", "torch!=2.13.0+xpu"} <= {*first}
    assert (edges, of_cpu, cpu_edges) == (first, (), ())


@pytest.mark.parametrize(("name", "other"), [("jax-cuda", "12"), ("tensorflow-cuda", "13")])
def test_a_torch_beside_another_framework_brings_no_second_cuda(name: str, other: str) -> None:
    asked = Asked()
    profile = shipped_profile(name)
    target_wheels.of_target(profile, "linux/amd64", "3.12", {}, cast("Uv", asked))
    assert asked.constraints[0] == (*profile.constraints, f"nvidia-cudnn-cu{other}<0")


PAGE = """<a href="torch-2.9.1%2Brocm6.4-cp311-cp311-manylinux_2_28_x86_64.whl#sha256={0}"></a>
<a href="torch-2.9.1%2Brocm6.4-cp313-cp313-manylinux_2_28_x86_64.whl#sha256={0}"></a>
<a href="torch-2.9.1%2Brocm6.4-cp312-cp312-manylinux_2_28_aarch64.whl#sha256={0}"></a>
<a href="torch-2.9.1%2Brocm6.4-cp310-cp310-manylinux_2_28_x86_64.whl"></a>
""".format("0" * 64)


def test_the_pythons_of_a_build_are_those_whose_hash_is_stated(tmp_path: Path) -> None:
    asked: list[str] = []

    def read(url: str) -> bytes:
        asked.append(url)
        if "rocm" in url:
            return PAGE.encode()
        raise OSError("no route")

    settings = load_settings({"ENVBUILDER_CONFIG_DIR": str(tmp_path)}, tmp_path)
    hashes = target_wheels.Hashes(settings, read)

    def pythons(release: str, build: str) -> tuple[str, ...]:
        (found,) = releases.choices("torch", (build,), ("linux/amd64",), release)[release].builds
        return hashes(found)

    assert pythons("2.9.1", "rocm6.4") == ("3.11", "3.13")
    assert pythons("2.9.0", "rocm6.4") == ()
    assert len(asked) == 1, "an index is read once"
    assert pythons("2.4.1", "cpu") == ("3.8", "3.9", "3.10", "3.11", "3.12"), "claims"
    assert pythons("2.9.1", "cpu") == (), "no claim, and the index does not answer"
    assert "3.12" in pythons("2.4.1", "cu121"), "PyPI's are not asked for"
    assert len(asked) == 2


class Asked:
    """A resolver that notes the constraints of each question."""

    index = NOTHING

    def __init__(self) -> None:
        self.constraints: list[Sequence[str]] = []

    def compile(self, *question: Any) -> tuple[Found, ...]:
        self.constraints.append(tuple(question[4]))
        return ()

    def edges(self, *question: Any) -> tuple[tuple[str, str], ...]:
        self.constraints.append(tuple(question[4]))
        return ()


def test_a_package_that_needs_another_version_cannot_be_locked() -> None:
    with pytest.raises(UnresolvableError, match=r"tf-keras requires tensorflow>=2.22"):
        names(Resolver(fits=False), "linux/amd64")


def test_a_source_that_the_project_names_is_no_release_of_an_index() -> None:
    """Whoever publishes a higher version under its name."""
    offers = [
        Offer(
            distribution=name, version="1.0", file=f"{name}-1.0-py3-none-any.whl",
            sha256="0" * 64, source="built", provenance="read", by="",
        )
        for name in ("lib", "asked-for-by-others")
    ]  # fmt: skip
    asked = Asked()
    asked.index = StaticIndex(url="", offers={each.file: each for each in offers})
    source = profiles.Source(name="lib", location="./lib")
    resolution = profiles.Resolution(sources=(source,))
    profile = replace(TENSORFLOW_CPU, resolution=resolution)
    target_wheels.of_target(profile, "linux/amd64", "3.12", {}, cast("Uv", asked))
    assert [*asked.constraints] == [("lib==1.0",)]


Response = tuple[int, dict[str, str]]


class Server:
    """Answers HEAD by path as told; notes what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Response] = {}
        self.asked: list[tuple[str, str, str]] = []
        outer = self

        class Handler(Quiet):
            def do_HEAD(self) -> None:
                asked = (self.command, self.path, self.headers.get("Accept-Encoding", ""))
                outer.asked.append(asked)
                status, headers = outer.answers.get(self.path, (404, {"Content-Length": "9"}))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self.http.server_address[1]}"

    def measure(self, *paths: str) -> dict[str, int]:
        with http.open_session(direct=True) as session:
            found = target_wheels.sizes([self.root + p for p in paths], session)
        return {url.removeprefix(self.root): size for url, size in found.items()}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with serving(made.http):
        yield made


class Silent:
    """A session whose hosts fail, except one; counts the questions."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error
        self.asked: list[str] = []

    def request(self, method: str, url: str, **_: Any) -> requests.Response:
        self.asked.append(url)
        if "//alive/" in url:
            return response(200, {"Content-Length": "7"})
        raise self.error("no")

    def close(self) -> None:
        pass

    stop = close


def response(status: int, headers: dict[str, str]) -> requests.Response:
    made = requests.Response()
    made.status_code = status
    made.headers.update(headers)
    made.raw = HTTPResponse(io.BytesIO(), preload_content=False)
    return made


def test_a_server_states_the_size_without_sending_the_file(server: Server) -> None:
    server.answers = {"/a.whl": (200, {"Content-Length": "123456"})}
    assert server.measure("/a.whl", "/a.whl") == {"/a.whl": 123456}
    assert server.asked == [("HEAD", "/a.whl", "identity")]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (404, {"Content-Length": "5"}),
        (405, {"Content-Length": "5"}),
        (206, {"Content-Length": "5"}),
        (200, {}),
        (200, {"Content-Length": "0"}),
        (200, {"Content-Length": "5", "Content-Encoding": "gzip"}),
        (200, {"Content-Length": "5", "Content-Type": "text/html; charset=utf-8"}),
    ],
)
def test_what_is_not_plainly_the_size_of_the_file_is_unknown(
    status: int, headers: dict[str, str]
) -> None:
    assert target_wheels._stated_size(response(200, {"Content-Length": "5"})) == 5
    assert target_wheels._stated_size(response(status, headers)) is None


def test_files_on_this_machine(tmp_path: Path) -> None:
    real = tmp_path / "torch 2.0+cpu.whl"
    real.write_bytes(b"12345")
    link = tmp_path / "link.whl"
    link.symlink_to(real)
    (tmp_path / "empty.whl").touch()
    (tmp_path / "folder.whl").mkdir()
    names = ("empty.whl", "folder.whl", "missing.whl")
    urls = [real.as_uri(), link.as_uri(), *((tmp_path / n).as_uri() for n in names)]
    assert "%20" in urls[0]
    assert target_wheels.sizes(urls) == {urls[0]: 5, urls[1]: 5}


@pytest.mark.parametrize(
    ("error", "most"),
    [
        (requests.ReadTimeout, target_wheels.PATIENCE + target_wheels.PARALLEL),
        (requests.ConnectionError, target_wheels.PATIENCE + target_wheels.PARALLEL),
        (requests.TooManyRedirects, 100),
        (UnicodeError, 100),
        (OSError, 100),
    ],
)
def test_a_silent_host_is_soon_left_alone(error: type[Exception], most: int) -> None:
    session: Any = Silent(error)
    urls = [f"https://dead/{n:03}" for n in range(100)]
    alive = [f"https://alive/{n}" for n in range(10)] + ["https://zoo.invalid/1"]
    assert target_wheels.sizes([*urls, *alive], session) == dict.fromkeys(alive[:-1], 7)
    assert len([u for u in session.asked if "//dead/" in u]) <= most
    assert "https://zoo.invalid/1" in session.asked
    if most == 100:  # a fault of one file says nothing about the host
        assert len(session.asked) == 111


@pytest.mark.parametrize(("name", "left"), [("cuda", False), ("mps", True), ("rocm", True)])
def test_what_needs_an_nvidia_gpu_is_left_out_elsewhere_whoever_requires_it(
    name: str, left: bool
) -> None:
    profile = shipped_profile(name)
    assert ("nvidia-cutlass-dsl" in target_wheels.left_out(profile)) == left


def test_a_platform_whose_index_is_silent_leaves_those_that_pypi_serves() -> None:
    lines = (
        'torch==2.5.1; platform_machine == "x86_64"',
        'torch==2.5.1+cu124; platform_machine == "aarch64"',
    )
    profile = replace(
        shipped_profile("cuda"),
        release="2.5.1",
        requirements=lines,
        indexes={"torch": "pytorch-cu124"},
        platforms=("linux/amd64", "linux/arm64"),
    )
    lacking = target_wheels.unoffered(profile, ())
    assert [*lacking] == ["linux/arm64"]
    assert lacking["linux/arm64"].startswith(
        "torch==2.5.1+cu124: the index pytorch-cu124 cannot be"
    )
    # A companion that belongs to another release is of no use.
    with_vision = replace(
        profile, requirements=("torchvision",), indexes={"torchvision": "pytorch-cu124"}
    )
    newer = offer(distribution="torchvision", version="0.28.0")
    vision = target_wheels.unoffered(with_vision, [newer])["linux/arm64"]
    assert vision.startswith("torchvision==0.20.1: the index pytorch-cu124")


def test_of_two_nccl_the_one_that_the_framework_requires_takes_the_place() -> None:
    torch, *others = (wheel(n, "2.0") for n in ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13"))
    torch = replace(torch, file=replace(torch.file, requires=("nvidia-nccl-cu13",)))
    both = [
        replace(w, file=replace(w.file, sha256=c * 64)) for w, c in zip(others, "de", strict=True)
    ]
    contents = {w.file.sha256: {"nvidia/nccl/nccl.h": w.file.name} for w in both}
    with pytest.raises(target_wheels.ClashError) as caught:
        target_wheels.compared([torch, *both], "linux/amd64", "3.12", contents)
    assert caught.value.instead == "nvidia-nccl-cu13"
