"""Lines of text as bytes, for the editor: found, shown, replaced and inserted. Opens no files.

A line may end with `\\n` or `\\r\\n`, and the last one may have no end. A search matches both, and
new text takes the line end of its place.
"""

import re
from itertools import islice
from typing import Any

CONTEXT = 4
"""Lines shown around an edit."""
_MAX_PLACES = 20


class Problem(Exception):
    """A request of the model that cannot be done; the text is for the model."""


def lines_of(content: bytes) -> list[bytes]:
    """Returns the lines without their ends."""
    lines = content.replace(b"\r\n", b"\n").split(b"\n")
    return lines if lines[-1] else lines[:-1]


def numbered(what: str, lines: list[bytes], first: int, last: int) -> str:
    """Formats lines `first` to `last`, counted from 1."""
    shown = "\n".join(
        f"{number:6}\t{line.decode('utf-8', 'replace')}"
        for number, line in enumerate(lines[first - 1 : last], first)
    )
    return f"Here's the result of running `cat -n` on {what}:\n{shown}\n"


def checked_range(view_range: Any, line_count: int) -> tuple[int, int, str]:
    """Returns the first and last line to show, and a note for the model."""
    if view_range is None:
        return 1, line_count, ""
    if not (isinstance(view_range, list) and [*map(type, view_range)] == [int, int]):
        raise Problem("Invalid `view_range`: it should be a list of two integers.")
    first, last = view_range
    if not 1 <= first <= line_count:
        raise Problem(
            f"Invalid `view_range`: {view_range}. Its first element {first} should be within the"
            f" lines of the file: [1, {line_count}]."
        )
    if last == -1:
        return first, line_count, ""
    if last < first:
        raise Problem(
            f"Invalid `view_range`: {view_range}. Its second element {last} should be -1 or not"
            f" less than the first, {first}."
        )
    if last > line_count:
        return first, line_count, f"NOTE: the file has only {line_count} lines.\n"
    return first, last, ""


def replace(path: str, content: bytes, old: bytes, new: bytes) -> tuple[bytes, int, int]:
    """Returns the new content, and the first and last line of what is new in it."""
    old, new = _unix(old), _unix(new)
    if not old:
        raise Problem("No replacement was performed. `old_str` must not be empty.")
    if old == new:
        raise Problem("No replacement was performed. `new_str` and `old_str` must be different.")
    pattern = b"\r?\n".join(map(re.escape, old.split(b"\n")))
    places = list(islice(re.finditer(pattern, content), _MAX_PLACES))
    if not places:
        raise Problem(_not_found(path, content, old))
    starts = [content.count(b"\n", 0, place.start()) + 1 for place in places]
    if len(places) > 1:
        more = ", maybe more" if len(places) == _MAX_PLACES else ""
        raise Problem(
            f"No replacement was performed. Multiple occurrences of old_str `{_shown(old)}` in"
            f" lines {starts}{more}. Please ensure it is unique."
        )
    start, end = places[0].span()
    put = new.replace(b"\n", _line_end_at(content, start))
    return content[:start] + put + content[end:], starts[0], starts[0] + new.count(b"\n")


def insert(content: bytes, line: Any, new: bytes) -> bytes:
    """Inserts the lines of `new` after `line`, 0 for the start. A last empty line counts too."""
    lines = _split(content)
    if type(line) is not int:
        raise Problem("Parameter `insert_line` is required for command: insert. It is an integer.")
    if not 0 <= line <= len(lines):
        raise Problem(
            f"Invalid `insert_line`: {line}. It should be within the lines of the file:"
            f" [0, {len(lines)}]."
        )
    before, after = b"".join(lines[:line]), b"".join(lines[line:])
    line_end = _line_end_at(content, max(0, len(before) - 1))
    put = _unix(new).replace(b"\n", line_end)
    if before and not before.endswith(b"\n"):
        return before + line_end + put
    return before + put + line_end + after


def _split(content: bytes) -> list[bytes]:
    """Returns the lines with their ends."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _unix(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n")


def _line_end_at(content: bytes, position: int) -> bytes:
    """Returns the end of the line at `position`, or of the line before if that has no end."""
    end = content.find(b"\n", position)
    if end < 0:
        end = content.rfind(b"\n")
    return b"\r\n" if end > 0 and content[end - 1 : end] == b"\r" else b"\n"


def _not_found(path: str, content: bytes, old: bytes) -> str:
    problem = (
        f"No replacement was performed, old_str `{_shown(old)}` did not appear verbatim in {path}."
    )
    lines = lines_of(content)
    wanted = _without_spacing(old.strip().split(b"\n"))
    all_lines = _without_spacing(lines)
    start = all_lines.find(wanted) if wanted else -1
    if start < 0:
        return problem
    first = all_lines.count(b"\n", 0, start) + 1
    last = first + wanted.count(b"\n")
    shown = numbered(f"lines {first} to {last}", lines, first, last)
    return f"{problem} There is text that differs from it only in whitespace. {shown}"


def _without_spacing(lines: list[bytes]) -> bytes:
    return b"\n".join(b" ".join(line.split()) for line in lines)


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace")
