"""`docs/reference/command_line.md` and `settings.md`: all options, out of the `prorl` command."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prorl_service.cli.main import app

TITLES = {"Parameters": "General"}
WRAPPED = re.compile(r"\n {8}(?=\S)")
CONTENTS = re.compile(r"## Table of Contents\n.*?(?=\*\*)", re.DOTALL)
ITALIC_NOTE = re.compile(r" \*\[(choices|default): (.*?)\]\*")
CONFIG = re.compile(r"^\* `--config PATH`.*\n", re.MULTILINE)
OPTION = re.compile(r"^\* `--([\w-]+)(?:[^`]*?)(?: ([A-Z]+(?:\.\.\.)?))?`: (.*)$")
EMPTY_GROUP = re.compile(r"\*\*Parameters\*\*:\n\n(?=\n|##|\*\*|\Z)")

INTRODUCTION = """\
# Command line

Every command with its options, as `prorl COMMAND --help` shows them. Each command also takes
`--config FILE`, a YAML file with options. [Settings](settings.md) lists the environment variables.
"""
SETTINGS = """\
# Settings

Every option of the service can be set in three places. The command line comes first, then the
environment variable, then the key in the YAML file of `--config FILE`. An option that can be
repeated is a list in the file.

<!-- tested: tests/docs/test_printed_examples.py -->
```yaml
# prorl.yaml: prorl serve --config prorl.yaml
backend: [http://localhost:8000]
run_workers: 128
```
"""


@dataclass(frozen=True, slots=True)
class Option:
    group: str
    name: str
    kind: str
    help: str


def command_line() -> str:
    commands = CONTENTS.sub("", _generated()).partition("# prorl\n")[2]
    text = EMPTY_GROUP.sub("", CONFIG.sub("", commands))
    return f"{INTRODUCTION}{text.rstrip()}\n"


def settings() -> str:
    parts = [SETTINGS]
    for command in ("serve", "front"):
        parts.append(f"\n## prorl {command}\n")
        group = ""
        for option in _options(command):
            if option.group != group:
                group = option.group
                parts += [
                    f"\n### {command}: {TITLES.get(group, group)}\n",
                    "| option | variable | |",
                    "|---|---|---|",
                ]
            variable = f"PRORL_{command}_{option.name}".upper().replace("-", "_")
            kind = f" {option.kind}" if option.kind else ""
            parts.append(f"| `--{option.name}{kind}` | `{variable}` | {option.help} |")
    return "\n".join(parts) + "\n"


def _generated() -> str:
    """Returns what cyclopts writes, without lines that its source wrapped."""
    with _as_prorl():
        text = app.generate_docs(output_format="markdown")
    text = ITALIC_NOTE.sub(r" (\1: \2)", WRAPPED.sub(" ", text))
    text = text.replace("```console\nprorl", "```\nprorl")
    return text.replace("## prorl --install-completion", "## Shell completion").replace(
        "#prorl-install-completion", "#shell-completion"
    )


@contextmanager
def _as_prorl() -> Iterator[None]:
    """Has cyclopts take this process for `prorl`: it reads the command's name from them."""
    given, sys.argv = sys.argv, ["prorl"]
    try:
        yield
    finally:
        sys.argv = given


def _options(command: str) -> Iterator[Option]:
    section = re.split(r"^## ", _generated(), flags=re.MULTILINE)
    [text] = [one for one in section if one.startswith(f"prorl {command}\n")]
    group = ""
    for line in text.splitlines():
        if line.startswith("**"):
            group = line.strip("*:")
        elif (found := OPTION.match(line)) is not None and found[1] != "config":
            yield Option(group, found[1], found[2] or "", found[3].replace("|", "\\|"))
