"""Patches as text: the diff of a file's versions, the reverse of a patch. Pure; applies nothing."""

import difflib
import re
from collections.abc import Iterator

NO_NEWLINE = "\\ No newline at end of file\n"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_HUNK = re.compile(r"@@ -(\d+(?:,(\d+))?) \+(\d+(?:,(\d+))?) (@@.*\n?)")
_SWAPPED = (
    (re.compile(r"(diff --git) a/(.+) b/(.+)(\n)"), r"\1 a/\3 b/\2\4"),
    (re.compile(r"(index )(\w+)(\.\.)(\w+)(.*\n)"), r"\1\4\3\2\5"),
)
_RENAMED = {
    "old mode ": "new mode ",
    "rename from ": "rename to ",
    "deleted file ": "new file ",
}
_OPPOSITE = _RENAMED | {new: old for old, new in _RENAMED.items()}


def file_diff(path: str, old: str | None, new: str | None) -> str:
    """Returns a git diff from `old` to `new`, where None is a missing file; "" if both are
    equal."""
    if old == new:
        return ""
    head = f"diff --git a/{path} b/{path}\n"
    if old is None or new is None:
        head += f"{'new' if old is None else 'deleted'} file mode 100644\n"
    before = f"a/{path}" if old is not None else "/dev/null"
    after = f"b/{path}" if new is not None else "/dev/null"
    lines = difflib.unified_diff(_LINE.findall(old or ""), _LINE.findall(new or ""), before, after)
    return head + "".join(
        line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in lines
    )


def reversed_patch(patch: str) -> str:
    """Returns the git diff that undoes `patch`. Raises `ValueError` for binary changes and
    copies."""
    if re.search(r"^(GIT binary patch|Binary files |copy from )", patch, re.MULTILINE):
        raise ValueError("binary changes and copies cannot be reversed")
    return "".join(_reversed_lines(_LINE.findall(patch)))


def _reversed_lines(lines: list[str]) -> Iterator[str]:
    old_left = new_left = 0  # lines of the hunk that are still to come
    before = ""
    for line in lines:
        if old_left or new_left or line.startswith("\\"):
            old_left -= line[0] in " -\n"
            new_left -= line[0] in " +\n"
            yield {"+": "-", "-": "+"}.get(line[0], line[0]) + line[1:]
        elif hunk := _HUNK.fullmatch(line):
            old_left, new_left = int(hunk[2] or 1), int(hunk[4] or 1)
            yield f"@@ -{hunk[3]} +{hunk[1]} {hunk[5]}"
        elif line.startswith("--- "):
            before = line[4:]
        elif line.startswith("+++ "):
            yield f"--- {re.sub('^b/', 'a/', line[4:])}"
            yield f"+++ {re.sub('^a/', 'b/', before)}"
        else:
            yield _reversed_head(line)


def _reversed_head(line: str) -> str:
    for pattern, replacement in _SWAPPED:
        if pattern.fullmatch(line):
            return pattern.sub(replacement, line)
    for start, opposite in _OPPOSITE.items():
        if line.startswith(start):
            return opposite + line[len(start) :]
    return line
