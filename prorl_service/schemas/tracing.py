"""W3C trace context on the wire: the span that a group of rollouts belongs to.

Knows its form alone: what is traced, and where spans go, is `prorl_service.traces`.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
FORBIDDEN_VERSION = "ff"


def read_traceparent(header: str | None) -> str | None:
    """The header as version 00 writes it; None for one that is to be ignored, as the standard
    says of whatever it does not allow."""
    found = _HEADER.fullmatch((header or "").strip())
    if found is None:
        return None
    version, trace, parent, flags, more = found.groups()
    is_unknown = version == FORBIDDEN_VERSION or (version == "00" and more)
    if is_unknown or not int(trace, 16) or not int(parent, 16):
        return None
    return f"00-{trace}-{parent}-{flags}"


def _checked(text: str) -> str:
    read = read_traceparent(text)
    if read is None:
        raise ValueError("is no traceparent; write it as 00-TRACE-PARENT-FLAGS, in hexadecimal")
    return read


Traceparent = Annotated[
    str,
    AfterValidator(_checked),
    Field(examples=["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]),
]
