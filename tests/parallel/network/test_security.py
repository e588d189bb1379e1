"""Keys, key files, where a node may listen, and refused connections."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

from ding_lite.errors import AuthenticationError, ConfigError
from ding_lite.parallel.network import security
from ding_lite.parallel.network.address import Address
from ding_lite.parallel.network.security import (
    Key,
    check_dialling,
    check_private,
    load_key,
    make_key,
    place_to_listen,
    user_key,
)
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.base import Frame, Lane, Link
from ding_lite.parallel.transport.zeromq.transport import ZeroMQTransport
from ding_lite.parallel.wire.messages import VERSION, version_of
from tests.parallel.router.test_node_router import raise_
from tests.parallel.tcp import Job, Recorder, hub_spec, leaf_spec, wait_until
from tests.threads import together


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's own key of the tests apart from the user's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_keys_of_nodes_are_fixed_by_the_secret() -> None:
    """Two releases of the same protocol must derive the same, so the bytes are frozen here."""
    key = Key(bytes(range(32)))
    listener = "25c9e8f4161c720dc372a29791ef56f214aa6d02fa351af5f6726af2be859a85"
    dialler = "6e2545f772e36b5421e1ba24decdf4296f053f2b012a6d1cb0070211b5aec0ae"
    assert (key.of_listener(0).hex(), key.of_dialler(3).hex()) == (listener, dialler)


def test_every_node_and_purpose_has_a_key_of_its_own() -> None:
    keys = Key(bytes(32)), Key(bytes(31) + b"\1")
    purposes = [derive for key in keys for derive in (key.of_listener, key.of_dialler)]
    assert len({derive(node) for derive in purposes for node in range(200)}) == 800


def test_a_key_does_not_show_its_secret() -> None:
    key = Key(b"s" * 32)
    assert "ss" not in f"{key!r} {key}"
    with pytest.raises(ConfigError, match="31 bytes; 32"):
        Key(bytes(31))


def test_a_new_key_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0, 0o777):
        before = os.umask(umask)
        try:
            path = make_key(tmp_path / f"key{umask}")
        finally:
            os.umask(before)
        assert mode_of(path) == 0o600
        assert load_key(path).of_listener(0) == load_key(str(path)).of_listener(0)
    first, second = map(load_key, sorted(tmp_path.glob("*key*")))  # and no draft is left
    assert first.of_listener(0) != second.of_listener(0)


def test_a_key_in_use_is_never_replaced(tmp_path: Path) -> None:
    path = make_key(tmp_path / "key")
    text = path.read_text()
    with pytest.raises(ConfigError, match=r"exists already\. Name another file"):
        make_key(path)
    assert path.read_text() == text
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        make_key(tmp_path / "nowhere" / "key")
    assert [each.name for each in tmp_path.iterdir()] == ["key"]


def with_mode(path: Path, mode: int) -> None:
    make_key(path).chmod(mode)


NO_KEYS = "", "a" * 63, "A" * 64, f"{'a' * 64}\n{'b' * 64}", "\xff" * 64, "#" * 10**6


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, r"cannot be read: No such file .* `ding-lite keygen FILE`"),
        (lambda path: with_mode(path, 0o640), r"Other users have .* mode is 0640.*chmod 600 /"),
        (lambda path: with_mode(path, 0o604), r"Other users have .* mode is 0604"),
        (lambda path: path.mkdir(), r"cannot be read: This is no regular file"),
        (lambda path: os.mkfifo(path, 0o600), r"cannot be read: This is no regular file"),
        *(
            (lambda path, text=text: written(path, text), "holds no key: expected .* 64 hex digits")
            for text in NO_KEYS
        ),
    ],
)
def test_unsafe_key_files_are_refused(tmp_path, prepare, message) -> None:
    path = tmp_path / "key"
    prepare(path)
    with pytest.raises(ConfigError, match=message):
        load_key(path)


def written(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text, encoding="latin-1")


def test_a_key_file_of_another_user_is_refused(tmp_path, monkeypatch) -> None:
    path = make_key(tmp_path / "key")
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ConfigError, match=r"belongs to user \d+; it must belong to you"):
        load_key(path)


def test_a_symbolic_link_to_a_key_file_is_read(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    (tmp_path / "link").symlink_to("key")
    assert load_key(tmp_path / "link").of_listener(1) == load_key(tmp_path / "key").of_listener(1)


def test_the_users_own_key_is_made_once_by_however_many(state_home: Path) -> None:
    barrier = threading.Barrier(8)

    def ask() -> bytes:
        barrier.wait(5.0)
        return user_key().of_listener(0)

    assert len({*together(*[ask] * 8)}) == 1
    assert mode_of(state_home / "ding_lite") == 0o700
    assert mode_of(state_home / "ding_lite" / "loopback.key") == 0o600
    assert len(list((state_home / "ding_lite").iterdir())) == 1


def test_the_users_own_key_is_not_kept_where_others_can_enter(state_home: Path) -> None:
    (state_home / "ding_lite").mkdir(parents=True, mode=0o755)
    with pytest.raises(ConfigError, match=r"Other users have access to .*chmod 700"):
        user_key()
    assert not (state_home / "ding_lite" / "loopback.key").exists()


def test_a_state_directory_that_cannot_be_made_is_named(state_home: Path) -> None:
    state_home.write_text("in the way")
    with pytest.raises(ConfigError, match=r"cannot be made: Not a directory.* Set XDG_STATE_HOME"):
        user_key()


def test_a_disk_that_is_full_is_not_taken_for_a_key_of_another_process(monkeypatch) -> None:
    monkeypatch.setattr(security, "make_key", partial(raise_, ConfigError("The disk is full.")))
    with pytest.raises(ConfigError, match="The disk is full"):
        user_key()


@pytest.mark.parametrize(
    ("address", "place"),
    [
        *((loopback, loopback) for loopback in ("tcp://127.0.0.1:0", "tcp://127.3.2.1:5")),
        *(("tcp://[::1]:0", "tcp://[::1]:0"), ("tcp://localhost:7", None)),
        *((f"tcp://{host}:0", "refused") for host in ("0.0.0.0", "*", "[::]", "10.1.2.3")),
        *((f"tcp://{host}:0", "refused") for host in ("[fe80::1]", "half.example")),
        ("tcp://nowhere.invalid:0", "cannot be looked up"),
    ],
)
def test_where_a_node_may_listen_without_a_key(address, place, monkeypatch) -> None:
    look_up = socket.getaddrinfo

    def names(host: str, *args: Any, **kwargs: Any) -> object:
        """Resolve a name of two addresses, one of which is not loopback's."""
        if host == "half.example":
            return [(2, 1, 6, "", (number, 0)) for number in ("127.0.0.1", "10.0.0.1")]
        if host == "nowhere.invalid":
            raise OSError("Name or service not known")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", names)
    wanted = Address.parse(address)
    if place == "refused":
        with pytest.raises(ConfigError, match=r"can be reached from other machines.*key_file"):
            place_to_listen(wanted, key_file=None)
        assert place_to_listen(wanted, key_file="key").port == wanted.port
    elif place == "cannot be looked up":
        with pytest.raises(ConfigError, match=place):
            place_to_listen(wanted, key_file="key")
    else:
        found = place_to_listen(wanted, key_file=None)
        assert str(found) in (place, "tcp://127.0.0.1:7", "tcp://[::1]:7")


def test_an_address_open_to_other_machines_is_not_bound_without_a_key(monkeypatch) -> None:
    bound: list[str] = []
    monkeypatch.setattr(zmq.Socket, "bind", lambda self, address: bound.append(address))
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        NodeRouter(hub_spec(listen="tcp://0.0.0.0:0"))
    assert bound == []


def test_another_machine_is_not_dialled_with_the_key_of_this_one() -> None:
    check_dialling(Address.parse("tcp://127.0.0.1:50515"), key_file=None)
    check_dialling(Address.parse("tcp://10.0.0.7:50515"), key_file="key")
    with pytest.raises(ConfigError, match=r"10.0.0.7:50515 is on another machine.*keygen"):
        NodeRouter(leaf_spec(1, "tcp://10.0.0.7:50515"))


def test_socket_files_lie_in_a_private_directory(tmp_path: Path) -> None:
    check_private(tmp_path)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(ConfigError, match=r"Other users have access to .*/open: its mode is 0755"):
        NodeRouter(hub_spec(listen=f"ipc://{open_to_all}/hub"))
    with pytest.raises(ConfigError, match="nowhere is not usable: No such file"):
        NodeRouter(hub_spec(listen=f"ipc://{tmp_path}/nowhere/hub"))
    assert list(open_to_all.iterdir()) == []


@pytest.fixture
def job(job: Job) -> Iterator[Job]:
    """Check that the job goes on beside what is refused."""
    job.goes_on()
    yield job
    job.goes_on()


def refused(spec: NodeSpec) -> str:
    """Return the refusal of a node, which must not take long."""
    started = time.monotonic()
    with closing(NodeRouter(spec)) as stranger:
        with pytest.raises(AuthenticationError) as caught:
            stranger.wait_ready(15.0)
        assert time.monotonic() - started < 2.0
    return str(caught.value)


def test_a_node_with_another_key(tmp_path: Path, job: Job) -> None:
    wrong = str(make_key(tmp_path / "wrong.key"))
    reported = refused(leaf_spec(2, job.hub.address, key_file=wrong))
    assert "Node 0 has refused node 2: it has another key" in reported
    wait_until(lambda: job.hub.links.dropped.count >= 1)
    assert "it has another key" in refused(leaf_spec(2, job.hub.address))  # with the user's own


@pytest.mark.parametrize(
    ("node_id", "num_nodes", "reason"),
    [
        (7, 8, "it does not count this node among its peers"),
        (1, 3, "there is a node 1 already. Give each node an id of its own"),
        (2, 5, "belongs to a job of 5 nodes, this one has 3"),
        (1, 5, "belongs to a job of 5 nodes, this one has 3"),  # and there is a node 1 here
    ],
)
def test_a_node_without_a_place_in_the_job_is_refused_with_the_reason(
    job: Job, node_id: int, num_nodes: int, reason: str
) -> None:
    spec = leaf_spec(node_id, job.hub.address, num_nodes, key_file=job.key_file)
    assert reason in refused(spec)
    wait_until(lambda: job.hub.links.dropped.count >= 1)


def test_a_node_dialling_a_peer_without_a_key_is_refused(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as open_to_all:
        open_to_all.linger = 0
        port = open_to_all.bind_to_random_port("tcp://127.0.0.1")
        reported = refused(leaf_spec(1, f"tcp://127.0.0.1:{port}"))
    # ZeroMQ tells a peer without a key from one that hangs up only if its answer comes first.
    assert "has no key, or is no node" in reported or "what listens at" in reported


class Newer(ZeroMQTransport):
    """The transport of a node of the next version."""

    def send(self, link: Link, lane: Lane, frames: Sequence[Frame]) -> bool:
        head = bytearray(frames[0])
        head[4] = VERSION + 1
        return super().send(link, lane, [bytes(head), *frames[1:]])


def test_nodes_of_different_versions_refuse_each_other(tmp_path: Path) -> None:
    key = str(make_key(tmp_path / "key"))
    newer = Newer(0, peers=[1, 2], key_file=key)
    with closing(NodeRouter(hub_spec(key_file=key), transport=newer)) as hub:
        reported = refused(leaf_spec(1, hub.address, key_file=key))
        assert f"it speaks version {VERSION + 1} of the protocol" in reported


def test_the_version_of_malformed_frames_is_unknown() -> None:
    assert [version_of(frames) for frames in ([], [b"DIN"], [b"DONG\1"])] == [None] * 3
    assert version_of([memoryview(b"DING\7rest")]) == 7


def test_a_peer_cannot_speak_for_another_node(job: Job) -> None:
    """With the key of node 2 it claims to be node 1, which would cut off the real one."""
    hub, key = job.hub, job.key_file
    as_two = ZeroMQTransport(2, peers=[0], key_file=key)
    liar = NodeRouter(leaf_spec(1, hub.address, key_file=key, incarnation=9), transport=as_two)
    with closing(liar):
        wait_until(lambda: hub.links.dropped.count > 0)
        job.goes_on()
        assert liar.peers == ()


def test_a_refused_node_stops_dialling(tmp_path: Path) -> None:
    key = str(make_key(tmp_path / "key"))
    with (
        closing(NodeRouter(hub_spec(key_file=key))) as hub,
        closing(NodeRouter(leaf_spec(1, hub.address))) as stranger,
        closing(NodeRouter(leaf_spec(2, hub.address, key_file=key))) as friend,
    ):
        with pytest.raises(AuthenticationError):
            stranger.wait_ready(5.0)
        friend.wait_ready(5.0)
        recorder = Recorder(hub)
        count = hub.links.dropped.count
        for number in range(50):  # far longer than the pauses between two attempts
            friend.emit("n", number)
            recorder.wait_for_numbers(number + 1)
        assert hub.links.dropped.count <= count + 2  # those under way when it gave up
