"""Fixtures for tests of processes and sockets."""

from __future__ import annotations

import pytest
import zmq

pytest.register_assert_rewrite("tests.parallel.contract")


@pytest.fixture(scope="session", autouse=True)
def _zero_copy() -> None:
    """Start the permanent thread that pyzmq starts at its first zero-copy message.

    Otherwise its descriptors would count as the leak of whatever test sends the first one.
    """
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        one.bind("inproc://zero-copy")
        two.connect("inproc://zero-copy")
        one.send(bytes(zmq.COPY_THRESHOLD + 1), copy=False)
        two.recv()
