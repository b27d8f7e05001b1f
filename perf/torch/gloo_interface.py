"""Which network Gloo takes on an emulated host."""

import contextlib
import fcntl
import os
import socket
import struct

SIOCGIFADDR = 0x8915


def name_the_interface():
    """Gloo takes the address of the host's name, which on an emulated host is the loopback's: that by which this one
    reaches rank 0, of however many networks."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if master.startswith("127.") or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
        asks.connect((master, 1))  # sends nothing
        mine = asks.getsockname()[0]
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # one without an address
                of = fcntl.ioctl(asks, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(of[20:24]) == mine:
                    os.environ["GLOO_SOCKET_IFNAME"] = name
