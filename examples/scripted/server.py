"""A server on this machine that answers the requests of an SDK with what it is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Self


class ScriptedServer:
    """Answers each request with the next of some JSON objects.

    Args:
        answers: the objects, in order.
    """

    def __init__(self, answers: Sequence[Any]) -> None:
        self.asked: list[Any] = []
        """Bodies of the requests."""
        left, asked = list(answers), self.asked

        class Handler(BaseHTTPRequestHandler):
            """Handles one request."""

            def do_POST(self) -> None:
                """Answer."""
                asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                body = json.dumps(left.pop(0)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
