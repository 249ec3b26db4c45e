"""A relay of TCP connections to a server on this host, which loses what the server sends, or all connections."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    def __init__(self, server: str) -> None:
        host, port = server.rsplit(":", 1)
        self._server = (host, int(port))
        self._loses_answers = False
        self._down = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self) -> None:
        """From now on, what the server sends is lost; what it receives is not."""
        self._loses_answers = True

    def go_down(self) -> None:
        """Closes all connections, and new ones as well until `return_`."""
        self._down = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def return_(self) -> None:
        self._loses_answers = False
        self._down = False

    def close(self) -> None:
        self._listener.close()
        self.go_down()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                if self._down:
                    client.close()
                    continue
                server = socket.create_connection(self._server)
            except OSError:
                return
            self._sockets += [client, server]
            for source, target, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._forward, args=(source, target, answers), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not (answers and self._loses_answers):
                    target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
