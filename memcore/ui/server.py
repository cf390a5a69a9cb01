"""Server of the inspector: pages as HTML and JSON, for the one who started it, on this machine.

It binds a loopback address, and answers only who has its token: the printed address carries it
once, then a cookie does. Texts of models are shown as text, whatever they contain; nothing is ever
loaded from elsewhere, and nothing is written.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from memcore.errors import InvalidOptionError, MemcoreError, NotFoundError
from memcore.ui.pages import Inspector, Page

__all__ = [
    "make_app",
    "serve",
]


TOKEN_BYTES: Final = 32
LOOPBACK: Final = "127.0.0.1"
_COOKIE: Final = "memcore-ui"
_SAFE_METHODS: Final = ("GET", "HEAD")
_OWN_SITES: Final = ("none", "same-origin")
_TEXT_MAX: Final = 4096
"""Characters of a parameter."""
_HIDDEN: Final = frozenset(("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"))
"""Categories of characters that do not show, or change how others are shown."""
_KEPT: Final = "\n\t"

_TEXTS: Final = (
    "app", "user", "session", "other", "policy", "format", "status", "q", "filter", "thread",
    "namespace", "checkpoint", "before",
)  # fmt: skip
_NUMBERS: Final = ("at", "budget", "start", "seq", "id")


# --- Pages by their paths -------------------------------------------------------------------------


def _of_session(method: str, *names: str) -> Callable[[Inspector, dict[str, Any]], Page]:
    """Return a function that makes a page of one session from the parameters of a request."""

    def made(inspector: Inspector, given: dict[str, Any]) -> Page:
        at = [given.get("app") or "default", given.get("user") or "default"]
        at.append(_needed(given, "session"))
        more = {name: given[name] for name in names if given.get(name) is not None}
        page: Page = getattr(inspector, method)(*at, **more)
        return page

    return made


def _of_scope(method: str, *names: str) -> Callable[[Inspector, dict[str, Any]], Page]:
    """Return a function that makes a page of one scope from the parameters of a request."""

    def made(inspector: Inspector, given: dict[str, Any]) -> Page:
        at = given.get("app") or "default", given.get("user") or "default"
        more = {name: given[name] for name in names if given.get(name) is not None}
        page: Page = getattr(inspector, method)(*at, **more)
        return page

    return made


def _needed(given: dict[str, Any], name: str) -> Any:
    if given.get(name) in (None, ""):
        msg = f"{name}: the address of this page names one"
        raise InvalidOptionError(msg)
    return given[name]


PAGES: Final[dict[str, tuple[str, Callable[[Inspector, dict[str, Any]], Page]]]] = {
    "/": ("sessions", lambda on, given: on.sessions(
        app=given.get("app") or None, user=given.get("user") or None,
        filter=given.get("filter") or "", start=given.get("start") or 0)),
    "/session": ("timeline", _of_session("timeline", "start")),
    "/item": ("item", lambda on, given: on.item(
        given.get("app") or "default", given.get("user") or "default",
        _needed(given, "session"), _needed(given, "seq"))),
    "/context": ("context", _of_session("context", "at", "budget", "policy", "format")),
    "/compactions": ("compactions", _of_session("compactions")),
    "/forks": ("forks", _of_scope("forks", "session")),
    "/compare": ("comparison", lambda on, given: on.comparison(
        given.get("app") or "default", given.get("user") or "default",
        _needed(given, "session"), _needed(given, "other"))),
    "/state": ("state", _of_session("state", "at")),
    "/memories": ("memories", _of_scope("memories", "status", "start")),
    "/memory": ("memory", lambda on, given: on.memory(
        given.get("app") or "default", given.get("user") or "default", _needed(given, "id"))),
    "/threads": ("threads", _of_scope("threads", "start")),
    "/thread": ("thread", lambda on, given: on.thread(
        given.get("app") or "default", given.get("user") or "default",
        _needed(given, "thread"), before=given.get("before"))),
    "/step": ("step", lambda on, given: on.step(
        given.get("app") or "default", given.get("user") or "default",
        _needed(given, "thread"), _needed(given, "checkpoint"),
        namespace=given.get("namespace") or "", other=given.get("other"))),
    "/search": ("search", lambda on, given: on.search(
        given.get("q") or "", app=given.get("app") or None, user=given.get("user") or None)),
    "/audit": ("audit", lambda on, _: on.audit()),
    "/stats": ("stats", lambda on, _: on.stats()),
}  # fmt: skip
"""Template and function of each page; ``PATH.json`` is the same page as JSON."""


def _parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of a request.

    Raises:
        InvalidOptionError: one is too long, or no number where one is expected.
    """
    given: dict[str, Any] = {}
    asked = dict(_asked(request))
    for name in (*_TEXTS, *_NUMBERS):
        value = asked.get(name)
        if value is None or value == "":
            continue
        if len(value) > _TEXT_MAX:
            msg = f"{name}: at most {_TEXT_MAX:,} characters"
            raise InvalidOptionError(msg)
        if name in _NUMBERS:
            if not (value.isascii() and value.isdigit() and len(value) < 19):  # noqa: PLR2004
                msg = f"{name}: expected a number of at least 0, got {value!r:.60}"
                raise InvalidOptionError(msg)
            given[name] = int(value)
        else:
            given[name] = value
    return given


def _asked(request: Request) -> list[tuple[str, str]]:
    """Return the names and values in the address of a request."""
    try:  # a name may hold half of a surrogate pair, which ``_link`` writes so
        return parse_qsl(request.url.query, keep_blank_values=True, errors="surrogatepass")
    except UnicodeDecodeError:
        return parse_qsl(request.url.query, keep_blank_values=True)


# --- The application ------------------------------------------------------------------------------


def make_app(inspector: Inspector, *, port: int, token: str) -> Guard:
    """Return the ASGI application that shows an inspector's pages on a port of this machine."""
    templates = _templates()
    routes = []
    for path, (template, make) in PAGES.items():
        show = partial(_show, inspector, templates.get_template(f"{template}.html"), make)
        routes.append(Route(path, show, methods=["GET"]))
        name = "/sessions.json" if path == "/" else f"{path}.json"
        routes.append(Route(name, partial(_tell, inspector, make), methods=["GET"]))
    routes.append(Route("/favicon.ico", _icon, methods=["GET"]))
    refused: Any = partial(_refused, templates.get_template("error.html"))
    app = Starlette(routes=routes, exception_handlers={MemcoreError: refused})
    return Guard(app, port=port, token=token)


async def _icon(_: Request) -> Response:
    return Response(status_code=204)


async def _show(inspector: Inspector, template: Any, make: Any, request: Request) -> Response:
    given = _parameters(request)
    page = await asyncio.to_thread(make, inspector, given)
    is_export = request.query_params.get("export") == "1"
    asked = [each for each in _asked(request) if each[1] and each[0] != "export"]
    query = urlencode(asked, errors="surrogatepass")
    path = "/sessions" if request.url.path == "/" else request.url.path
    text = template.render(
        page=page, given=given, nonce=request.scope["memcore.nonce"], is_export=is_export,
        here=request.url.path, query=query, as_json=f"{path}.json?{query}",
    )  # fmt: skip
    headers = {}
    if is_export:
        headers["content-disposition"] = (
            f'attachment; filename="memcore{path.replace("/", "-")}.html"'
        )
    return _html(text, headers=headers)


async def _tell(inspector: Inspector, make: Any, request: Request) -> Response:
    page = await asyncio.to_thread(make, inspector, _parameters(request))
    return _json(page)


async def _refused(template: Any, request: Request, error: Exception) -> Response:
    """Return the page that says why a page is not shown."""
    status = 404 if isinstance(error, NotFoundError) else 400
    if request.url.path.endswith(".json"):
        return _json({"error": str(error)}, status)
    text = template.render(
        page={"title": "Not shown"}, error=str(error), given={}, is_export=False, here="",
        nonce=request.scope["memcore.nonce"], query="", as_json="",
    )  # fmt: skip
    return _html(text, status)


def _html(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # What a reader would type may hold half of a surrogate pair, which UTF-8 cannot.
    return HTMLResponse(text.encode("utf-8", "replace"), status, headers)


def _json(page: Page, status: int = 200) -> Response:
    # ASCII: so that JSON can say what UTF-8 cannot, and nothing in it hides or turns direction.
    return Response(json.dumps(page), status, media_type="application/json")


class Guard:
    """Refuses what does not come from the browser of the one who started the server.

    A page elsewhere on the web can make a browser send requests here: it knows no token, its
    cookies are not sent, and a name that it has made resolve to this machine is no Host of ours.
    """

    def __init__(self, app: Any, *, port: int, token: str) -> None:
        self._app = app
        self._hosts = frozenset((f"{LOOPBACK}:{port}", f"localhost:{port}"))
        self._token = token
        self._cookie = f"{_COOKIE}-{port}"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no sockets
        request = Request(scope, receive)
        scope["memcore.nonce"] = nonce = secrets.token_urlsafe(16)
        response = self._refusal(request)
        if response is not None:
            await response(scope, receive, _with_headers(send, nonce))
            return
        await self._app(scope, receive, _with_headers(send, nonce))

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not let in; None lets it in."""
        if request.headers.get("host") not in self._hosts:
            return PlainTextResponse("This server answers to its own address only.", 421)
        if request.headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            return PlainTextResponse("Open the address that memcore ui printed.", 403)
        if request.method not in _SAFE_METHODS:
            return PlainTextResponse("The inspector only reads.", 405)
        given = request.query_params.get("token")
        if given is not None and self._is_token(given):
            rest = urlencode(
                [(k, v) for k, v in request.query_params.multi_items() if k != "token"]
            )
            target = "/" + request.url.path.lstrip("/") + (f"?{rest}" if rest else "")
            response = Response(status_code=303, headers={"location": target})
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return response
        if self._is_token(request.cookies.get(self._cookie, "")):
            return None
        return PlainTextResponse("Open the address that memcore ui printed: it has the token.", 403)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token.encode())


def _with_headers(send: Any, nonce: str) -> Any:
    """Return ``send`` with the headers of every response."""
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    headers = [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
    ]

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return sent


# --- Texts in templates ---------------------------------------------------------------------------


def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("memcore.ui", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"shown": shown, "time": _time, "number": _number, "link": _link}
    return made


def shown(text: object) -> Markup:
    """Return a text for a page: escaped, and with characters that do not show as their codes.

    So no text can reverse the direction of others, or hide a part of itself.
    """
    return Markup("").join(_shown(str(text)))


def _shown(text: str) -> Iterator[Markup]:
    plain: list[str] = []
    for char in text:
        if char in _KEPT or unicodedata.category(char) not in _HIDDEN:
            plain.append(char)
            continue
        yield escape("".join(plain))
        plain.clear()
        yield Markup(
            '<span class="code" title="a character that does not show">U+{:04X}</span>'
        ).format(ord(char))
    yield escape("".join(plain))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def _link(path: str, **parameters: Any) -> str:
    """Return the address of a page; parameters that are None are left out."""
    given = {name: value for name, value in parameters.items() if value is not None}
    query = urlencode(given, errors="surrogatepass")
    return f"{path}?{query}" if query else path


# --- The process ----------------------------------------------------------------------------------


def serve(inspector: Inspector, *, port: int = 0, ready: Callable[[str], object]) -> None:
    """Serve the pages until interrupted.

    Args:
        inspector: the pages.
        port: a port of this machine; 0: a free one.
        ready: called with the address, token included, once the server listens.

    Raises:
        OSError: the port is taken.
    """
    token = secrets.token_urlsafe(TOKEN_BYTES)
    listener = socket.create_server((LOOPBACK, port))
    try:
        at = listener.getsockname()[1]
        config = uvicorn.Config(
            make_app(inspector, port=at, token=token),
            log_level="critical", access_log=False, server_header=False, lifespan="off", ws="none",
        )  # fmt: skip
        ready(f"http://{LOOPBACK}:{at}/?token={token}")
        with suppress(KeyboardInterrupt):  # the way to end it; uvicorn raises it again at the end
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()
        inspector.close()
