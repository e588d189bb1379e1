"""`ding-lite report --live`."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ding_lite.cli.main import main
from ding_lite.cli.report.server import Server
from ding_lite.clock import SYSTEM_CLOCK
from tests.cli.calls import MODULE, environment
from tests.cli.report.pages import Page
from tests.recipes.runs.test_results import leave


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(lambda: b"<p>page", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asked(
    url: str, path: str | None = None, method: str = "GET", **headers: str
) -> tuple[int, bytes]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=60)
    connection.request(method, place.path if path is None else path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert answer.headers["Cache-Control"] == "no-store"
    connection.close()
    return answer.status, body


def test_one_page_is_served_and_nothing_else(server: Server) -> None:
    url = server.url
    assert server.server_address[0] == "127.0.0.1"
    assert asked(url) == (200, b"<p>page")
    assert asked(url, method="HEAD") == (200, b"")
    for path in ("/", "/x", "/../etc/passwd", "/?", "/%2e%2e/", f"{server.path}/"):
        status, body = asked(url, path)  # as another user of this machine may try
        assert (status, b"<p>page" in body, server.path.encode() in body) == (404, False, False)
    assert asked(url, method="POST")[0] == 501


def test_idle_connections_take_a_limited_number_of_threads(server, monkeypatch) -> None:
    before = threading.active_count()
    monkeypatch.setattr("ding_lite.cli.report.server._MOST_THREADS", before + 3)
    place = "127.0.0.1", server.server_port
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(place)) for _ in range(5)]
        with suppress(ConnectionError):
            assert idle[-1].recv(1) == b""
        assert threading.active_count() == before + 3
    while threading.active_count() > before:  # until the threads have seen the end of theirs
        os.sched_yield()
    assert asked(server.url)[0] == 200


def test_a_request_has_a_deadline_even_if_each_byte_of_it_is_in_time(server, monkeypatch) -> None:
    monkeypatch.setattr("ding_lite.cli.report.server._Handler.timeout", 0.5)
    began = SYSTEM_CLOCK.now()
    place = "127.0.0.1", server.server_port
    with socket.create_connection(place, timeout=0.05) as slow, suppress(ConnectionError):
        while SYSTEM_CLOCK.now() < began + 20.0:
            slow.sendall(b"a")
            try:
                assert slow.recv(1) == b""
                break
            except TimeoutError:  # the server waits for more
                pass
    assert 0.4 < SYSTEM_CLOCK.now() - began < 10.0
    assert asked(server.url)[0] == 200


def test_a_page_of_another_site_gets_nothing(server: Server) -> None:
    url, port = server.url, server.server_port
    assert asked(url, Host=f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "localhost", "", "[::1]"):
        status, body = asked(url, Host=host)
        assert (status, b"<p>page" in body) == (403, False)


def test_a_port_that_is_taken_is_a_slip(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "x", "--live", "--port", str(server.server_port)]) == 2
    assert f"Port {server.server_port} cannot be listened on" in capsys.readouterr().err


@pytest.mark.procs
def test_a_run_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, *MODULE, "report", "run", "--live"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[4]
        _, body = asked(url)
        assert "There is no run in run" in body.decode()  # it has not begun
        leave(str(tmp_path / "run"))
        page = Page(asked(url)[1].decode())
        assert "dqn on CartPole-v1" in page.texts
        assert {"http-equiv": "refresh", "content": "5"} in page.named("meta")
        (tmp_path / "run" / "metrics.jsonl").write_text("?\n")
        assert "is damaged" in asked(url)[1].decode()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (130, "ding-lite report: interrupted\n")
