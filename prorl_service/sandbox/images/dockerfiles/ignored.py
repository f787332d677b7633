"""Which files of a build context .dockerignore leaves out. Pure."""

import re
from collections.abc import Callable

NAME = ".dockerignore"


def ignored_by(text: str) -> Callable[[str], bool]:
    """Returns whether a path, relative to the context, is left out: the last pattern decides.

    What a directory's pattern leaves out are its files, too. The Dockerfile and .dockerignore stay.
    """
    rules = [_rule(line.strip()) for line in text.splitlines() if _counts(line.strip())]

    def is_ignored(path: str) -> bool:
        ignored = False
        for negated, pattern in rules:
            if pattern.fullmatch(path):
                ignored = not negated
        return ignored and path not in (NAME, "Dockerfile")

    return is_ignored


def pattern_of(glob: str, *, also_below: bool = False) -> re.Pattern[str]:
    """Returns a glob of Docker's as an expression: `*` and `?` stop at slashes, `**` does not."""
    parts = re.split(r"(\*\*/?|\*|\?|\[[^\]]*\]|\\.)", glob)
    expression = "".join(_expression(part) for part in parts)
    return re.compile(expression + ("(?:/.*)?" if also_below else ""), re.DOTALL)


def _counts(line: str) -> bool:
    return bool(line) and not line.startswith("#")


def _rule(line: str) -> tuple[bool, re.Pattern[str]]:
    negated = line.startswith("!")
    glob = re.sub(r"/+", "/", line.removeprefix("!").strip()).strip("/").removeprefix("./")
    return negated, pattern_of(glob, also_below=glob != ".")


def _expression(part: str) -> str:
    match part:
        case "**/":
            return "(?:.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if part.startswith("[") and part.endswith("]"):
        return part.replace("[!", "[^", 1)
    return re.escape(part.removeprefix("\\") if len(part) == 2 else part)
