"""A network of a given round trip in front of a Unix socket: ``python distance.py SOCKET MS``.

It prints the TCP port that it listens on. Each direction waits for half of the round trip before it
passes on what came; clients that send while an answer is under way would wait longer than on a real
network, which nobody here does.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["listening"]


@contextmanager
def listening(path: str, milliseconds: float) -> Iterator[int]:
    """A process that passes on to the socket at ``path``; yields its port."""
    command = [sys.executable, __file__, path, str(milliseconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _pass_on(source: socket.socket, target: socket.socket, seconds: float) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            time.sleep(seconds)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Pass on until the process is killed."""
    path, milliseconds = sys.argv[1], float(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(path)
        for ends in ((client, upstream), (upstream, client)):
            arguments = (*ends, milliseconds / 2000)
            threading.Thread(target=_pass_on, args=arguments, daemon=True).start()


if __name__ == "__main__":
    main()
