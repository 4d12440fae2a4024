"""A network with nothing in it but loopback."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from typing import Final

from tests.fresh_clone import without_network

_INSIDE: Final = "LEGATION_BENCH_OWN_NETWORK"
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # of the kernel's netdevice(7)


def is_alone() -> bool:
    return _INSIDE in os.environ


def enter_own_network() -> None:
    """Starts this program again in one; where the kernel has none for us, with proxies that lead nowhere."""
    if is_alone():
        if os.environ[_INSIDE]:
            _raise_loopback()
        return
    prefix, nowhere = without_network()
    os.environ.update(nowhere, **{_INSIDE: "yes" if prefix else ""})
    again = [*prefix, sys.executable, *sys.orig_argv[1:]]
    os.execvp(again[0], again)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(any_socket, _GET_FLAGS, asked))
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))
