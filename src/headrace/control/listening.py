"""The sockets that the driver listens on: names, addresses of IPv4 and IPv6, and free ports."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any, Final

from headrace.errors import WorkerLost

_TRIES = 5  # for a port that is free on all addresses
_MAX_PORT: Final = 0xFFFF


def listen(bind: str, port: int) -> list[socket.socket]:
    """Listen at one port on all addresses of this machine that the name has; `::` takes connections over IPv4 too."""
    where = f"{_bracketed(bare_host(bind))}:{port}"
    if port > _MAX_PORT:
        raise WorkerLost(
            "HR-6004", f"the control plane cannot listen on {where}; set headrace.control.port to at most {_MAX_PORT}"
        )
    try:
        found = socket.getaddrinfo(bare_host(bind), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = list(dict.fromkeys((family, where) for family, _, _, _, where in found))
        for _ in range(_TRIES if port == 0 and len(addresses) > 1 else 1):
            try:
                return _listen_on(addresses)
            except OSError as error:
                problem = error
        raise problem
    except (OSError, UnicodeError) as error:
        do = ""
        if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
            do = "; set headrace.control.host to an address of this machine"
        elif error.errno in (errno.EADDRINUSE, errno.EACCES):
            do = "; set headrace.control.port to a free port (0 = any)"
        raise WorkerLost("HR-6004", f"the control plane cannot listen on {where}: {error}{do}") from error


def _listen_on(addresses: Sequence[tuple[socket.AddressFamily, Any]]) -> list[socket.socket]:
    """Listen on addresses, without those that this machine does not have if it has another one."""
    with contextlib.ExitStack() as made:
        listeners: list[socket.socket] = []
        problem: OSError | None = None
        both = len(addresses) == 1 and socket.has_dualstack_ipv6()
        for family, (host, port, *scope) in addresses:
            chosen = listeners[0].getsockname()[1] if listeners else port
            try:
                listeners.append(
                    made.enter_context(
                        socket.create_server(
                            (host, chosen, *scope), family=family, dualstack_ipv6=both and family == socket.AF_INET6
                        )
                    )
                )
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                problem = error
        if not listeners and problem is not None:
            raise problem
        made.pop_all()  # they stay open
        return listeners


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def bare_host(host: str) -> str:
    """Return an address without the brackets in which Spark writes those of IPv6."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_loopback(address: str) -> bool:
    """Return True if an address is reached from this machine only."""
    return ipaddress.ip_address(address).is_loopback


def leads_to_loopback(host: str) -> bool:
    """Return True if a name leads to loopback; behind a forwarder it does not, though the driver listens there."""
    try:
        return all(is_loopback(str(where[0])) for *_, where in socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False
