"""The network interfaces of this machine: addresses, names, and routes to other machines."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ding_lite.parallel.network.address import ANY_HOST, Address, is_loopback, socket_addresses

_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_ADDRESS_AT = 20
_ALL_SIX = Path("/proc/net/if_inet6")


def interface_towards(there: Address) -> str:
    """Return the address of the interface by which this machine reaches another one."""
    [(family, place), *_] = socket_addresses(there.place, there.port)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # sends nothing
        return str(probe.getsockname()[0])


def reachable_at(listens: str | None, towards: str | None) -> str:
    """Return the address at which other nodes reach a listener of this machine.

    Example:
        >>> reachable_at("tcp://0.0.0.0:50516", "tcp://127.0.0.1:50515")
        'tcp://127.0.0.1:50516'
    """
    if listens is None or towards is None:
        return ""
    place = Address.parse(listens)
    if place.place in ANY_HOST:
        there = Address.parse(towards)
        host = interface_towards(there)
        # The other node is on this machine, so that others reach both by its name.
        place = replace(place, place=there.place if is_loopback(host) else host)
    return str(place)


def interface_beyond(host: str) -> str | None:
    """Return the name of the interface by which this machine reaches a host; None of loopback."""
    if is_loopback(host):
        return None
    return name_of_interface(interface_towards(Address("tcp", host, 1)))


def name_of_interface(number: str) -> str | None:
    wanted = ipaddress.ip_address(number)
    if wanted.version == 6:
        return _name_of_six(wanted.packed.hex())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                asked = struct.pack("256s", name.encode())
                found = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, asked)
                if found[_ADDRESS_AT : _ADDRESS_AT + 4] == wanted.packed:
                    return name
    return None


def _name_of_six(digits: str) -> str | None:
    with suppress(OSError):
        for line in _ALL_SIX.read_text(encoding="ascii").splitlines():
            number, *_, name = line.split()
            if number == digits:
                return name
    return None
