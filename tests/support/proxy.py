"""A TCP proxy of ours between a coordinator and its server: what a bad network does, on command.

Modes, changed at any time and seen by connections that exist already:

pass    everything goes through.
drop    nothing goes through, in either direction; what was sent arrives after healing, as a
        retransmission does. New connections are accepted and hear nothing.
drop_down   requests arrive, answers do not: the sender cannot know whether it was done.
delay   everything arrives `delay_s` late.
reset   every connection gets RST, new ones too.
close   (`half_close()`) the coordinator gets an end of stream while the server knows nothing.

The kernel acknowledges what the proxy holds back, so no time-out of TCP ends a connection
here. That is the worse case: only the program's own bounds help.
"""

import contextlib
import socket
import struct
import threading
import time

PIECE = 65536
LOOK_S = 0.02
RST = struct.pack("ii", 1, 0)
MODES = ("pass", "drop", "drop_down", "delay", "reset")


class Proxy:
    """Listens on a port of the loopback and forwards to `target`, a port of the loopback."""

    def __init__(self, target):
        self.target = target
        self.mode = "pass"
        self.delay_s = 0.0
        self._open = set()
        self._orphans = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.settimeout(0.1)
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def set(self, mode, *, delay_s=0.0):
        """Change what happens from now on."""
        assert mode in MODES, mode
        self.delay_s = delay_s
        self.mode = mode
        if mode == "reset":
            for pair in self._pairs():
                _reset(*pair)

    def half_close(self):
        """End each present client's stream; its server keeps a session that nobody uses."""
        pairs = self._pairs()
        with self._lock:
            self._orphans += [server for _client, server in pairs]
        for client, _server in pairs:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)
        return len(pairs)

    def drop_orphans(self):
        """Let the server notice: the sessions that `half_close` left behind get a reset."""
        with self._lock:
            orphans, self._orphans = self._orphans, []
        _reset(*orphans)

    def close(self):
        """End everything and wait for the threads."""
        self._closed.set()
        self._listener.close()
        for pair in self._pairs():
            _reset(*pair)
        self.drop_orphans()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _pairs(self):
        with self._lock:
            return list(self._open)

    def _accept(self):
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            # A connection that comes while nothing passes waits like one whose SYN is lost.
            self._start(self._serve, client)

    def _start(self, run, *arguments):
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, client):
        while self.mode in ("drop", "drop_down") and not self._closed.is_set():
            time.sleep(LOOK_S)
        if self.mode == "reset" or self._closed.is_set():
            _reset(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            _reset(client)
            return
        pair = (client, server)
        for end in pair:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(2)
        with self._lock:
            self._open.add(pair)
        self._start(self._pump, pair, client, server, ("drop",))
        self._pump(pair, server, client, ("drop", "drop_down"))

    def _pump(self, pair, source, sink, held_in):
        """Forward one direction until either end is gone."""
        try:
            while not self._closed.is_set():
                try:
                    piece = source.recv(PIECE)
                except TimeoutError:
                    continue
                arrived = time.monotonic()
                while self.mode in held_in and not self._closed.is_set():
                    time.sleep(LOOK_S)
                if self.mode == "delay":
                    time.sleep(max(0.0, arrived + self.delay_s - time.monotonic()))
                if not piece:
                    break
                sink.sendall(piece)
        except OSError:
            pass  # the other end is gone, which ends both directions
        finally:
            with self._lock:
                self._open.discard(pair)
            for end in pair:
                if end not in self._orphans:
                    _close(end)


def _close(end):
    """Close with FIN, and wake a thread that reads from it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _reset(*ends):
    """Close with RST instead of FIN, and wake a thread that reads from it."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RD)
        end.close()
