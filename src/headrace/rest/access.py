"""Access control by host, origin and token: one layer in front of all routes, in the threads of the REST server.

A program carries the token as `Authorization: Bearer ...`. A browser gets it as a cookie from `/login?token=...`; what changes
something then needs a header that no other web page can send. Requests from pages of other origins are refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import parse_qs, quote, unquote, urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SAFE = {"GET", "HEAD", "OPTIONS"}
_CSRF_HEADER, _CSRF_VALUE = "x-requested-with", "headrace"
STRICT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # the address of the login carries the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
_REFUSED = (
    "give the token as 'Authorization: Bearer ...', or open the address that `headrace dashboard` prints to the user who runs "
    "the driver; `headrace token` prints the token alone"
)


_LARGEST_BODY = 1 << 20
_TOO_LARGE = f"the body is larger than {_LARGEST_BODY:,} bytes, and no request needs that"


class Access:
    """Checks every request, and adds the headers that keep browsers strict."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], token: str | None, *, secure: bool = False) -> None:
        """It answers only to `hosts` ("*": any); `secure`: the cookie is for TLS only."""
        self._app, self._hosts, self._secure = app, frozenset(hosts), secure
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing here speaks anything else

        async def send_strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in STRICT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        refusal = self._refusal(headers, method)
        if refusal is None and path == "/login":
            await self._login(scope, headers, send_strict)
            return
        if refusal is None and self._token is not None:
            refusal = self._check_token(headers, method)
        if refusal is None and _announced(headers) > _LARGEST_BODY:
            refusal = 413, _TOO_LARGE
        if refusal is not None and refusal[0] == HTTPStatus.UNAUTHORIZED and _is_browser(headers, method):
            await _ask_for_token(send_strict, path)
            return
        if refusal is not None:
            await _answer(send_strict, refusal[0], msgspec.json.encode({"errors": [refusal[1]]}))
            return
        await self._app(scope, _bounded(receive), send_strict)

    def _refusal(self, headers: Headers, method: str) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if "*" not in self._hosts and _name_of(host) not in self._hosts:
            return 400, f"this is not the host '{_shown(host)}': use one of {', '.join(sorted(self._hosts))}"
        origin = headers.get("origin")
        if origin is not None and urlsplit_host(origin) != host.lower():
            return 403, f"requests of pages from '{_shown(origin)}' are refused"
        return None

    def _check_token(self, headers: Headers, method: str) -> tuple[int, str] | None:
        assert self._token is not None
        given = headers.get("authorization")
        if given is not None:
            scheme, _, token = given.partition(" ")
            right = scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token)
            return None if right else (401, _REFUSED)
        cookies = [unquote(one).encode() for one in _cookies(headers, _cookie_name(headers))]
        if not any(hmac.compare_digest(one, self._token) for one in cookies):
            return 401, _REFUSED
        if method not in _SAFE and headers.get(_CSRF_HEADER) != _CSRF_VALUE:
            return (
                403,
                f"a request with a cookie that changes something needs the header X-Requested-With: {_CSRF_VALUE}",
            )
        return None

    async def _login(self, scope: Scope, headers: Headers, send: Send) -> None:
        """Give the cookie to who knows the token; nothing else changes."""
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["method"] not in {"GET", "HEAD"}:
            await _answer(
                send, 405, msgspec.json.encode({"errors": ["Method Not Allowed"]}), [(b"allow", b"GET, HEAD")]
            )
            return
        if self._token is not None and not hmac.compare_digest(token.encode(), self._token):
            await _answer(send, 401, msgspec.json.encode({"errors": [f"the token is wrong: {_REFUSED}"]}))
            return
        found = [(b"location", b"ui/")]  # relative: a proxy may add a path
        if self._token is not None:
            cookie = f"{_cookie_name(headers)}={quote(self._token, safe='')}; Path=/; HttpOnly; SameSite=Strict"
            found.append((b"set-cookie", (cookie + "; Secure" * self._secure).encode()))
        await _answer(send, 303, b"", found)


def _announced(headers: Headers) -> int:
    length = headers.get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _bounded(receive: Receive) -> Receive:
    """The parts of a body as they come; 413 when they are too many, for a client that does not announce their size."""
    taken = 0

    async def receive_some() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > _LARGEST_BODY:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return receive_some


def _name_of(host: str) -> str:
    """Return the host without its port; an IPv6 address keeps its brackets.

    >>> _name_of("[::1]:8081"), _name_of("localhost:8081")
    ('[::1]', 'localhost')
    """
    name = host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def urlsplit_host(origin: str) -> str | None:
    """Host and port of an origin, as the Host header has them; None for `null` and what is no address."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _cookie_name(headers: Headers) -> str:
    """Cookies are shared by all ports of a host, and two drivers must not log each other out."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"headrace-token-{port}" if port.isascii() and port.isdigit() else "headrace-token"


def _cookies(headers: Headers, name: str) -> list[str]:
    """The values of a cookie. Other programs on this host may have set anything, even one of the same name for another path."""
    parts = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
    return [value for found, _, value in parts if found == name]


def _is_browser(headers: Headers, method: str) -> bool:
    """Return True if a browser asks for a page; scripts of a page ask for JSON."""
    return method == "GET" and "text/html" in headers.get("accept", "")


_SIGN_IN = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headrace</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"></head>
<body><main><h1>The driver asks for its token</h1>
<p>Open the address that <code>headrace dashboard</code> prints to the user who runs the driver, which carries the token; or run
<code>headrace token</code> as that user, and put in here what it prints.</p>
<form action="LOGIN" method="get"><label>Token <input name="token" type="password" autocomplete="off" required autofocus></label>
<button>Sign in</button></form></main></body></html>"""


async def _ask_for_token(send: Send, path: str) -> None:
    """Send a page instead of JSON; it holds nothing of the request or of the driver."""
    login = "../" * max(0, path.count("/") - 1) + "login"  # relative: a proxy may add a path
    policy = STRICT_HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'")
    headers = [(b"content-security-policy", policy.encode())]
    await _answer(send, 401, _SIGN_IN.replace("LOGIN", login).encode(), headers, kind=b"text/html; charset=utf-8")


def _shown(text: str) -> str:
    return text[:100]


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    headers: Iterable[tuple[bytes, bytes]] = (),
    kind: bytes = b"application/json",
) -> None:
    start = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
