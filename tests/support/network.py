"""A network of its own for one thread and all that it starts; its cable can be pulled.

A proxy cannot show a host that vanished: the kernel behind it goes on acknowledging. Here the only
interface is a loopback of our own, and taking it down loses whatever is on the way. Unix sockets
are files, so who uses those goes on.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import threading

CLONE_NEWNET = 0x40000000
GET_FLAGS, SET_FLAGS = 0x8913, 0x8914
UP = 1


class Refused(Exception):
    """This machine gives nobody a network of their own."""


@contextlib.contextmanager
def own_network():
    """Enter one, up; yields the function that pulls its cable. Raises Refused (needs root)."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET) != 0:
            raise Refused(os.strerror(ctypes.get_errno()))
        try:
            _turn(up=True)
            yield lambda: _turn(up=False)
        finally:
            assert libc.setns(before, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(before)


def _turn(*, up):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("16sh14x", b"lo", 0)
        name, flags = struct.unpack("16sh14x", fcntl.ioctl(control, GET_FLAGS, asked))
        flags = flags | UP if up else flags & ~UP
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sh14x", name, flags))
