"""Transports of the MCP server: standard input and output, and HTTP on this host.

Both bound a message before they parse it, and both end cleanly: at the end of the input, and on
SIGTERM, even if a client neither writes nor reads. A change that a client has asked for is finished
first: it is stored or not, and no lock outlives the process.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Final

import anyio
import orjson
import uvicorn
from mcp.server import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError

from memcore.errors import InvalidOptionError
from memcore.records import record

__all__ = [
    "MESSAGE_BYTES_MAX",
    "HttpPlace",
    "serve_http",
    "serve_stdio",
]


MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest message of a client; a larger one is refused before it is parsed."""
_TOO_LARGE: Final = ErrorData(
    code=INVALID_REQUEST,
    message=f"the message has more than {MESSAGE_BYTES_MAX} bytes; send less at once",
)
_NO_JSON: Final = ErrorData(
    code=PARSE_ERROR, message="the message is no JSON on one line, or nested too deeply"
)


# --- Standard input and output --------------------------------------------------------------------

_CHUNK: Final = 64 * 1024
_ATOMIC: Final = 4096
"""Bytes that a pipe which is ready takes without blocking (PIPE_BUF)."""
_GRACE_SECONDS: Final = 5
"""Time that a request which has begun gets when the server ends."""
_END: Final = 512
"""Bytes at both ends of a refused message in which its id is looked for."""
_HEAD_ID: Final = re.compile(
    rb'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15}|"[\w.:-]{1,128}")\s*[,}]'
)
_TAIL_ID: Final = re.compile(
    rb'"id"\s*:\s*(\d{1,15}|"[\w.:-]{1,128}")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z'
)


_LONE_SURROGATE: Final = re.compile(
    r"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(u[dD][89a-fA-F][\da-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape in JSON; the group is half of a surrogate pair, as of an emoji that was cut."""


class _Unanswered:
    """Requests of the client that have no reply yet: what has begun is answered before the end."""

    def __init__(self) -> None:
        self._count = 0
        self._none = anyio.Event()

    def ask(self, found: object) -> None:
        """Note a message of the client."""
        if isinstance(found, dict) and "method" in found and found.get("id") is not None:
            self._count += 1

    def answer(self) -> None:
        """Note a reply."""
        self._count -= 1
        if self._count <= 0:
            self._none.set()

    async def wait(self) -> None:
        """Wait for the replies that are due; not for ever, since the client may be gone."""
        if self._count > 0:
            self._none = anyio.Event()
            with anyio.move_on_after(_GRACE_SECONDS):
                await self._none.wait()


def _replaced(found: re.Match[str]) -> str:
    return "\\ufffd" if found[1] else found[0]


_Refuse = Callable[[int | str | None, ErrorData], Awaitable[None]]


class _Lines:
    """Lines of a descriptor, read without a thread, so that waiting for one can be cancelled.

    Args:
        fd: the descriptor.
        pending: is told of each line.
        refuse: is told of each line that is too long or no JSON: the id of its request if it shows,
            and the error.
    """

    def __init__(self, fd: int, pending: _Unanswered, refuse: _Refuse) -> None:
        self._fd = fd
        self._pending = pending
        self._refuse = refuse
        self._waits = _can_wait(fd)

    async def __aiter__(self) -> AsyncIterator[str]:
        parts: list[bytes] = []
        size, head, at_end = 0, b"", False
        while not at_end:
            if self._waits:
                await anyio.wait_readable(self._fd)
            chunk = os.read(self._fd, _CHUNK)
            at_end = not chunk
            *ended, rest = (chunk or b"\n").split(b"\n")
            for piece in ended:
                parts.append(piece)
                size += len(piece)
                line = b"".join(parts)
                if size > MESSAGE_BYTES_MAX:
                    await self._refuse(_id_in(head or line, line), _TOO_LARGE)
                elif line.strip():
                    text = line.decode("utf-8", "replace")
                    try:
                        self._pending.ask(orjson.loads(text))
                    except ValueError:
                        text = _LONE_SURROGATE.sub(_replaced, text)
                        try:
                            self._pending.ask(orjson.loads(text))
                        except ValueError:
                            await self._refuse(_id_in(line, line), _NO_JSON)
                            text = ""
                    if text:
                        yield text
                parts, size, head = [], 0, b""
            parts.append(rest)
            size += len(rest)
            if size > MESSAGE_BYTES_MAX:  # keep both ends of it alone
                line = b"".join(parts)
                head = head or line[:_END]
                parts = [line[-_END:]]
        await self._pending.wait()


def _can_wait(fd: int) -> bool:
    """Return True if a descriptor can be waited for; files on a disk are always ready."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(fd, int)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        return False
    loop.remove_reader(fd)
    return True


def _id_in(head: bytes, tail: bytes) -> int | str | None:
    """Return the id of a request from the ends of its message; None if it does not show."""
    found = _HEAD_ID.search(head[:_END]) or _TAIL_ID.search(tail[-_END:])
    if found is None:
        return None
    text = found[1].decode()
    return text[1:-1] if text.startswith('"') else int(text)


class _Replies:
    """Standard output for replies alone, written without a thread.

    Meanwhile the descriptor of standard output is that of standard error, so that nothing else that
    prints gets between them.
    """

    def __init__(self, fd: int, pending: _Unanswered, gone: Callable[[], None]) -> None:
        self._fd = fd
        self._pending = pending
        self._gone = gone
        self._waits = _can_wait(fd)

    async def write(self, text: str) -> None:
        """Write a reply; if nobody reads any more, the server ends."""
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while left:
                if self._waits:
                    await anyio.wait_writable(self._fd)
                left = left[os.write(self._fd, left[:_ATOMIC]) :]
        except BrokenPipeError:
            self._gone()
        self._pending.answer()

    async def flush(self) -> None:
        """Do nothing: what is written has left the process."""


@contextmanager
def _own_stdout() -> Iterator[int]:
    """Hand out a descriptor of standard output that nothing else in the process writes to."""
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        yield own
    finally:
        os.dup2(own, 1)
        os.close(own)


async def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve one client over standard input and output, until it ends or SIGTERM comes.

    Args:
        server: see ``build_server``.
    """
    loop = asyncio.get_running_loop()
    lowlevel = server._lowlevel_server  # noqa: SLF001 - as run_stdio_async, with streams of ours
    with anyio.CancelScope() as scope, _own_stdout() as out:
        loop.add_signal_handler(signal.SIGTERM, scope.cancel)
        try:
            refusals: list[_Refuse] = []

            async def refuse(request: int | str | None, error: ErrorData) -> None:
                await refusals[0](request, error)

            pending = _Unanswered()
            lines, replies = _Lines(0, pending, refuse), _Replies(out, pending, scope.cancel)
            async with stdio_server(lines, replies) as (read, write):  # type: ignore[arg-type]

                async def send(request: int | str | None, error: ErrorData) -> None:
                    reply = JSONRPCError(jsonrpc="2.0", id=request, error=error)
                    await write.send(SessionMessage(reply))

                refusals.append(send)
                await lowlevel.run(read, write, lowlevel.create_initialization_options())
        finally:
            loop.remove_signal_handler(signal.SIGTERM)


# --- HTTP -----------------------------------------------------------------------------------------

PATH: Final = "/mcp"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_CONNECTIONS_MAX: Final = 64
_DRAINED_MAX: Final = 16 * MESSAGE_BYTES_MAX
_MORE_HEADERS: Final = {401: ((b"www-authenticate", b"Bearer"),), 405: ((b"allow", b"POST"),)}
_TOKEN_CHARS_MIN: Final = 16

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


@record(frozen=True, slots=True)
class HttpPlace:
    """Address of an HTTP server, and who may call it.

    Raises:
        InvalidOptionError: the token is too short, or the address is not of this host alone and no
            name is given by which it is called.
    """

    token: str = field(repr=False)
    """Bearer token that every request has to bring: at least 16 characters of ASCII."""
    host: str = "127.0.0.1"
    port: int = 8452
    """0: any free one."""
    names: tuple[str, ...] = ()
    """Other names by which it may be called: ``HOST`` or ``HOST:PORT`` as in the header Host."""

    def __post_init__(self) -> None:
        is_plain = self.token.isascii() and self.token.isprintable() and " " not in self.token
        if len(self.token) < _TOKEN_CHARS_MIN or not is_plain:
            msg = f"token: expected at least {_TOKEN_CHARS_MIN} characters of ASCII without spaces"
            raise InvalidOptionError(msg)
        if self.host not in _LOOPBACK and not self.names:
            msg = (
                f"host: {self.host!r:.80} may be reached from other hosts: give the names by which "
                "it is called (--allow-host), and put TLS in front of it"
            )
            raise InvalidOptionError(msg)

    def hosts(self, port: int) -> list[str]:
        """Return what the header Host may say of a server at a port."""
        own = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        return sorted({*own, *(name.lower() for name in self.names)})


class _Guard:
    """Refuses requests that are not for this server or do not bring its token.

    The checks need the headers alone, and nothing of a refused body is kept: Host, so that no
    foreign name leads here (DNS rebinding); Origin, so that no foreign page does; then the token.
    """

    def __init__(self, app: _App, place: HttpPlace, hosts: Iterable[str]) -> None:
        self._app = app
        self._token = place.token.encode()
        self._hosts = frozenset(hosts)
        self._origins = frozenset(
            f"{scheme}://{host}" for host in self._hosts for scheme in ("http", "https")
        )

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope["method"], [*scope["headers"]])
            if refusal is not None:
                with anyio.move_on_after(_GRACE_SECONDS):
                    await _drain(receive)  # who still sends would see a reset and no reply
                await _refuse(send, *refusal)
                return
        await self._app(scope, receive, send)

    def _refusal(self, method: str, headers: list[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Return the status and the words by which a request is refused; None: it is not."""
        given: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            given.setdefault(name.lower(), []).append(value)
        hosts = [value.decode("latin-1").lower() for value in given.get(b"host", [])]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 421, "the header Host names another server"
        origins = [value.decode("latin-1").lower() for value in given.get(b"origin", [])]
        if any(origin not in self._origins for origin in origins):
            return 403, "a page of another origin may not call this server"
        told = given.get(b"authorization", [])
        scheme, _, token = (told[0] if len(told) == 1 else b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            return 401, "the token is missing or wrong: send it as 'Authorization: Bearer TOKEN'"
        if method != "POST":  # a stream that nothing is ever sent on would be held for nothing
            return 405, "only POST is served here: there are no sessions and no streams"
        lengths = given.get(b"content-length", [])
        if any(each.isdigit() and int(each[:20]) > MESSAGE_BYTES_MAX for each in lengths):
            return 413, _TOO_LARGE.message
        return None


async def _drain(receive: _Receive) -> None:
    """Read what is left of a request and keep nothing of it, up to a bound."""
    left = _DRAINED_MAX
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return


async def _refuse(send: _Send, status: int, words: str) -> None:
    error = ErrorData(code=INVALID_REQUEST, message=words)
    reply = JSONRPCError(jsonrpc="2.0", id=None, error=error)
    body = reply.model_dump_json(by_alias=True, exclude_unset=True).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    headers += _MORE_HEADERS.get(status, ())
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def http_app(server: MCPServer[Any], place: HttpPlace, port: int) -> _App:
    """Return the ASGI application of a server that is reached at a port."""
    hosts = place.hosts(port)
    origins = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,  # a client that goes away leaves nothing behind
        max_request_body_size=MESSAGE_BYTES_MAX,
        transport_security=TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins),
    )
    return _Guard(app, place, hosts)


def _listening(place: HttpPlace) -> socket.socket:
    """Return a socket that listens at a place.

    Raises:
        OSError: the address is taken, or is none of this host.
    """
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((place.host, place.port))
        found.listen(_CONNECTIONS_MAX)
    except OSError as error:
        found.close()
        where = f"{place.host}:{place.port}"
        raise OSError(error.errno, error.strerror or str(error), where) from error
    return found


def serve_http(
    server: MCPServer[Any], place: HttpPlace, *, ready: Callable[[str], None] | None = None
) -> None:
    """Serve clients over streamable HTTP until SIGTERM or SIGINT comes.

    Args:
        server: see ``build_server``.
        place: the address and the token.
        ready: is told the URL once the server listens.

    Raises:
        OSError: the address is taken, or is none of this host.
    """
    with _listening(place) as listening:
        port = listening.getsockname()[1]
        config = uvicorn.Config(
            http_app(server, place, port),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="on",
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            server_header=False,
        )
        running = uvicorn.Server(config)

        def stop(*_: object) -> None:
            running.should_exit = True

        # Before uvicorn has handlers of its own, and again when it raises what it has caught.
        before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            if ready is not None:
                host = f"[{place.host}]" if ":" in place.host else place.host
                ready(f"http://{host}:{port}{PATH}")
            running.run(sockets=[listening])
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
