"""ZeroMQ sockets shared by threads: interrupted sends, wake-ups and waits."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from ding_lite.parallel.transport.zeromq.sockets import GRACE_S, Socket, Sockets


@contextmanager
def connected(folder: Path, *kinds: int) -> Iterator[tuple[Sockets, Socket, Socket]]:
    """Connect two sockets, the first of which is one of `Sockets`."""
    sockets, context = Sockets(), zmq.Context()
    with ExitStack() as stack:
        stack.callback(context.term)
        ends = [context.socket(kind) for kind in kinds]
        for end in ends:
            stack.callback(end.close, 0)
        stack.callback(sockets.close)
        ends[0].bind(f"ipc://{folder}/pair")
        ends[1].connect(f"ipc://{folder}/pair")
        ends[1].send(b"here")
        assert ends[0].recv_multipart()[-1] == b"here"
        sockets.add(ends[0])
        yield sockets, ends[0], ends[1]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Sockets, Socket, Socket]]:
    with connected(tmp_path, zmq.PAIR, zmq.PAIR) as pair:
        yield pair


def take(sockets: Sockets, socket: Socket, read: Callable[[], Any]) -> Any:
    """Return what `read` returns if there is a message, else None."""
    with sockets.lock:
        if sockets.is_readable(socket):
            return read()
        sockets.unread.discard(socket)
        return None


def read_all(sockets: Sockets, socket: Socket) -> None:
    while take(sockets, socket, socket.recv_multipart) is not None:
        pass


def wait(sockets: Sockets, seconds: float) -> list[Socket]:
    """Wait for a sign; return the sockets that may have something to read."""
    sockets.wait(seconds)
    return [*sockets.unread]


def read_one(sockets: Sockets, socket: Socket) -> list[bytes]:
    """Wait until a message has come, and return it."""
    message: list[bytes] | None = None
    while message is None:  # a sign may be one of something else
        assert wait(sockets, 10.0) == [socket]
        message = take(sockets, socket, socket.recv_multipart)
    return message


def test_a_message_that_an_interrupt_has_cut_off_does_not_swallow_the_next(pair, monkeypatch):
    sockets, socket, other = pair

    def send(self: Any, frame: bytes, *args: Any) -> Any:
        if frame == b"interrupt":
            raise KeyboardInterrupt
        return whole_send(self, frame, *args)

    whole_send = zmq.Socket.send
    monkeypatch.setattr("ding_lite.parallel.transport.zeromq.sockets._send_frame", send)
    with pytest.raises(KeyboardInterrupt):
        sockets.send(socket, [[b"route", b"interrupt", b"body"]])
    sockets.send(socket, [[b"route", b"head", b"body"]])
    assert other.recv_multipart() == [b"route", b""]
    assert other.recv_multipart() == [b"route", b"head", b"body"]


@pytest.mark.parametrize("on_readers_thread", [True, False])
def test_a_failed_send_does_not_hide_received_messages(tmp_path, on_readers_thread) -> None:
    with connected(tmp_path, zmq.ROUTER, zmq.DEALER) as (sockets, router, dealer):
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)

        def fail(act: Callable[[], object]) -> None:
            with pytest.raises(zmq.ZMQError):
                act()

        def refuse() -> None:
            with sockets.using(router):
                router.disconnect("inproc://nowhere")

        for act in (lambda: sockets.send(router, [[b"nobody", b"hello"]]), refuse):
            read_all(sockets, router)
            dealer.send(b"hello")
            assert select.select([int(router.fd)], [], [], 10.0)[0]
            sockets.reader = threading.get_ident()
            if on_readers_thread:
                fail(act)
            else:
                sockets.wait(0.0)
                with sockets.lock:
                    sockets.unread.clear()  # as where the message has come after that
                thread = threading.Thread(target=fail, args=(act,))
                thread.start()
                thread.join()
            assert read_one(sockets, router)[1:] == [b"hello"]


def test_sockets_stay_with_a_thread_that_takes_over_again_soon(pair) -> None:
    sockets, socket, other = pair
    read_all(sockets, socket)
    for now in (0.0, GRACE_S, 1.5 * GRACE_S):
        assert not sockets.is_lent
        sockets.take_over(now)
        sockets.give_back()
    assert sockets.is_lent
    other.send(b"asked")
    while socket not in wait(sockets, 1_000.0):  # it looks after a while, and not at once
        pass
    assert not sockets.is_lent
    assert take(sockets, socket, socket.recv) == b"asked"
    read_all(sockets, socket)
    other.send(b"asked again")
    assert wait(sockets, 1_000.0) == [socket]


def test_sockets_of_a_thread_that_waits_long_are_not_looked_after_meanwhile(pair) -> None:
    sockets, socket, other = pair
    read_all(sockets, socket)
    for now in (0.0, 0.5 * GRACE_S):
        sockets.take_over(now)
    assert sockets.is_lent
    assert wait(sockets, 1_000.0) == []  # which the turn that came so soon has woken
    assert not sockets.is_lent
    other.send(b"asked")
    assert select.select([int(socket.fd)], [], [], 10.0)[0]
    assert wait(sockets, 0.0) == []
    sockets.give_back()
    assert wait(sockets, 1_000.0) == [socket]
