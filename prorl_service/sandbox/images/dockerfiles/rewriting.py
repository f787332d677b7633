"""A Dockerfile as older builders understand it, with the same effect.

Names of images are replaced by those under which a builder has them. Here-documents, which buildah
knows since 1.33, become exec forms of RUN, and files for COPY. Pure, except for those files.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from prorl_service.sandbox.images.dockerfiles.syntax import (
    Dockerfile,
    Heredoc,
    Instruction,
    json_list,
)
from prorl_service.sandbox.images.dockerfiles.variables import (
    SHELL,
    BuildStage,
    Variables,
    evaluate,
    expand,
    unquoted,
    walk,
)

HEREDOCS = "prorl-here-documents"
"""Name of the build context with the files of here-documents."""

_FROM = re.compile(r"((?:^--|[=,])from=)([^,]*)")
_WITHOUT_EFFECT = re.compile(
    r"--link(=.*)?|--platform=.*|--network=(default|host|none)|--security=sandbox"
)
"""Flags about how layers are stored, or that say what is so anyway."""


def rewrite(
    dockerfile: Dockerfile,
    names: Mapping[str, str],
    environment_of: Callable[[str], Variables],
    heredocs: Path,
) -> str:
    """Returns the text, one line an instruction. Writes files into the directory `heredocs`.

    `names` are the builder's names of images. Each instruction stays one, so that a builder's
    numbers of steps are the ones here.
    """
    lines = []
    for instruction, stage in walk(dockerfile, environment_of):
        text = instruction.rest
        if instruction.name == "FROM" and stage is not None and stage.base in names:
            text = " ".join([names[stage.base], *instruction.words()[1:]])
        elif instruction.heredocs and stage is not None:
            text = _without_heredocs(instruction, stage, heredocs)
        elif instruction.name == "RUN" and stage is not None and stage.shell != SHELL:
            # Images in OCI's format have no shell of their own, so that buildah ignores SHELL.
            text = text if json_list(text) else json.dumps([*stage.shell, text])
        flags = _flags(instruction, names, stage)
        lines.append(" ".join([instruction.name, *flags, text]))
    if dockerfile.instructions[-1].name in ("FROM", "ARG"):
        lines.append("LABEL prorl=")  # buildah commits no stage that changes nothing
    escape = [] if dockerfile.escape == "\\" else [f"# escape={dockerfile.escape}"]
    return "\n".join([*escape, *lines, ""])


def _flags(
    instruction: Instruction, names: Mapping[str, str], stage: BuildStage | None
) -> list[str]:
    flags = [one for one in instruction.flags if not _WITHOUT_EFFECT.fullmatch(one)]
    if stage is not None:
        variables = stage.variables

        def ours(match: re.Match[str]) -> str:
            return match[1] + names.get(evaluate(match[2], variables), match[2])

        flags = [_FROM.sub(ours, one) for one in flags]
    if instruction.name in ("COPY", "ADD") and instruction.heredocs:
        flags.insert(0, f"--from={HEREDOCS}")
    return flags


def _without_heredocs(instruction: Instruction, stage: BuildStage, heredocs: Path) -> str:
    if instruction.name == "RUN":
        return json.dumps(_command(instruction, stage))
    directory = heredocs / str(instruction.line)
    directory.mkdir(parents=True)
    words = []
    for word in instruction.words():
        document = _begun_by(word, instruction.heredocs)
        if document is None:
            words.append(word)
            continue
        content = document.content
        if document.expands:
            content = expand(content, stage.variables)
        (directory / document.name).write_text(content)
        (directory / document.name).chmod(0o644)
        words.append(f"{instruction.line}/{document.name}")
    return " ".join(words)


def _command(instruction: Instruction, stage: BuildStage) -> list[str]:
    """Returns what BuildKit runs: the document itself if there is only that, else all of it."""
    documents = instruction.heredocs
    if len(instruction.words()) > 1:
        whole = [f"{document.content}{document.name}" for document in documents]
        return [*stage.shell, "\n".join([instruction.rest, *whole])]
    script = documents[0].content
    if not script.startswith("#!"):
        return [*stage.shell, script]
    # It has an interpreter of its own, which gets a file.
    write = f'f=$(mktemp) && printf %s {shlex.quote(script)} >"$f" && chmod +x "$f"'
    return ["/bin/sh", "-c", f'{write} && "$f"; s=$?; rm -f "$f"; exit $s']


def _begun_by(word: str, heredocs: tuple[Heredoc, ...]) -> Heredoc | None:
    name = unquoted(word).replace("<<-", "<<")
    return next((one for one in heredocs if name == f"<<{one.name}"), None)
