"""A session whose answers are written down beforehand, and what was requested of it."""

from __future__ import annotations

import io
from typing import Any

import pytest
import requests
import urllib3
from requests.structures import CaseInsensitiveDict

from envbuilder.containers.oci import reference
from envbuilder.containers.registry import connection
from envbuilder.core import http


def answer(status: int, body: bytes = b"", reason: str = "", **headers: str) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response.reason = reason
    response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    response.raw = urllib3.HTTPResponse(io.BytesIO(body), preload_content=False)
    return response


class Scripted:
    """Stands in for a session: gives these answers in turn, the last one for ever."""

    def __init__(self, *answers: requests.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str]] = []
        self.options: list[dict[str, Any]] = []
        self.authorized: list[str] = []

    def request(self, method: str, url: str, **options: Any) -> requests.Response:
        self.requests.append((method, url))
        self.options.append(options)
        response = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        request = requests.PreparedRequest()
        request.method = method
        request.url = url
        request.headers = CaseInsensitiveDict(options["headers"])
        self.authorized.append(options["auth"](request).headers.get("Authorization", ""))
        if isinstance(response, Exception):
            response.request = request
            raise response
        response.url = url
        response.request = request
        return response

    def authorizations(self) -> list[str]:
        return self.authorized


class Far:
    """A connection to far.example/a over a scripted session, with a login; it waits for nothing."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *answers: requests.Response | Exception
    ) -> None:
        self.session = Scripted(*answers)
        self.pauses: list[float] = []
        self.shown: list[int] = []
        credential = connection.Credential(user="me", secret="very-secret")
        monkeypatch.setattr(connection, "stored_credential", lambda host, **_: credential)
        monkeypatch.setattr(http, "open_session", lambda *, direct: self.session)
        far = reference.parse("far.example/a")
        self.connection = connection.Connection(far, pause=self.pauses.append)
