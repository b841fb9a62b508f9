"""The typed messages between the driver and its subtasks."""

from __future__ import annotations

import msgspec

__all__ = [
    "Accepted",
    "Cancel",
    "Confirm",
    "Failed",
    "Finished",
    "FromDriver",
    "FromWorker",
    "Metrics",
    "Output",
    "Ping",
    "Register",
    "Running",
    "decode_from_driver",
    "decode_from_worker",
    "encode",
]


class Register(msgspec.Struct, tag=True, frozen=True):
    """First message of a worker: who it is, and for which attempt it runs."""

    level: int
    index: int
    attempt: int
    host: str
    pid: int


class Running(msgspec.Struct, tag=True, frozen=True):
    """The subtask has opened its operators and takes records."""


class Metrics(msgspec.Struct, tag=True, frozen=True):
    """Counters of a subtask since its start, sent once a second."""

    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    busy_ms: int
    back_pressured_ms: int
    idle_ms: int
    queued_bytes: int
    resident_bytes: int


class Output(msgspec.Struct, tag=True, frozen=True):
    """Printed lines or collected records for the driver; confirmed, so that a worker has only so many under way."""

    channel: str  # "" = printed lines
    payload: bytes
    records: int


class Finished(msgspec.Struct, tag=True, frozen=True):
    """The subtask ended well; sent after its last metrics."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The subtask failed: the operator, the user's line, the key, and the trace."""

    message: str
    traceback: str
    operator: str = ""
    user_line: str = ""
    key: str = ""
    kind: str = "user"  # user | runtime | lost


class Accepted(msgspec.Struct, tag=True, frozen=True):
    """The driver knows the worker."""


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """Stop at once; the worker's attempt is over."""

    reason: str


class Confirm(msgspec.Struct, tag=True, frozen=True):
    """So many outputs were taken."""

    outputs: int


class Ping(msgspec.Struct, tag=True, frozen=True):
    """The driver lives; the worker answers nothing, its metrics show that it lives too."""


FromWorker = Register | Running | Metrics | Output | Finished | Failed
FromDriver = Accepted | Cancel | Confirm | Ping

_encoder = msgspec.msgpack.Encoder()
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_from_driver: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)


def encode(message: FromWorker | FromDriver) -> bytes:
    """A message as bytes.

    >>> decode_from_driver(encode(Ping()))
    Ping()
    """
    return _encoder.encode(message)


def decode_from_worker(data: bytes) -> FromWorker:
    """A message of a worker; msgspec.DecodeError if it is none."""
    return _from_worker.decode(data)


def decode_from_driver(data: bytes) -> FromDriver:
    """A message of the driver; msgspec.DecodeError if it is none."""
    return _from_driver.decode(data)
