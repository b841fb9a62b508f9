"""The line of the user's program that led to a call of the API."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["call_site"]

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"


def call_site() -> str:
    """Return file:line of the user's call that led here."""
    frame = sys._getframe(1)  # the cheapest way to the caller's line
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
