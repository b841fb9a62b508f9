"""The dashboard: the files in `ui/`, served below /ui/ in the threads of the REST server, in the driver.

Text of records, names and errors reaches the page. The modules never make markup of it, and the headers here would stop
one that did: a browser runs no script but these files, and refuses to turn any text into HTML (trusted types).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # an address may carry a token
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, answered by 304: another version of Headrace is seen at once
}


class Dashboard(StaticFiles):
    """An application to be mounted at /ui."""

    def __init__(self) -> None:
        super().__init__(directory=Path(__file__).parent / "ui", html=True)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Return the answer for one file."""
        answer = super().file_response(*args, **kwargs)
        answer.headers.update(HEADERS)
        return answer
