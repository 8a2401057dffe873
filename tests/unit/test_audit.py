"""Known vulnerabilities: what is asked, what becomes of any answer, what is never called safe."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from envbuilder import audit, osv
from envbuilder.commands import lock as lock_command
from envbuilder.errors import BUILD_FAILED, TOOL_MISSING, ToolError
from envbuilder.osv import Advisory, Pin
from tests.unit.serving import serving
from tests.unit.test_sbom import deb, file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.settings import Settings

NOBODY = "no database lists packages of its kind, vendor or suite"
TORCH = Pin("PyPI", "torch", "2.13.0")
CVE = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "aliases": ["CVE-2026-1111"],
    "summary": "Loading a model\nruns what is in it",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "torch"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}, {"fixed": "0123abcd"}]},
                {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.14.0"}]},
                {"type": "ECOSYSTEM", "events": [{"introduced": "2.9"}, {"fixed": "2.9.10"}]},
            ],
        },
        {"package": {"ecosystem": "PyPI", "name": "torch-cpu"},
         "ranges": [{"type": "ECOSYSTEM", "events": [{"fixed": "1.0"}]}]},
    ],
}  # fmt: skip
TWIN = {"id": "PYSEC-2026-7", "aliases": ["CVE-2026-1111"], "affected": []}
GONE = {"id": "GHSA-gone-gone-gone", "withdrawn": "2026-01-01T00:00:00Z"}
OPENSSL = {
    "id": "DSA-1-1",
    "upstream": ["CVE-2026-2", "CVE-2026-3"],
    "affected": [
        {"package": {"ecosystem": "Debian:12", "name": "openssl"},
         "ranges": [{"type": "ECOSYSTEM", "events": [{"fixed": "3.0.23-1~deb12u1"}]}]},
    ],
}  # fmt: skip


class Fake(BaseHTTPRequestHandler):
    """A database: entries by id, and which of them affect (ecosystem, name, version)."""

    entries: ClassVar[dict[str, Any]] = {}
    affects: ClassVar[dict[tuple[str, str, str], list[str]]] = {}
    page = 100
    status = 200
    body: bytes | None = None
    asked: ClassVar[list[Any]] = []

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        entry = self.entries.get(name)
        self.send(200 if entry else 404, json.dumps(entry or {}).encode())

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(question)
        if self.body is not None or self.status != 200:
            self.send(self.status, self.body or b"")
            return
        results = []
        for q in question["queries"]:
            package = q["package"]
            ids = self.affects.get((package["ecosystem"], package["name"], q["version"]), [])
            start = int(q.get("page_token", "0"))
            rest = {"next_page_token": str(start + self.page)} if ids[start + self.page :] else {}
            vulns = [{"id": i, "modified": "x"} for i in ids[start : start + self.page]]
            results.append(({"vulns": vulns} if vulns else {}) | rest)
        self.send(200, json.dumps({"results": results}).encode())

    def send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Fake]]:
    """A database on loopback, in which torch and openssl are vulnerable."""

    class Own(Fake):
        entries: ClassVar = {e["id"]: e for e in (CVE, TWIN, GONE, OPENSSL)}
        affects: ClassVar = {
            ("PyPI", "torch", "2.13.0"): [CVE["id"], TWIN["id"], GONE["id"]],
            ("Debian:12", "openssl", "3.0.22-1~deb12u2"): ["DSA-1-1"],
        }
        asked: ClassVar = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    monkeypatch.setenv("ENVBUILDER_INDEX_OSV", f"http://127.0.0.1:{server.server_address[1]}/v1")
    with serving(server):
        yield Own


JINJA = file(name="Jinja2", version="3.1.6", file="jinja2-3.1.6-py3-none-any.whl")
SSL = deb(
    name="libssl3",
    version="3.0.22-1~deb12u2+b1",
    file="pool/updates/main/o/openssl/libssl3_3.0.22-1~deb12u2_amd64.deb",
    source="debian-security",
    by="bookworm-security Release of 2026-11-17T22:33:39Z",
)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (file(), TORCH),
        (JINJA, Pin("PyPI", "jinja2", "3.1.6")),
        (file(name="a", version="1!2.0.post1+cu126"), Pin("PyPI", "a", "1!2.0.post1")),
        (file(kind="tool", name="uv", version="0.13.8"), Pin("PyPI", "uv", "0.13.8")),
        (deb(), Pin("Debian:12", "gcc-defaults", "4:12.2.0-3")),
        (SSL, Pin("Debian:12", "openssl", "3.0.22-1~deb12u2")),
        # Not released, not Debian's, or not known by a folder: nobody can be asked.
        (deb(by="forky Release of 2026-11-17T22:33:39Z"), Pin("", "g++", "4:12.2.0-3")),
        (deb(source="intel-graphics"), Pin("", "g++", "4:12.2.0-3")),
        (deb(file="g++_12.2.0-3_amd64.deb"), Pin("", "g++", "4:12.2.0-3")),
        (file(kind="conda", name="python", version="3.12.1"), Pin("", "python", "3.12.1")),
    ],
)
def test_pins_are_asked_about_as_the_database_names_them(given: Any, asked: Pin) -> None:
    assert audit.pin(given) == asked


def test_findings_name_package_version_ids_and_what_fixes_them(
    fake: type[Fake], found: Settings
) -> None:
    result = audit.audit({"cpu": [file(), JINJA], "b": [file(), SSL]}, osv.Database(found))
    assert result.exit_code == BUILD_FAILED
    assert (result.checked, result.unchecked) == (3, ())
    assert [msgspec.to_builtins(v) for v in result.vulnerabilities] == [
        {
            "package": "openssl",
            "version": "3.0.22-1~deb12u2",
            "ids": ("CVE-2026-2", "CVE-2026-3", "DSA-1-1"),
            "fixed_in": ("3.0.23-1~deb12u1",),
            "summary": "",
            "profiles": ("b",),
        },
        {
            "package": "torch",
            "version": "2.13.0",
            "ids": ("CVE-2026-1111", "PYSEC-2026-7", "GHSA-aaaa-bbbb-cccc"),
            "fixed_in": ("2.9.10", "2.14.0"),
            "summary": "Loading a model runs what is in it",
            "profiles": ("b", "cpu"),
        },
    ]
    assert len(fake.asked) == 1, "all pins go into one question"
    lines = audit.table(result)
    assert " ".join(lines[0].split()) == "package version known as fixed in pinned by"
    assert lines[2].startswith("torch ")
    assert "2.9.10, 2.14.0" in lines[2]
    assert lines[-1] == "3 pins checked: 2 known vulnerabilities"


def test_nothing_known_is_said_only_when_everything_was_asked(
    fake: type[Fake], found: Settings
) -> None:
    result = audit.audit({"cpu": [JINJA]}, osv.Database(found))
    assert (result.exit_code, result.checked) == (0, 1)
    assert audit.table(result) == ["1 pins checked: none has a known vulnerability"]
    unknown = deb(by="forky Release of 2026-11-17T22:33:39Z")
    result = audit.audit({"cpu": [JINJA, unknown]}, osv.Database(found))
    assert result.exit_code == TOOL_MISSING
    assert f"not checked: g++ 4:12.2.0-3: {NOBODY}" in audit.table(result)


def test_a_finding_outweighs_what_could_not_be_asked(fake: type[Fake], found: Settings) -> None:
    result = audit.audit({"cpu": [file(), file(kind="conda")]}, osv.Database(found))
    assert result.unchecked
    assert result.exit_code == BUILD_FAILED


def test_answers_in_pages_are_read_to_the_end(fake: type[Fake], found: Settings) -> None:
    fake.page = 1
    pins = [TORCH, Pin("PyPI", "jinja2", "3.1.6")]
    answer = osv.Database(found).ask(pins)
    assert answer == {TORCH: (CVE["id"], TWIN["id"], GONE["id"]), pins[1]: ()}
    assert [len(q["queries"]) for q in fake.asked] == [2, 1, 1]


def test_an_entry_that_cannot_be_read_is_still_a_finding(fake: type[Fake], found: Settings) -> None:
    fake.entries.clear()
    result = audit.audit({"cpu": [SSL]}, osv.Database(found))
    assert result.exit_code == BUILD_FAILED
    assert result.vulnerabilities[0].ids == ("DSA-1-1",)
    assert result.vulnerabilities[0].fixed_in == ()
    assert "nowhere yet" in audit.table(result)[1]


GARBAGE = [
    b"",
    b"<html>please log in</html>",
    b"[]",
    b"null",
    b'{"results": []}',
    b'{"results": null}',
    b'{"results": [{"vulns": [{"id": "../../etc/passwd"}]}]}',
    b'{"results": [{"vulns": [{"id": 1}]}]}',
    b'{"results": [{}, {}]}',
    b'{"results": [{"next_page_token": "again"}]}',
    b"[" * 200_000,
    b"\xff\xfe",
]


@pytest.mark.parametrize("body", GARBAGE)
def test_garbage_is_not_taken_for_no_vulnerabilities(
    fake: type[Fake], found: Settings, body: bytes
) -> None:
    fake.body = body
    result = audit.audit({"cpu": [JINJA]}, osv.Database(found))
    assert (result.exit_code, result.checked) == (TOOL_MISSING, 0)
    assert "something else than OSV" in result.unchecked[0].reason


@pytest.mark.parametrize("status", [400, 403, 404, 500, 503])
def test_a_database_that_refuses_is_no_clean_bill(
    fake: type[Fake], found: Settings, status: int
) -> None:
    fake.status = status
    result = audit.audit({"cpu": [JINJA]}, osv.Database(found))
    assert result.exit_code == TOOL_MISSING
    assert f"HTTP {status}" in result.unchecked[0].reason


def test_an_endless_answer_is_cut_off(
    fake: type[Fake], found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(osv, "_ANSWER_LIMIT", 1000)
    fake.body = b" " * 2000
    with pytest.raises(ToolError, match="MiB"):
        osv.Database(found).ask([TORCH])


@contextmanager
def nobody() -> Iterator[str]:
    """An address of this machine where nothing answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    server.server_close()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"


def test_an_unreachable_database_ends_with_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with nobody() as address:
        monkeypatch.setenv("ENVBUILDER_INDEX_OSV", address)
        run = CliRunner().invoke(lock_command.command, ["--audit", "--profile", "cpu"])
    assert isinstance(run.exception, ToolError)
    assert run.exception.exit_code == TOOL_MISSING
    assert "could not be checked" in run.exception.message
    assert "ENVBUILDER_INDEX_OSV" in run.exception.hint
    assert "no pin was checked, so nothing is known of vulnerabilities" in run.stdout
    assert "cannot be reached" in run.stdout


def test_the_command_prints_findings_and_exits_1(fake: type[Fake]) -> None:
    run = CliRunner().invoke(
        lock_command.command, ["--audit", "--profile", "cpu"], standalone_mode=False
    )
    assert run.return_value == BUILD_FAILED
    assert "torch" in run.stdout
    assert "CVE-2026-1111" in run.stdout
    run = CliRunner().invoke(
        lock_command.command, ["--audit", "--profile", "cpu", "--json"], standalone_mode=False
    )
    assert run.return_value == BUILD_FAILED
    answer = json.loads(run.stdout)
    assert answer["schema"] == 1
    assert [v["package"] for v in answer["vulnerabilities"]] == ["torch"]
    assert answer["unchecked"] == []


def test_all_locks_are_asked_about_where_no_profile_is_named(fake: type[Fake]) -> None:
    fake.affects.clear()
    run = CliRunner().invoke(lock_command.command, ["--audit", "--json"], standalone_mode=False)
    # xpu's packages are of a suite that is not released: that is said, not passed over.
    assert isinstance(run.exception, ToolError)
    answer = json.loads(run.stdout)
    assert answer["vulnerabilities"] == []
    assert {u["reason"] for u in answer["unchecked"]} == {NOBODY}
    asked = {q["package"]["name"] for question in fake.asked for q in question["queries"]}
    assert {"torch", "zentorch", "glibc"} <= asked


def test_a_slow_database_does_not_hold_forever(
    monkeypatch: pytest.MonkeyPatch, found: Settings
) -> None:
    """A server that takes the question and never answers."""
    stop = threading.Event()

    class Mute(Fake):
        def do_POST(self) -> None:
            stop.wait(10)

    monkeypatch.setattr(osv, "TIMEOUT_SECONDS", (1.0, 0.2))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mute)
    monkeypatch.setenv("ENVBUILDER_INDEX_OSV", f"http://127.0.0.1:{server.server_address[1]}")
    with serving(server):
        result = audit.audit({"cpu": [JINJA]}, osv.Database(found))
        stop.set()
    assert "timed out" in result.unchecked[0].reason


# --- what is made of advisories

NAMES = st.sampled_from([f"CVE-2026-{i}" for i in range(6)])
ADVISORIES = st.lists(
    st.builds(
        Advisory, id=NAMES, aliases=st.lists(NAMES, max_size=2).map(tuple), summary=st.text()
    ),
    max_size=6,
)


@given(advisories=ADVISORIES)
def test_entries_that_name_each_other_are_one_and_none_is_lost(advisories: list[Advisory]) -> None:
    merged = audit.merge(TORCH, advisories)
    said = [name for v in merged for name in v.ids]
    assert len(said) == len(set(said)), "no name is in two findings"
    assert set(said) == {n for a in advisories for n in (a.id, *a.aliases)}
    for advisory in advisories:
        assert sum(set(v.ids) >= {advisory.id, *advisory.aliases} for v in merged) == 1
    assert all("\n" not in v.summary and v.summary.isprintable() for v in merged)


@given(
    versions=st.lists(st.text(max_size=8), max_size=5),
    ecosystem=st.sampled_from(["PyPI", "Debian:12"]),
)
def test_any_version_of_a_database_can_be_sorted(versions: list[str], ecosystem: str) -> None:
    events = tuple(osv.Event(fixed=v) for v in versions)
    affected = osv.Affected(
        package=osv.Package(ecosystem, "x"), ranges=(osv.Range("ECOSYSTEM", events),)
    )
    fixed = audit.fixed_in(Pin(ecosystem, "x", "1"), [Advisory(id="A", affected=(affected,))])
    assert set(fixed) == {v for v in versions if v and v.isprintable()}


def test_versions_that_fix_are_in_their_own_order() -> None:
    for ecosystem, versions in (
        ("PyPI", ["2.9.10", "2.10.0rc1", "2.10.0"]),
        ("Debian:12", ["1.2~rc1-1", "1.2-1", "1:1.0-1"]),
    ):
        events = tuple(osv.Event(fixed=v) for v in reversed(versions))
        affected = osv.Affected(
            package=osv.Package(ecosystem, "x"), ranges=(osv.Range("ECOSYSTEM", events),)
        )
        advisory = Advisory(id="A", affected=(affected,))
        assert list(audit.fixed_in(Pin(ecosystem, "x", "1"), [advisory])) == versions
