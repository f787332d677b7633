"""Words of models, tools and tasks, made fit for attributes of spans.

They stay text, and their markup as it is: whoever shows spans shows text. What a terminal or a page
would act on instead of showing it, control characters and changes of direction, is spelt out.
"""

import re

MAX_CONTENT = 16_384
"""Characters of one message, call or result."""
MAX_LINE = 1_000
"""Characters of an error's message."""

_ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(text: str, limit: int = MAX_CONTENT) -> str:
    """The first `limit` characters, with what acts on a screen spelt out, such as `\\x1b`."""
    kept = text[:limit]
    left_out = len(text) - len(kept)
    clean = _ACTS.sub(lambda found: found[0].encode("unicode_escape").decode(), kept)
    return clean + (f"… [{left_out} characters left out]" if left_out else "")
