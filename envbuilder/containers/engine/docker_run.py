"""Run Docker containers to their end, through the SDK."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from docker.errors import APIError
from requests import RequestException

from envbuilder.containers.engine.interface import short
from envbuilder.core.errors import ToolError, VerifyError
from envbuilder.core.process import LONGEST_LINE, Completed, Tail

if TYPE_CHECKING:
    from collections.abc import Callable

    from docker import DockerClient

_DEVICE_FAILURES = (
    "could not select device driver",
    "gathering device information",
    "nvidia-container-cli",
    "CDI device injection failed",
)


def run(
    client: DockerClient,
    options: dict[str, Any],
    on_stdout: Callable[[str], None],
    timeout: float,
) -> Completed:
    """Run a container with these options of the SDK to its end.

    The container is removed in any case. Raise `VerifyError` if it cannot be started or the engine
    goes away, `ToolError` if the engine cannot provide its device.
    """
    name = f"envbuilder-{secrets.token_hex(6)}"
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        with contextlib.suppress(APIError, RequestException):  # it may have just ended
            client.api.kill(name)

    timer = threading.Timer(timeout, stop)
    timer.daemon = True
    stream: Any = None
    held: Any = None
    started = time.monotonic()
    out = _Lines(on_stdout)
    err = _Lines(lambda line: None)
    try:
        container = client.containers.create(name=name, **options)
        stream = container.attach(stdout=True, stderr=True, stream=True, demux=True, logs=True)
        if options.get("stdin_open"):  # the engine closes it when this connection ends
            held = client.api.attach_socket(name, {"stdin": 1, "stream": 1})
        container.start()
        timer.start()
        for stdout, stderr in stream:
            out.feed(stdout or b"")
            err.feed(stderr or b"")
        code = int(container.wait()["StatusCode"])
    except APIError as error:
        raise _not_started(error) from error
    except (RequestException, OSError) as error:
        raise VerifyError(f"the connection to the engine was lost: {short(error)}") from error
    finally:
        timer.cancel()
        if stream is not None:
            stream._response.close()  # its own close() leaves the connection open
        if held is not None:
            getattr(held, "_response", held).close()
        with contextlib.suppress(APIError, RequestException):
            client.api.remove_container(name, force=True)
    out.end()
    err.end()
    return Completed(
        argv=tuple(options["command"]),
        returncode=code,
        stdout=out.text,
        stderr=err.text,
        seconds=time.monotonic() - started,
        timed_out=expired.is_set(),
    )


def _not_started(error: APIError) -> VerifyError | ToolError:
    text = str(error.explanation or error)
    if any(failure in text for failure in _DEVICE_FAILURES):
        return ToolError(
            f"the engine cannot give the container its device: {text}",
            "Install the GPU's driver or its container toolkit, which describes the GPUs, or use"
            " --force to leave the device flags out.",
        )
    return VerifyError(f"the container cannot be started: {text}")


class _Lines:
    """A splitter of bytes into lines, which also keeps the end of the text."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line, self._all = on_line, Tail()
        self._rest: list[bytes] = []  # joined once per line: a long line arrives in many pieces
        self._length = 0

    def feed(self, data: bytes) -> None:
        self._all.add(data)
        first, *others = data.split(b"\n")
        self._take(first)
        for piece in others:
            self._flush()
            self._take(piece)

    def _take(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._length += len(piece)
        if self._length >= LONGEST_LINE:
            self._flush()

    def _flush(self) -> None:
        self._on_line(b"".join(self._rest).decode(errors="replace"))
        self._rest, self._length = [], 0

    def end(self) -> None:
        if self._length:
            self._flush()

    @property
    def text(self) -> str:
        return self._all.text
