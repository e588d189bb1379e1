"""Serve one page on loopback, generated for each request, until Ctrl-C.

Only this machine can connect. Its other users can, too, so the path of the page is a secret, which
is part of the printed URL. Another site could send requests through the browser by DNS rebinding,
so only requests with this machine in their Host header are answered.
"""

from __future__ import annotations

import io
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ding_lite.cli.report.page import POLICY
from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import ConfigError

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_MOST_THREADS = 64
"""The most threads of this process: each connection takes one, for as long as it is open."""


class Server(ThreadingHTTPServer):
    """Serves the page `make()` at `url`; port 0 chooses a free one."""

    daemon_threads = True

    def __init__(self, make: Callable[[], bytes], port: int) -> None:
        self.make = make
        self.path = f"/{secrets.token_urlsafe(16)}"
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"Port {port} cannot be listened on: {error.strerror}. Choose another one, or "
                f"`--port 0` for any that is free."
            ) from error

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401 - as there
        """Return whether there is a thread for one more connection; else it is closed."""
        return threading.active_count() < _MOST_THREADS

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as there
        """Ignore errors of closed connections; other errors are bugs and are shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}{self.path}"

    @property
    def hosts(self) -> set[str]:
        """The accepted values of the Host header."""
        return {f"{name}:{self.server_port}" for name in _NAMES}


class _Request(io.RawIOBase):
    """The bytes of a request, which must arrive within so many seconds, however slowly each is."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._deadline = SYSTEM_CLOCK.now() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as there
        left = self._deadline - SYSTEM_CLOCK.now()
        if left <= 0.0:
            raise TimeoutError("the request is too slow")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "ding-lite", ""
    timeout = 10.0
    """Seconds for a whole request, and for its answer."""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection, self.timeout))

    def do_GET(self) -> None:
        self.connection.settimeout(self.timeout)
        if self.headers.get("Host") not in self.server.hosts:
            self.send_error(HTTPStatus.FORBIDDEN, "This page is for this machine alone")
        elif not secrets.compare_digest(self.path.encode(), self.server.path.encode()):
            self.send_error(HTTPStatus.NOT_FOUND, "There is one page, and its URL was printed")
        else:
            body = self.server.make()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    do_HEAD = do_GET

    def end_headers(self) -> None:
        for name, value in (
            ("Content-Security-Policy", f"{POLICY}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""
