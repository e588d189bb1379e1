"""Run as a machine: in an own network namespace, pass the other end of its only wire on."""

import array
import fcntl
import os
import socket
import struct
import subprocess
import sys

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def main(descriptor: str, address: str) -> None:
    """Make the wire, hand it over, and stay until the other side is closed."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", b"wire", IFF_TUN | IFF_NO_PI))
    for line in (
        "addr add 127.0.0.1/8 dev lo",
        "link set lo up",
        f"addr add {address}/24 dev wire",
        "link set wire up mtu 1500",
    ):
        done = subprocess.run(f"ip {line}".split(), capture_output=True, text=True, check=False)
        if done.returncode and "exists" not in done.stderr:
            sys.exit(f"ip {line}: {done.stderr.strip()}")
    with socket.socket(fileno=int(descriptor)) as other:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [tun]))]
        other.sendmsg([b"t"], rights)
        other.recv(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
