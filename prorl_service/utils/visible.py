"""Text of models, tools and tasks for terminals: all of it is seen, none of it is obeyed. Pure."""

import re

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but for newline and tab
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff"  # lone surrogates, which no terminal takes
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)


def visible(text: str) -> str:
    """Replaces each character that would move the cursor, turn the direction of text or not be
    seen by an escape such as `\\x1b`. Drops colours; lines end with a newline alone."""
    return _HIDDEN.sub(_escape, _COLOURS.sub("", text.replace("\r\n", "\n")))


def visible_line(text: str, *, limit: int = 200) -> str:
    """Returns `text` on one line of at most `limit` characters."""
    line = visible(text).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
