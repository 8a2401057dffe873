"""Text from outside cannot act on a terminal or disguise itself; figures read alike."""

from __future__ import annotations

import json
import time
import unicodedata
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import errors, text
from envbuilder.core.errors import (
    EnvbuilderError,
    counted,
    escaped,
    escaped_json,
    escaped_lines,
    is_public,
    printable,
    public,
    redacted,
    redacted_values,
    redacted_words,
    secrets_in,
)

any_text = st.text(st.characters(), max_size=80)
"""With lone surrogates, which `st.text()` alone leaves out."""


@given(any_text, st.integers(min_value=1, max_value=60), st.booleans())
def test_printable_text_is_short_and_shows_all_it_has(
    raw: str,
    limit: int,
    lines: bool,
) -> None:
    clean = printable(raw, limit, lines=lines)
    assert len(clean) <= limit
    clean.encode()
    for character in clean:
        assert character.isprintable() or (lines and character in "\n\t")
        assert unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} or (
            lines and character in "\n\t"
        )
    assert printable(clean, limit, lines=lines) == clean


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=80))
def test_plain_text_stays_as_it_is(raw: str) -> None:
    assert printable(raw) == escaped(raw) == raw


@given(any_text)
def test_escaped_text_is_one_line_and_can_be_encoded(raw: str) -> None:
    assert escaped(raw, 1000).isprintable()
    escaped(raw).encode()


@given(any_text)
def test_escaped_lines_keep_their_line_breaks(raw: str) -> None:
    clean = escaped_lines(raw)
    assert clean.count("\n") == raw.count("\n")
    assert clean.replace("\n", "").replace("\t", "").isprintable()
    assert escaped_lines(clean) == clean
    clean.encode()


@given(st.lists(any_text), st.sampled_from([None, 1]))
def test_escaped_json_has_the_same_value(raw: list[str], indent: int | None) -> None:
    encoded = escaped_json(json.dumps(raw, ensure_ascii=False, indent=indent))
    assert json.loads(encoded) == raw
    assert encoded.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b[2J\x07", "?[2J?"),
        ("a\x85b\x9bc", "a?b?c"),
        ("\u202egnp.exe\u2066\u2069", "?gnp.exe??"),
        ("a\u200bb\u2060c\ufeffd\u00ade", "a?b?c?d?e"),
        ("\ud800x\udfff", "?x?"),
        ("a\u3164\uffa0\u115fb", "a???b"),
        ("one\ntwo\tthree\r\u2028", "one?two?three??"),
        ("  inner  space  ", "inner  space"),
        ("é文字🙂", "é文字🙂"),
        ("x" * 2000, "x" * 999 + "…"),
    ],
)
def test_what_becomes_of_a_text(raw: str, clean: str) -> None:
    assert printable(raw) == clean


def test_options_of_printable() -> None:
    assert printable("a\n\tb\x1b", lines=True) == "a\n\tb?"
    assert printable("a\x00b", instead=" ") == "a b"
    assert printable("abcdef", 3) == "ab…"
    assert escaped("a\x1bb\ud800\n") == r"a\x1bb\ud800\n"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.amount(0), "0"),
        (text.amount(0.0123), "0.0123"),
        (text.amount(9.999), "10.0"),
        (text.amount(1234.5), "1,234"),
        (text.amount(-1.5), "-1.50"),
        (text.amount(1e300), "1e+300"),
        (text.amount(5e-324), "4.94e-324"),
        (counted(1, "GPU"), "1 GPU"),
        (counted(2, "process"), "2 processes"),
        (text.times(0.8643), "0.86×"),
        (text.times(18.14), "18.1×"),
        (text.percent(0.9835), "98.35 %"),
        (text.percent(None), "-"),
        (text.duration(0), "0 ns"),
        (text.duration(4.1e-6), "4.10 µs"),
        (text.duration(192.4), "3 min 12 s"),
        (text.rate(2.2e11, "FLOP/s"), "220 GFLOP/s"),
        (text.memory(25276510208), "23.5 GiB"),
        (text.memory(None), "-"),
        (text.gibibytes(2**41), "2,048.0 GiB"),
        (text.gigabytes(1.25e9), "1.2 GB"),
        (text.bandwidth(1_008_000_000_000), "1008 GB/s"),
    ],
)
def test_figures(shown: str, expected: str) -> None:
    assert shown == expected


SECRET = "c4nary"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:c4nary@host/simple", "https://…@host/simple"),
        ("https://c4nary@host:80/x and", "https://…@host:80/x and"),
        ("http://u:c4nary@c4nary@host/x", "http://…@host/x"),
        ("http://u:c4nary/c4nary@host:80/x", "http://…@host:80/x"),
        ("Failed to parse: http://u:c4nary@host:bad/x", "Failed to parse: http://…@host:bad/x"),
        ("('http://u:c4nary@h', 3)", "('http://…@h', 3)"),
        ("u:c4nary@proxy:3128", "…@proxy:3128"),
        ("proxy=u:c4nary@proxy:3128", "proxy=…@proxy:3128"),
        ("https://host/x?token=c4nary&y=1 and", "https://host/x?… and"),
        ("https://host/t/c4nary/lab/noarch", "https://host/t/…/lab/noarch"),
        ("https%3A%2F%2Fu%3Ac4nary%40host%2Fx", "https%3A%2F%2F…%40host%2Fx"),
        ("Authorization: Basic c4nary==", "Authorization: Basic …"),
        ("{'authorization': 'Bearer c4nary'}", "{'authorization': 'Bearer …'}"),
        (
            "cannot be cast to integer value as 'c4nary'",
            "cannot be cast to integer value as '…'",
        ),
        ("one\nhttps://c4nary@a\nu:c4nary@b", "one\nhttps://…@a\n…@b"),
    ],
)
def test_credentials_are_taken_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8080/a@b/c and http://[::1]:80/x, (https://host/simple/).",
        "http://[::1/d cannot be parsed",
        "python:3.12@sha256:0123, registry:5000/python:3.12-slim@sha512:01",
        "file:///home/me@work/wheels",
        "git@github.com:owner/name, me@host.example",
        "Basic authorization is needed; /t/lab on this machine",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bash -c 'python t.py --token c4nary -n 3'", "bash -c 'python t.py --token … -n 3'"),
        ("FOO_TOKEN=c4nary python t.py", "FOO_TOKEN=… python t.py"),
        ("export DB_PASSWORD='c4nary c4nary' && x", "export DB_PASSWORD='…' && x"),
        ('password: "c4nary unfinished', 'password: "…'),
        ("--password=c4nary --epochs 3", "--password=… --epochs 3"),
        ('{"token": "c4nary", "n": 5}', '{"token": "…", "n": 5}'),
        ('"{\\"apiKey\\": \\"c4nary\\"}"', '"{\\"apiKey\\": \\"…\\"}"'),
        ('CMD ["--token", "c4nary"]', 'CMD ["--token", "…"]'),
        ("  accessToken: c4nary # mine", "  accessToken: … # mine"),
        ("curl -H 'X-Api-Key: c4nary' url", "curl -H 'X-Api-Key: …' url"),
        ("AWS_SECRET_ACCESS_KEY=c4nary/+x= y", "AWS_SECRET_ACCESS_KEY=… y"),
        ("MYSQL_PWD=c4nary PWD=/home", "MYSQL_PWD=… PWD=/home"),
        ("login with hf_AbCdEfGhIjKlMnOp", "login with …"),
        ("ghp_0123456789abcdef01, AKIAIOSFODNN7EXAMPLE", "…, …"),
        ("sk-proj-abcdefghijklmnop1234", "…"),
        ("-----BEGIN RSA PRIVATE KEY-----\nc4nary\n-----END RSA PRIVATE KEY-----\nx", "…\nx"),
    ],
)
def test_the_value_behind_the_name_of_a_secret_is_taken_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown
    assert secrets_in(text)
    assert not secrets_in(shown)


@pytest.mark.parametrize(
    "text",
    [
        "--max-tokens 512 --tokenizer x --max_new_token 5 --pad-token '<pad>' --token-file f",
        "detect-secrets==1.4 detect-secrets>=2 detect-secrets=1.4.0=py_0",
        "token: ${{ secrets.GITHUB_TOKEN }}",
        "--token $HF_TOKEN --secret id=netrc,src=x --password-stdin --use-token --next",
        "token = os.environ['TOKEN']",
        'tiktoken = "*", secretstorage = ">=3.3,<4", auth-token = "^0.1.2"',
        "use_auth_token=True, password: str, secrets: inherit",
        "/etc/passwd: cannot be read",
        "'sha256:../../etc/passwd': not a sha256 digest",
        "Enter the passphrase, or name a file with --passphrase-file FILE",
        "from huggingface_hub import hf_hub_download, hf_transformers",
        "task-learning-rate-scheduler-of-2024, sk-learn",
    ],
)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert redacted(text) == text
    assert not secrets_in(text)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("t", "--hf-token", SECRET, "--lr", "0.1"), ("t", "--hf-token", "…", "--lr", "0.1")),
        (("t", "--api-key=c4nary;& c4nary", "--x"), ("t", "--api-key=…", "--x")),
        (("t", "WANDB_API_KEY=c4nary,;"), ("t", "WANDB_API_KEY=…")),
        (("bash", "-c", "TOKEN=c4nary t"), ("bash", "-c", "TOKEN=… t")),
        (("t", "https://me:c4nary@host/x"), ("t", "https://…@host/x")),
        (("t", "--use-token", "--max-tokens", "512"), None),
    ],
)
def test_a_command_is_kept_without_its_secrets(
    argv: tuple[str, ...], shown: tuple[str, ...] | None
) -> None:
    assert redacted_words(argv) == [*(shown or argv)]


def test_data_is_kept_without_its_secrets() -> None:
    data = {"command": ["t", "--token", SECRET], "env": {"HF_TOKEN": SECRET, "n": 3}, "x": [None]}
    shown = {"command": ["t", "--token", "…"], "env": {"HF_TOKEN": "…", "n": 3}, "x": [None]}
    assert redacted_values(data) == shown


def test_a_credential_in_a_file_is_named_by_its_line() -> None:
    text = "[a]\nurl = 'https://me:c4nary@host/x?y=1'\n\nhf_token = 'c4nary'\nhttps://host/?x\n"
    assert secrets_in(text) == [(2, "https"), (4, "hf_token")]


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.sampled_from(["http", "https", "socks5", "oci"]),
    st.sampled_from(["", ":8080", ":bad"]),
)
def test_no_password_survives_in_the_form_that_urls_have(word: str, scheme: str, port: str) -> None:
    password = f"c4nary{quote(word, safe='')}"
    url = f"{scheme}://me:{password}@host{port}/simple"
    for line in (url, f"tried {url}, twice", f"'{url}'", quote(url, safe="")):
        assert SECRET not in redacted(line)
        assert "host" in redacted(line)


@pytest.mark.parametrize(
    "text",
    ["a", "://", "://a:b", "a:", "@", "%3A%2F%2F", " a:b", "'a:", "authorization: a ", "/t/", "?"],
)
def test_a_megabyte_takes_no_time(text: str) -> None:
    started = time.process_time()
    redacted("://" + text * (1_000_000 // len(text)) + "@")
    assert time.process_time() - started < 3


def test_no_error_holds_credentials() -> None:
    url = "https://me:c4nary@host/simple"
    error = EnvbuilderError(f"{url} does not answer", f"Set {url}")
    assert error.message == str(error) == "https://…@host/simple does not answer"
    assert error.hint == "Set https://…@host/simple"


@pytest.mark.parametrize(
    ("url", "without"),
    [
        ("https://host/simple", "https://host/simple"),
        ("https://me:c4nary@host/simple", "https://host/simple"),
        ("https://host/simple?token=c4nary", "https://host/simple"),
        ("https://me:c4nary@host/simple/?token=c4nary", "https://host/simple/"),
        ("https://host/simple#c4nary", "https://host/simple"),
        ("https://host/t/c4nary/lab", "https://host/lab"),
    ],
)
def test_a_public_url_holds_no_credentials(url: str, without: str) -> None:
    assert public(url) == without
    assert is_public(url) == (url == without)


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("26.1.5+dfsg1", (26, 1)), ("podman version 5.4.2", (5, 4)), ("v0.13", (0, 13)), ("", (0, 0))],
)
def test_the_numbers_of_versions(version: str, numbers: tuple[int, int]) -> None:
    assert text.version_numbers(version) == numbers


def test_a_stamp_is_a_time_in_utc() -> None:
    assert text.stamp_time("20261120T095103Z") == datetime(2026, 11, 20, 9, 51, 3, tzinfo=UTC)
    assert text.readable_stamp("20261120T095103Z") == "20 November 2026, 09:51 UTC"


@pytest.mark.parametrize("other", ["", "yesterday", "2026-11-20T09:51:03Z", "20261120T095103"])
def test_another_form_is_refused_and_shown_as_it_is(other: str) -> None:
    with pytest.raises(ValueError, match="does not match"):
        text.stamp_time(other)
    assert text.readable_stamp(other) == other


@pytest.mark.parametrize(
    ("items", "line"), [((), ""), (("a", "b"), "a, b"), (("a", "b", "c", "d"), "a, b and 2 more")]
)
def test_the_first_items_are_named_and_further_ones_counted(
    items: tuple[str, ...], line: str
) -> None:
    assert errors.first(items, 2) == line
