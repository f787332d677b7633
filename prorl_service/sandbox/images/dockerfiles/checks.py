"""Checks of a Dockerfile before anything is built: the first mistake, with its line.

Knows the context's files, not the images that stages begin with. What only some builders can do is
up to the rungs (`ladder`).
"""

import re
from pathlib import PurePosixPath

from prorl_service.errors import TaskError
from prorl_service.sandbox.images.dockerfiles.context import Context
from prorl_service.sandbox.images.dockerfiles.ignored import pattern_of
from prorl_service.sandbox.images.dockerfiles.syntax import Dockerfile, Instruction, json_list
from prorl_service.sandbox.images.dockerfiles.variables import (
    BUILT_IN,
    PLATFORM,
    Stage,
    evaluate,
    expand,
    unquoted,
    walk,
)
from prorl_service.sandbox.images.references import LocalReference, RegistryReference, parse

SCRATCH = "scratch"
FLAGS = {
    "ADD": {"chown", "chmod", "checksum", "keep-git-dir", "link", "exclude"},
    "COPY": {"from", "chown", "chmod", "link", "parents", "exclude"},
    "FROM": {"platform"},
    "HEALTHCHECK": {"interval", "timeout", "start-period", "start-interval", "retries"},
    "RUN": {"mount", "network", "security"},
}
_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_REMOTE = re.compile(r"(https?|ftp|git)://|git@")


def check(context: Context, *, network: bool) -> None:
    """Raises `TaskError` for the first mistake. `network` is whether commands have one."""
    dockerfile = context.dockerfile
    if not any(one.name == "FROM" for one in dockerfile.instructions):
        raise TaskError(f"{dockerfile.shown}: it has no FROM")
    stages: list[Stage] = []
    for instruction, stage in walk(dockerfile):
        why = _mistake(instruction, stage)
        if why is None and stage is not None:
            why = _mistake_in_stage(instruction, stage, stages, context, network)
        if why is not None:
            raise dockerfile.error(instruction, why)
        if stage is not None and stage not in stages:
            stages.append(stage)


def images(dockerfile: Dockerfile) -> dict[str, Instruction]:
    """Returns the images that stages begin with or copy from, and who names each first."""
    found: dict[str, Instruction] = {}
    stages: list[Stage] = []
    for instruction, stage in walk(dockerfile):
        if stage is None:
            continue
        named = [stage.base] if instruction.name == "FROM" else sources(instruction, stage)
        for name in named:
            if name != SCRATCH and stage_named(name, stages) is None:
                found.setdefault(name, instruction)
        if stage not in stages:
            stages.append(stage)
    return found


def sources(instruction: Instruction, stage: Stage) -> list[str]:
    """Returns the stages and images that a COPY, or mounts of a RUN, read."""
    if instruction.name == "COPY":
        named = [instruction.flag("from")]
    elif instruction.name == "RUN":
        mounts = (flag for flag in instruction.flags if flag.startswith("--mount="))
        found = (re.search(r"[=,]from=([^,]*)", mount) for mount in mounts)
        named = [match[1] for match in found if match]
    else:
        named = []
    return [evaluate(name, stage.variables) for name in named if name is not None]


def stage_named(name: str, stages: list[Stage]) -> Stage | None:
    by_number = int(name) if name.isdecimal() else -1
    return next(
        (one for one in stages if one.name == name.lower() or one.number == by_number), None
    )


def _mistake(instruction: Instruction, stage: Stage | None) -> str | None:
    if instruction.name == "ONBUILD":
        return "ONBUILD is not supported: it acts on images built from this one"
    if stage is None and instruction.name not in ("ARG", "FROM"):
        return "only ARG may stand before the first FROM"
    if not instruction.rest and instruction.name != "CMD":
        return "it has no argument"
    known = FLAGS.get(instruction.name, set())
    for flag in instruction.flags:
        if flag[2:].partition("=")[0] not in known:
            return f"unknown flag {flag}"
    if instruction.name == "SHELL" and not json_list(instruction.rest):
        return 'it must be a JSON list, such as ["/bin/bash", "-c"]'
    return None


def _mistake_in_stage(
    instruction: Instruction, stage: Stage, stages: list[Stage], context: Context, network: bool
) -> str | None:
    match instruction.name:
        case "FROM":
            return _bad_from(instruction, stage, stages)
        case "COPY" | "ADD":
            return _bad_copy(instruction, stage, stages, context, network)
        case "RUN":
            return _bad_mounts(instruction)
        case "WORKDIR" | "USER":
            is_empty = not evaluate(instruction.rest, stage.variables)
            return "it is empty once its variables are replaced" if is_empty else None
    return None


def _bad_from(instruction: Instruction, stage: Stage, stages: list[Stage]) -> str | None:
    words = instruction.words()
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        return "it must be FROM IMAGE or FROM IMAGE AS NAME"
    if stage.name is not None and not _NAME.fullmatch(stage.name):
        return f"{words[2]} is no name of a stage"
    if not stage.base:
        return "it is empty once its variables are replaced: give its ARG a default before FROM"
    if expand(instruction.flag("platform") or PLATFORM, BUILT_IN) != PLATFORM:
        return f"this machine builds for {PLATFORM} only"
    return _bad_image(stage.base, stages)


def _bad_image(name: str, stages: list[Stage]) -> str | None:
    """Returns why `name` is no image, if it is none."""
    if name == SCRATCH or stage_named(name, stages) is not None:
        return None
    try:
        reference = parse(name)
    except TaskError as error:
        return str(error)
    if isinstance(reference, RegistryReference | LocalReference):
        return None
    return "it must name an image of a registry, local:NAME or a stage"


def _bad_copy(
    instruction: Instruction, stage: Stage, stages: list[Stage], context: Context, network: bool
) -> str | None:
    heredocs = {f"<<{one.name}" for one in instruction.heredocs}
    words = [evaluate(word, stage.variables) for word in instruction.words()]
    if len(words) < 2:
        return "it needs a source and a destination"
    if instruction.flag("from") is not None:
        return _bad_image(sources(instruction, stage)[0], stages)
    for source in words[:-1]:
        is_heredoc = unquoted(source).replace("<<-", "<<") in heredocs
        if is_heredoc or not source:
            continue
        if instruction.name == "ADD" and _REMOTE.match(source):
            if not network:
                return f"{source} needs the network, which builds do not have here"
        elif not _is_there(source, context.paths):
            return f"the context has no {source}"
    return None


def _is_there(source: str, paths: frozenset[str]) -> bool:
    path = str(PurePosixPath("/", source)).lstrip("/")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        return False
    if not parts:
        return True
    wanted = pattern_of("/".join(parts))
    return any(wanted.fullmatch(path) for path in paths)


def _bad_mounts(instruction: Instruction) -> str | None:
    for flag in instruction.flags:
        kind = re.search(r"^--mount=.*\btype=(secret|ssh)\b", flag)
        if kind:
            return f"builds have no {kind[1]} to mount"
    network = instruction.flag("network")
    if network not in (None, "default", "host", "none"):
        return f"there is no network {network}"
    return "privileged commands are refused" if instruction.flag("security") == "insecure" else None
