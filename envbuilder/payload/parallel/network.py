"""Where the nodes of a job meet, and through which network interface each of them gets there.

Left to themselves, gloo and NCCL take the first interface that looks usable: gloo that of the
host's own name, which is often loopback. A node's rank then waits for the others in vain.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import sys
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from ..report import CheckError

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""What gloo and NCCL (RCCL, too) read the interface's name from."""


def loopback(system: str = sys.platform) -> Dict[str, str]:
    """Return the variables that keep all traffic on this machine."""
    return dict.fromkeys(VARIABLES, "lo0" if system == "darwin" else "lo")


def resolve(name: str) -> str:
    """Return the first address of a host; raise CheckError if it has none."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CheckError(f"{name} has no address: {error}") from error
    return str(answers[0][4][0])


def meeting_point(addresses: Sequence[str], machines: Sequence[str]) -> str:
    """Return where to meet, from the address that each node resolved; the first is of node 0.

    Debian gives a host's own name a loopback address (127.0.1.1), so node 0 may resolve its name to
    an address that is useless to the others; then theirs is taken.
    """
    outward = [a for a in addresses if not ipaddress.ip_address(a).is_loopback]
    if addresses[0] in outward:
        return addresses[0]
    if outward:
        return outward[0]
    if len(set(machines)) > 1:
        raise CheckError(
            f"node 0's address is {addresses[0]} on every node, which leaves no machine: name node"
            " 0 as the others can reach it"
        )
    return addresses[0]


def local_address(address: str) -> str:
    """Return the address of this node from which packets to another one are sent; send none."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # connecting UDP only asks the kernel for the route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise CheckError(f"there is no route to {address}: {error.strerror or error}") from error


class _SocketAddress(ctypes.Structure):
    _fields_ = (("family", ctypes.c_uint16), ("data", ctypes.c_ubyte * 26))


class _Interface(ctypes.Structure):
    """The beginning of Linux's ``struct ifaddrs``."""


_Interface._fields_ = (
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SocketAddress)),
)


def fetch_interfaces() -> List[Tuple[str, str]]:
    """Return each address of this machine with the name of its interface (Linux only)."""
    if not sys.platform.startswith("linux"):
        return []
    library, first = ctypes.CDLL(None, use_errno=True), ctypes.POINTER(_Interface)()
    if library.getifaddrs(ctypes.byref(first)) != 0:
        return []
    try:
        return list(_addresses(first))
    finally:
        library.freeifaddrs(first)


def _addresses(entry: Any) -> Iterator[Tuple[str, str]]:
    # In an IPv4 address's structure 2 bytes of the port come first, in IPv6's 6 bytes.
    places = {socket.AF_INET: (2, 4), socket.AF_INET6: (6, 16)}
    while entry:
        row = entry.contents
        entry = row.next
        if row.address and row.address.contents.family in places:
            start, length = places[row.address.contents.family]
            packed = bytes(row.address.contents.data[start : start + length])
            text = socket.inet_ntop(row.address.contents.family, packed)
            yield text, row.name.decode(errors="replace")


def variables(
    address: str,
    outside: Mapping[str, str],
    source: Callable[[str], str] = local_address,
    interfaces: Callable[[], Sequence[Tuple[str, str]]] = fetch_interfaces,
) -> Dict[str, str]:
    """Return the variables that bind ranks to the interface on the way to ``address``.

    On the node that has this address, it is the address's own interface. Variables that the user
    set stay as they are.
    """
    stated = {name: outside[name] for name in VARIABLES if outside.get(name)}
    if len(stated) == len(VARIABLES):
        return stated
    local = source(address)
    name = next((name for held, name in interfaces() if held == local), "")
    if not name:
        raise CheckError(
            f"no network interface has the address {local}, from which {address} is reached: set"
            f" {' and '.join(VARIABLES)}"
        )
    return {**dict.fromkeys(VARIABLES, name), **stated}
