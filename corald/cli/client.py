"""A small client of the admin interface, over TCP or a unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import typer

from corald.cli.common import RefusedError, UnavailableError, UsageError
from corald.errors import CoraldError

DEFAULT_URL = "http://127.0.0.1:8550"
TIMEOUT_SECONDS = 30.0

UrlOption = Annotated[
    str,
    typer.Option(
        "--url", envvar="CORALD_URL", help="http://HOST:PORT or unix:/PATH of the daemon."
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="CORALD_TOKEN_FILE", help="File with the bearer token."),
]

T = TypeVar("T")


class NotServedError(CoraldError):
    """The daemon answered, but not with what was asked for."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """Asks one daemon."""

    def __init__(self, url: str, token_file: Path | None) -> None:
        self._url = url
        self._headers = {"Accept": b"application/json"}
        if token_file is not None:
            self._headers["Authorization"] = b"Bearer " + _token(token_file)

    def get(self, path: str, form: type[T]) -> T:
        """Ask for a value of type `form`."""
        return self._ask("GET", path, None, form)

    def post(self, path: str, body: object, form: type[T]) -> T:
        """Send JSON."""
        return self._ask("POST", path, json.dumps(body).encode(), form)

    def _ask(self, method: str, path: str, body: bytes | None, form: type[T]) -> T:
        from pydantic import TypeAdapter, ValidationError

        headers = self._headers | ({"Content-Type": b"application/json"} if body else {})
        try:
            with closing(self._connection()) as connection:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            raise UnavailableError(f"no daemon answers at {self._url}: {reason}") from error
        if answer.status != 200:
            raise _failure(answer.status, content)
        try:
            return TypeAdapter(form).validate_json(content)
        except ValidationError as error:
            raise NotServedError(f"{self._url} is no corald of this version") from error

    def _connection(self) -> http.client.HTTPConnection:
        if self._url.startswith("unix:"):
            return _UnixConnection(self._url.removeprefix("unix:"), TIMEOUT_SECONDS)
        try:
            parts = urlsplit(self._url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme != "http":
            raise UsageError(f"--url {self._url}: write http://HOST:PORT or unix:/PATH")
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)


def _token(file: Path) -> bytes:
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--token-file {file}: {error.strerror}") from error
    if not token or len(token.splitlines()) > 1:
        raise UsageError(f"--token-file {file}: must hold one line, the token")
    return token


def _failure(status: int, content: bytes) -> CoraldError:
    try:
        message = str(json.loads(content)["error"])
    except (ValueError, TypeError, KeyError):
        message = f"the daemon answered {status}"
    if status in (401, 403):
        return RefusedError(message)
    return UnavailableError(message) if status == 503 else NotServedError(message)
