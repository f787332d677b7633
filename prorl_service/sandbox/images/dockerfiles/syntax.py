"""Dockerfiles as data: instructions with their lines. Pure; knows no context and builds nothing.

Reads what BuildKit reads: parser directives, continued lines with comments between them, flags,
here-documents. `checks` says whether the instructions make sense.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from prorl_service.errors import TaskError

# fmt: off
INSTRUCTIONS = frozenset((
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
    "MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
))
# fmt: on
WITH_HEREDOCS = ("ADD", "COPY", "RUN")
SHOWN_CHARACTERS = 120

_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][\w-]*)\s*=\s*(.+?)\s*")
_DIRECTIVES = ("escape", "syntax", "check")
_HEREDOC = re.compile(r"\d*<<(-?)(['\"]?)([^\s<'\"]+)\2")
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\]|["'\\])+""", re.DOTALL)
_FLAG = re.compile(r"(--[a-z][a-z-]*(?:=\S*)?)(?:\s+|$)")


@dataclass(frozen=True, slots=True)
class Heredoc:
    name: str
    content: str
    expands: bool
    """True if variables in it are replaced: its name was not quoted."""


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    """First of its lines, from 1."""
    name: str
    """Name in capitals."""
    flags: tuple[str, ...]
    """Flags such as `--from=build`."""
    rest: str
    """Text after the flags, with continued lines joined."""
    heredocs: tuple[Heredoc, ...] = ()

    def __str__(self) -> str:
        text = " ".join((self.name, *self.flags, self.rest))
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} ..."

    def flag(self, name: str) -> str | None:
        """Returns the value of `--name=VALUE`, empty for a bare `--name`; None without it."""
        for flag in self.flags:
            head, _, value = flag.partition("=")
            if head == f"--{name}":
                return value.strip("\"'")
        return None

    def words(self) -> list[str]:
        """Returns the arguments, of a JSON list or separated by blanks, with their quotes."""
        listed = json_list(self.rest)
        return _words(self.rest) if listed is None else listed


@dataclass(frozen=True, slots=True)
class Dockerfile:
    shown: str
    """Name that users know it by."""
    escape: str
    instructions: tuple[Instruction, ...]

    def error(self, instruction: Instruction, why: str, *, hint: str = "") -> TaskError:
        """Returns the error of an instruction: its line, its text and `why`."""
        return TaskError(f"{self.shown}, line {instruction.line}: {instruction}: {why}", hint=hint)


def parse(text: str, shown: str = "Dockerfile") -> Dockerfile:
    """Raises `TaskError` with the line of what is no instruction."""
    lines = text.removeprefix("\ufeff").splitlines()
    escape = _escape(lines, shown)
    found = tuple(_instructions(lines, escape, shown))
    return Dockerfile(shown, escape, found)


def json_list(text: str) -> list[str] | None:
    """Returns the words of an exec form; None for any other text, which is a shell's."""
    try:
        listed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    is_list = isinstance(listed, list) and all(isinstance(word, str) for word in listed)
    return listed if is_list else None


def _escape(lines: list[str], shown: str) -> str:
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.fullmatch(line)
        if match is None or match[1].lower() not in _DIRECTIVES:
            break
        if match[1].lower() == "escape":
            if match[2] not in ("\\", "`"):
                raise TaskError(f"{shown}, line {number}: escape must be \\ or `, not {match[2]}")
            return match[2]
    return "\\"


def _instructions(lines: list[str], escape: str, shown: str) -> Iterator[Instruction]:
    continued = re.compile(rf"(?:^|(?<=[^{re.escape(escape)}])){re.escape(escape)}[ \t]*$")
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        if _is_comment(line) or not line.strip():
            continue
        text = line.strip()
        while continued.search(text):
            text = continued.sub("", text)
            following = next((one for _, one in numbered if not _skipped(one)), None)
            if following is None:
                break
            text += following.rstrip()
        name, _, rest = text.partition(" ") if " " in text else text.partition("\t")
        if name.upper() not in INSTRUCTIONS:
            raise TaskError(f"{shown}, line {number}: unknown instruction {name}{_instead(name)}")
        flags, rest = _flags(name.upper(), rest.strip())
        heredocs = []
        if name.upper() in WITH_HEREDOCS:
            for dash, quote, delimiter in _heredocs_of(rest):
                content = _content(numbered, delimiter, strip_tabs=bool(dash))
                if content is None:
                    raise TaskError(
                        f"{shown}, line {number}: the here-document {delimiter} has no end"
                    )
                heredocs.append(Heredoc(delimiter, content, not quote))
        yield Instruction(number, name.upper(), flags, rest, tuple(heredocs))


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _skipped(line: str) -> bool:
    """Returns whether a line between continued ones counts for nothing."""
    return _is_comment(line) or not line.strip()


def _instead(name: str) -> str:
    close = difflib.get_close_matches(name.upper(), sorted(INSTRUCTIONS), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _flags(name: str, rest: str) -> tuple[tuple[str, ...], str]:
    flags: list[str] = []
    while name not in ("ENV", "LABEL", "ARG") and (match := _FLAG.match(rest)):
        flags.append(match[1])
        rest = rest[match.end() :]
    return tuple(flags), rest


def _heredocs_of(rest: str) -> list[tuple[str, str, str]]:
    """Returns dash, quote and name of each here-document that the words begin."""
    matches = [_HEREDOC.fullmatch(word) for word in _words(rest)]
    return [(match[1], match[2], match[3]) for match in matches if match]


def _words(text: str) -> list[str]:
    """Splits at blanks outside of quotes; a quote without its end counts as any letter."""
    return [match[0] for match in _WORD.finditer(text)]


def _content(
    numbered: Iterator[tuple[int, str]], delimiter: str, *, strip_tabs: bool
) -> str | None:
    lines: list[str] = []
    for _, written in numbered:
        line = written.lstrip("\t") if strip_tabs else written
        if line == delimiter:
            return "".join(f"{one}\n" for one in lines)
        lines.append(line)
    return None
