"""Text of models, tools and tasks, made fit for attributes of spans.

Markup stays as it is, since viewers of spans show text. Control characters and changes of text
direction, which a terminal or a page would obey instead of showing, are escaped.
"""

import re

MAX_CONTENT = 16_384
"""Most characters of a message, call or result."""
MAX_LINE = 1_000
"""Most characters of an error's message."""

_ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(text: str, limit: int = MAX_CONTENT) -> str:
    """Returns the first `limit` characters, with control characters escaped, such as `\\x1b`."""
    kept = text[:limit]
    left_out = len(text) - len(kept)
    clean = _ACTS.sub(lambda found: found[0].encode("unicode_escape").decode(), kept)
    return clean + (f"… [{left_out} characters left out]" if left_out else "")
