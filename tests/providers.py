"""A provider on loopback that speaks OpenAI's and Anthropic's protocols, for tests."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Json = dict[str, Any]

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


class Asked(NamedTuple):
    """One request as it came in."""

    path: str
    body: Json
    headers: dict[str, str]


class Answer(NamedTuple):
    """What the server is to answer next."""

    body: Json
    status: int = 200
    after: threading.Event | None = None
    """Not before it is set."""


class Provider:
    """What the test says and sees of the server."""

    def __init__(self) -> None:
        self.url = ""
        self.start()

    def start(self) -> None:
        """Forget what was; for the next test."""
        self.asked: list[Asked] = []
        self.answers: deque[Answer] = deque()
        self.arrived = threading.Event()
        self.release = threading.Event()

    def answer(self, *bodies: Json, status: int = 200, wait: bool = False) -> None:
        """What comes next; with ``wait`` not before ``release`` is set."""
        after = self.release if wait else None
        self.answers.extend(Answer(body, status, after) for body in bodies)


def chat(text: str | None, *, finish: str = "stop", **message: Any) -> Json:
    """An answer of Chat Completions."""
    said = {"role": "assistant", "content": text, "refusal": None, "annotations": [], **message}
    return {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion",
        "created": 1741569952,
        "model": "gpt-4.1-2025-04-14",
        "choices": [{"index": 0, "message": said, "logprobs": None, "finish_reason": finish}],
        "usage": {"prompt_tokens": 19, "completion_tokens": 10, "total_tokens": 29},
        "service_tier": "default",
    }


CHAT_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def responses(*output: Json, status: str = "completed", **members: Any) -> Json:
    """An answer of Responses."""
    return {
        "id": "resp_67ccd2bed1ec8190b14f964abc0542670bb6a6b452d3795b",
        "object": "response",
        "created_at": 1741476542,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": "gpt-4.1-2025-04-14",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "metadata": {},
        **members,
    }


def response_text(text: str) -> Json:
    block = {"type": "output_text", "text": text, "annotations": []}
    return {**_RESPONSE_MESSAGE, "content": [block]}


def response_refusal(text: str) -> Json:
    return {**_RESPONSE_MESSAGE, "content": [{"type": "refusal", "refusal": text}]}


_RESPONSE_MESSAGE = {
    "type": "message",
    "id": "msg_67ccd2bf17f0819081ff3bb2cf6508e60bb6a6b452d3795b",
    "status": "completed",
    "role": "assistant",
}
RESPONSE_REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
RESPONSE_CALL = {
    "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}",
    "status": "completed",
}  # fmt: skip


def anthropic(*texts: str, stop: str = "end_turn", blocks: tuple[Json, ...] = ()) -> Json:
    """An answer of Messages."""
    return {
        "id": "msg_013Zva2CMHLNnXjNJJKqJ2EF",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [*blocks, *({"type": "text", "text": text} for text in texts)],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 2095, "output_tokens": 503},
    }


ANTHROPIC_CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
ANTHROPIC_THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


def error(path: str, kind: str, message: str) -> Json:
    """The body of an error status."""
    found = {"type": kind, "message": message}
    if path == MESSAGES:
        return {"type": "error", "error": found, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}
    return {"error": {**found, "param": None, "code": None}}


@contextmanager
def serving() -> Iterator[Provider]:
    """A provider that answers in a thread of its own until the block ends.

    Leave it after the clients are closed: it waits for their connections.
    """
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            provider.asked.append(Asked(self.path, body, dict(self.headers.items())))
            answer = provider.answers.popleft()
            provider.arrived.set()
            if answer.after is not None:
                answer.after.wait()
            content = json.dumps(answer.body).encode()
            with suppress(ConnectionError):  # a client that went away
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Connection", "close")  # some clients keep it for ever
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # closing waits for them
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield provider
    finally:
        provider.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
