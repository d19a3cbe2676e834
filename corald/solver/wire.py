"""What passes between the daemon and its solver process: frames of JSON, each with its length.

A frame is four bytes (big endian) and that many bytes of JSON.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from pydantic import TypeAdapter, ValidationError

from corald.errors import SolverError
from corald.model.problem import Allocation, Problem, SolveReport

T = TypeVar("T")

LENGTH = struct.Struct(">I")
MOST_BYTES = 1 << 28
"""A longer frame is garbage."""


@dataclass(frozen=True, slots=True)
class Request:
    """Solve this, or with no problem: stop solving `number`."""

    number: int
    deadline_seconds: float = 0.0
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of request `number`: an allocation with its report, or an error."""

    number: int
    allocation: Allocation | None = None
    report: SolveReport | None = None
    error: str = ""


_REQUEST = TypeAdapter(Request)
_ANSWER = TypeAdapter(Answer)


def encode_request(request: Request) -> bytes:
    """The request as a frame."""
    return _framed(_REQUEST.dump_json(request))


def encode_answer(answer: Answer) -> bytes:
    """The answer as a frame."""
    return _framed(_ANSWER.dump_json(answer))


def decode_request(body: bytes) -> Request:
    """A frame's body as a request; a SolverError when it is none."""
    return _decoded(_REQUEST, body)


def decode_answer(body: bytes) -> Answer:
    """A frame's body as an answer; a SolverError when it is none."""
    return _decoded(_ANSWER, body)


def body_length(prefix: bytes) -> int:
    """The length that a frame announces; a SolverError when it cannot be one."""
    length = int(LENGTH.unpack(prefix)[0])
    if length > MOST_BYTES:
        raise SolverError(f"a frame of {length} bytes is garbage")
    return length


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame's body; None at the end of the stream."""
    prefix = stream.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return None
    body = stream.read(body_length(prefix))
    return body if len(body) == body_length(prefix) else None


def _framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def _decoded(adapter: TypeAdapter[T], body: bytes) -> T:
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise SolverError(f"a frame is garbage: {first['msg']} at {first['loc']}") from error
