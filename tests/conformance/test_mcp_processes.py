"""``memcore mcp`` as a process: both transports, hostile clients, and how it ends."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

import httpx2
import lmdb
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

import memcore
from memcore.mcp.transport import MESSAGE_BYTES_MAX
from memcore.store.datafile import FORMAT_KEY, Format

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "memcore", "mcp"]
TOKEN = "a-token-of-sixteen-or-more"
PATIENCE = 60


def environment(**more: str) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEMCORE_")}
    return {**kept, "PYTHONPATH": path, **more}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        chat = db.session("chat", user="alice")
        chat.append({"role": "user", "content": "I always take a window seat."})
        chat.memory.remember("Prefers window seats", source=1)
    return path


def items(store: Path, name: str = "chat") -> list[Any]:
    with memcore.open(store) as db:
        assert db.check() == []
        return [item.message["content"] for item in db.session(name, user="alice").items()]


class Peer:
    """The other end of the pipes of a server: lines of JSON, whatever is in them."""

    def __init__(self, store: Path, *options: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "--store", str(store), "--user", "alice", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**variables),
        )
        self.input, self.output = self.process.stdin, self.process.stdout

    def send(self, message: object) -> None:
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.input.write(raw + b"\n")
        self.input.flush()

    def read(self) -> dict[str, Any]:
        line = self.output.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def ask(self, number: int, method: str, **params: object) -> dict[str, Any]:
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return self.answer(number)

    def answer(self, number: int) -> dict[str, Any]:
        while True:
            found = self.read()
            if found.get("id") == number:
                return found

    def call(self, number: int, name: str, **arguments: object) -> dict[str, Any]:
        return self.ask(number, "tools/call", name=name, arguments=arguments)

    def begin(self) -> None:
        client = {"name": "test", "version": "1"}
        found = self.ask(
            0, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client
        )
        assert found["result"]["serverInfo"]["name"] == "memcore"
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def end(self) -> tuple[int, str]:
        """The exit code and what is left on standard error, once the input has ended."""
        if not self.input.closed:
            self.input.close()
        self.output.read()
        error = self.process.stderr.read().decode()
        return self.process.wait(PATIENCE), error


@contextmanager
def talking(store: Path, *options: str, **variables: str) -> Iterator[Peer]:
    peer = Peer(store, *options, **variables)
    try:
        peer.begin()
        yield peer
    finally:
        peer.process.kill()
        peer.process.wait()
        for stream in (peer.input, peer.output, peer.process.stderr):
            with suppress(BrokenPipeError):  # what it was sent and did not read
                stream.close()


# --- Standard input and output --------------------------------------------------------------------


def test_the_sdks_client_over_pipes(store) -> None:
    server = StdioServerParameters(
        command=sys.executable,
        args=[*PROGRAM[1:], "--store", str(store), "--user", "alice", "--write"],
        env=environment(),
    )

    async def talk() -> None:
        async with Client(stdio_client(server)) as client:
            assert client.server_info.name == "memcore"
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"memory_search", "memory_remember"} < names
            assert "memory_forget" not in names
            found = await client.call_tool("memory_search", {"query": "seats"})
            (hit,) = found.structured_content["memories"]
            assert hit["memory"]["text"] == "Prefers window seats"
            read = await client.read_resource("memcore://sessions/chat")
            assert "window seat" in read.contents[0].text
            prompt = await client.get_prompt("recall", {"question": "seats"})
            assert "Prefers window seats" in prompt.messages[0].content.text
            made = await client.call_tool("memory_remember", {"text": "Likes tea"})
            assert made.structured_content["status"] == "quarantined"

    asyncio.run(talk())
    with memcore.open(store) as db:
        waiting = db.scope(user="alice").memory.quarantined()
        assert [each.text for each in waiting] == ["Likes tea"]


def test_the_end_of_the_input_ends_it(store) -> None:
    with talking(store) as peer:
        found = peer.call(1, "memory_search", query="seats")
        assert found["result"]["structuredContent"]["memories"]
        assert peer.end() == (0, "")


def test_what_was_asked_before_the_end_is_answered(store) -> None:
    with talking(store, "--write") as peer:
        said = [{"role": "user", "content": "the last word"}]
        arguments = {"session": "chat", "messages": said}
        params = {"name": "session_append", "arguments": arguments}
        peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        peer.input.close()
        assert peer.answer(1)["result"]["isError"] is False
        assert peer.end() == (0, "")
    assert items(store)[-1] == "the last word"


@pytest.mark.parametrize("is_reading", [True, False])
def test_sigterm_ends_it_whatever_its_client_does(store, is_reading) -> None:
    with talking(store, "--write") as peer:
        session = {"name": "session_list", "arguments": {}}
        if not is_reading:  # its output fills the pipe, and nobody reads it
            request = {"jsonrpc": "2.0", "method": "tools/list", "params": {}}
            for number in range(1, 40):
                peer.send({**request, "id": number})
        assert peer.process.poll() is None
        if is_reading:
            assert peer.ask(1, "tools/call", **session)["result"]
        peer.process.send_signal(signal.SIGTERM)
        assert peer.process.wait(PATIENCE) == 0
    with memcore.open(store) as db:  # no lock is left
        assert db.check() == []


def test_a_client_that_goes_away_loses_nothing(store) -> None:
    with talking(store, "--write") as peer:
        for number in range(1, 30):
            said = [{"role": "user", "content": f"line {number}"}]
            params = {
                "name": "session_append",
                "arguments": {"session": "chat", "messages": said, "idempotency_key": str(number)},
            }
            peer.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        peer.answer(1)
        peer.output.close()  # in the middle of its replies
        peer.input.close()
        error = peer.process.stderr.read().decode()
        assert peer.process.wait(PATIENCE) == 0, error
        assert error == ""
    stored = items(store)[1:]
    assert len(stored) == len(set(stored))
    assert set(stored) <= {f"line {number}" for number in range(1, 30)}
    # What it is not sure of it sends again, to another server; the keys tell what is there.
    with talking(store, "--write") as peer:
        for number in range(1, 30):
            said = [{"role": "user", "content": f"line {number}"}]
            found = peer.call(
                number, "session_append", session="chat", messages=said,
                idempotency_key=str(number),
            )  # fmt: skip
            assert found["result"]["isError"] is False
        assert peer.end() == (0, "")
    assert sorted(items(store)[1:]) == sorted(f"line {number}" for number in range(1, 30))


@pytest.mark.long
def test_a_killed_server_leaves_no_lock(store) -> None:
    with talking(store, "--write") as peer:
        said = [{"role": "user", "content": "kept"}]
        assert peer.call(1, "session_append", session="chat", messages=said)["result"]
        peer.process.kill()
        peer.process.wait(PATIENCE)
    assert items(store)[-1] == "kept"


HOSTILE = {
    "nothing": b"",
    "no JSON": b"hello",
    "half": b'{"jsonrpc": "2.0", "id": 5, "method"',
    "no UTF-8": b'{"jsonrpc": "2.0", "id": 5, "method": "\xff\xfe"}',
    "a lone surrogate": b'{"jsonrpc": "2.0", "id": 5, "method": "\\ud800"}',
    "a list": b"[1, 2]",
    "a number": b"7",
    "nested": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "an odd id": b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "tools/list"}',
    "a long id": b'{"jsonrpc": "2.0", "id": "' + b"x" * 100_000 + b'", "method": "tools/list"}',
    "no such method": b'{"jsonrpc": "2.0", "id": 5, "method": "store/delete"}',
    "odd params": b'{"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": [1]}',
    "odd arguments": (
        b'{"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": '
        b'{"name": "memory_search", "arguments": "x"}}'
    ),
    "a reply to nothing": b'{"jsonrpc": "2.0", "id": 5, "result": {}}',
    "control characters": b"\x00\x01\x1b[2J\r",
}


def test_no_line_ends_it_or_prints_anything_else(store) -> None:
    with talking(store) as peer:
        for number, (name, line) in enumerate(HOSTILE.items(), 10):
            peer.send(line)
            found = peer.call(number, "memory_search", query="seats")  # every line is JSON
            assert found["result"]["structuredContent"]["memories"], name
        code, error = peer.end()
        assert code == 0
        assert "Traceback" not in error


def test_ten_megabytes_are_refused_in_a_clear_line(store) -> None:
    params = {"name": "memory_search", "arguments": {"query": "x" * 10_000_000}}
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": "tools/call", "params": params}
    with talking(store) as peer:
        for sent, number in (
            ({"jsonrpc": "2.0", "id": 77, **request}, 77),
            (request | {"id": "a-76"}, "a-76"),
            (request, None),
        ):
            peer.send(sent)
            found = peer.read()
            assert found["id"] == number
            assert found["error"]["message"] == (
                f"the message has more than {MESSAGE_BYTES_MAX} bytes; send less at once"
            )
        assert peer.call(78, "memory_search", query="seats")["result"]["isError"] is False
        # Less than that, and more than a tool takes, is a result that a model can read.
        found = peer.call(79, "memory_search", query="x" * 3_000_000)
        (block,) = found["result"]["content"]
        assert block["text"].startswith("Error (invalid_arguments): query: ")
        assert len(block["text"]) < 500
        assert peer.end() == (0, "")


def test_a_line_that_is_no_json_is_answered(store) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    with talking(store) as peer:
        for line, number in (
            (b'{"jsonrpc":"2.0","id":5,"method":"ping"', 5),
            (b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":' + deep + b"}", 6),
            (b"\xff\xfe", None),
        ):
            peer.send(line)
            found = peer.read()
            assert (found["id"], found["error"]["code"]) == (number, -32700)
        # Half of an emoji, as a model that was cut off writes it, is none of these.
        for text in ("seats \ud83d", "\udc00 seats", "\\\\ud83d \ud83d\ude00 \ud83d\ud83d"):
            assert peer.call(7, "memory_search", query=text)["result"]["isError"] is False
        assert peer.end() == (0, "")


def test_two_servers_write_one_session(store) -> None:
    async def talk(name: str) -> None:
        server = StdioServerParameters(
            command=sys.executable,
            args=[*PROGRAM[1:], "--store", str(store), "--user", "alice", "--write"],
            env=environment(),
        )
        async with Client(stdio_client(server)) as client:

            async def append(number: int) -> None:
                said = [{"role": "user", "content": f"{name} {number}"}]
                found = await client.call_tool(
                    "session_append", {"session": "chat", "messages": said}
                )
                assert not found.is_error

            await asyncio.gather(*(append(number) for number in range(20)))
            for number in range(5):
                await client.call_tool("memory_remember", {"text": f"{name} likes {number}"})

    async def both() -> None:
        await asyncio.gather(talk("one"), talk("two"))

    asyncio.run(both())
    assert sorted(items(store)[1:]) == sorted(f"{n} {i}" for n in ("one", "two") for i in range(20))
    with memcore.open(store) as db:
        assert len(db.scope(user="alice").memory.quarantined()) == 10


@pytest.mark.long
def test_a_server_sees_what_others_write(store) -> None:
    with talking(store) as peer:
        assert len(peer.call(1, "session_list")["result"]["structuredContent"]["sessions"]) == 1
        with memcore.open(store) as db:
            db.session("new", user="alice").append({"role": "user", "content": "later"})
        found = peer.call(2, "session_search", query="later")["result"]["structuredContent"]
        assert [each["session"] for each in found["items"]] == ["new"]
        assert peer.end() == (0, "")


# --- HTTP -----------------------------------------------------------------------------------------


@contextmanager
def listening(store: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    process = subprocess.Popen(
        [*PROGRAM, "--store", str(store), "--user", "alice", "--http", "--port", "0", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(MEMCORE_MCP_TOKEN=TOKEN),
    )
    try:
        line = process.stderr.readline().decode()
        assert line.startswith("memcore: MCP at http://127.0.0.1:"), line + str(process.poll())
        yield line.split()[3].rstrip(","), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_the_sdks_client_over_http(store) -> None:
    async def talk(url: str) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            found = await client.call_tool("memory_search", {"query": "seats"})
            assert found.structured_content["memories"]
            said = [{"role": "user", "content": "over HTTP"}]
            await client.call_tool("session_append", {"session": "chat", "messages": said})
            with pytest.raises(MCPError, match="more than"):
                await client.call_tool("memory_search", {"query": "x" * 10_000_000})
            found = await client.call_tool("memory_search", {"query": "seats", "user": "bob"})
            assert found.content[0].text.startswith("Error (invalid_arguments)")
        async with httpx2.AsyncClient(timeout=PATIENCE) as http:  # without the token
            with pytest.raises(BaseExceptionGroup) as caught:
                async with Client(streamable_http_client(url, http_client=http)):
                    pass
            assert "token" in repr(caught.value)

    with listening(store, "--write") as (url, process):
        asyncio.run(talk(url))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
    assert items(store)[-1] == "over HTTP"


def test_requests_that_are_refused_before_they_are_read(store) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    good = {
        "Authorization": f"Bearer {TOKEN}",
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": "2025-06-18",
    }
    with listening(store) as (url, process), httpx2.Client(timeout=PATIENCE) as http:
        port = url.rpartition(":")[2].partition("/")[0]

        def status(method: str = "POST", path: str = url, **headers: str) -> int:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            kept = {name: value for name, value in {**good, **given}.items() if value}
            sent = {"json": body} if method == "POST" else {}
            answer = http.request(method, path, headers=kept, **sent)
            assert "access-control-allow-origin" not in answer.headers
            assert b"window" not in answer.content
            return answer.status_code

        assert status() == 200
        assert status(Host=f"localhost:{port}") == 200
        assert status(Origin=f"http://127.0.0.1:{port}") == 200
        for token in ("", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"):
            assert status(Authorization=token) == 401
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0"):
            assert status(Host=host) == 421
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
            assert status(Origin=origin) == 403
        assert status("OPTIONS", Origin="http://evil.example") == 403
        assert status("GET", Authorization="") == 401
        assert status("GET") == 405
        assert status("DELETE") == 405
        assert status(path=url.replace("/mcp", "/")) == 404
        assert status(path=url.replace("/mcp", "/"), Authorization="") == 401
        huge = http.post(url, headers=good, content=b"x" * (MESSAGE_BYTES_MAX + 1))
        assert huge.status_code == 413
        assert "more than" in huge.json()["error"]["message"]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_a_client_that_hangs_up_in_the_middle_of_a_request(store) -> None:
    import socket

    with listening(store, "--write") as (url, process):
        port = int(url.rpartition(":")[2].partition("/")[0])
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        )
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as caller:
                caller.sendall(head.encode())
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall(b"POST /mcp HTTP/1.1\r\n")  # and waits
            answer = httpx2.get(url, headers={"Authorization": f"Bearer {TOKEN}"})
            assert answer.status_code == 405
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
    assert len(items(store)) == 1


# --- How it fails ---------------------------------------------------------------------------------


def fail(store: object, *options: str, **variables: str) -> tuple[int, str]:
    """The exit code and the one line of a server that does not start."""
    ran = subprocess.run(
        [*PROGRAM, "--store", str(store), *options],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    assert line.startswith("memcore: error: ")
    return ran.returncode, line


def test_files_that_cannot_be_served(store, tmp_path) -> None:
    assert fail(tmp_path / "none")[0] == 3
    assert not (tmp_path / "none").exists()
    assert fail(tmp_path / "none", "--create")[0] == 2
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"SQLite format 3\x00" + bytes(8192))
    assert fail(foreign)[0] == 5
    damaged = tmp_path / "damaged"
    image = bytearray(store.read_bytes())
    image[4096 * 2 :] = bytes(len(image) - 4096 * 2)
    damaged.write_bytes(bytes(image))
    assert fail(damaged)[0] == 5


def test_without_the_sdk_it_says_what_to_install(store, tmp_path) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError('no mcp here', name='mcp')\n")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    code, line = fail(store, PYTHONPATH=path)
    assert (code, 'pip install "memcore-db[mcp]"' in line) == (2, True)


def test_a_file_that_somebody_holds_is_locked(store) -> None:
    with store.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert fail(store, "--write")[0] == 4


def test_a_newer_file_is_refused(store) -> None:
    with (
        lmdb.open(str(store), subdir=False, map_size=2**24) as env,
        env.begin(write=True) as txn,
    ):
        row = Format.unpack(bytes(txn.get(FORMAT_KEY)), "")
        txn.put(FORMAT_KEY, row._replace(version=9, reader_version=9).pack())
    code, line = fail(store)
    assert (code, "upgrade memcore" in line) == (5, True)


def test_an_encrypted_file_needs_its_key(tmp_path) -> None:
    pytest.importorskip("cryptography")
    path, key = tmp_path / "sealed", "01" * 32
    with memcore.open(path, key=bytes.fromhex(key)) as db:
        db.session("chat", user="alice").append({"role": "user", "content": "sealed words"})
    code, line = fail(path)
    assert code == 6
    assert "MEMCORE_KEY" in line
    code, _ = fail(path, MEMCORE_KEY="02" * 32)
    assert code == 6
    with talking(path, MEMCORE_KEY=key) as peer:
        found = peer.call(1, "session_search", query="sealed")["result"]["structuredContent"]
        assert [each["snippet"] for each in found["items"]] == ["sealed words"]
        assert peer.end() == (0, "")


@pytest.mark.long
def test_a_file_is_made_on_request(tmp_path) -> None:
    path = tmp_path / "new"
    with talking(path, "--write", "--create") as peer:
        assert peer.call(1, "memory_remember", text="Likes tea")["result"]["isError"] is False
        assert peer.end() == (0, "")
    with memcore.open(path) as db:
        assert len(db.scope(user="alice").memory.quarantined()) == 1


def test_a_token_file_is_made_for_its_owner_alone(store, tmp_path) -> None:
    token = tmp_path / "token"
    with listening(store, "--token-file", str(token)) as (url, _):
        told = token.read_text().strip()
        assert len(told) >= 32
        assert token.stat().st_mode & 0o777 == 0o600
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        headers = {"Accept": "application/json, text/event-stream"}
        for word, status in ((told, 200), (TOKEN, 401)):
            given = {**headers, "Authorization": f"Bearer {word}"}
            answer = httpx2.post(url, json=ping, headers=given, timeout=PATIENCE)
            assert answer.status_code == status


def test_places_that_cannot_be_served(store, tmp_path) -> None:
    http = ("--http", "--port", "0")
    code, line = fail(store, *http, "--host", "0.0.0.0")
    assert (code, "--allow-host" in line) == (2, True)
    assert fail(store, *http, MEMCORE_MCP_TOKEN="short")[0] == 2
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)
    code, line = fail(store, *http, "--token-file", str(token))
    assert (code, "chmod 600" in line) == (2, True)
    with listening(store) as (url, _):
        port = url.rpartition(":")[2].partition("/")[0]
        code, line = fail(store, "--http", "--port", port, MEMCORE_MCP_TOKEN=TOKEN)
        assert (code, port in line) == (7, True)
