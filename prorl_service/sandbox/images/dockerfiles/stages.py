"""The images that a Dockerfile begins with and copies from, and what no builder may get.

Builders name other mistakes themselves, with their step. What they would do silently otherwise than
Docker is refused here, before anything is built.
"""

import re

from prorl_service.errors import TaskError
from prorl_service.sandbox.images.dockerfiles.syntax import Dockerfile, Instruction
from prorl_service.sandbox.images.dockerfiles.variables import (
    BUILT_IN,
    BuildStage,
    evaluate,
    expand,
    walk,
)
from prorl_service.sandbox.images.oci_layout import PLATFORM
from prorl_service.sandbox.images.references import LocalReference, RegistryReference, parse

SCRATCH = "scratch"
_NAME = re.compile(r"[a-z][a-z0-9_.-]*")


def images(dockerfile: Dockerfile) -> dict[str, Instruction]:
    """Returns the images that stages begin with or copy from, and who names each first.

    Raises `TaskError` for the first mistake.
    """
    found: dict[str, Instruction] = {}
    stages: list[BuildStage] = []
    for instruction, stage in walk(dockerfile):
        why = _mistake(instruction, stage)
        for name in () if why or stage is None else _named(instruction, stage):
            if name != SCRATCH and not _is_stage(name, stages):
                why = why or _bad_image(name)
                found.setdefault(name, instruction)
        if why is not None:
            raise dockerfile.error(instruction, why)
        if stage is not None and stage not in stages:
            stages.append(stage)
    if not stages:
        raise TaskError(f"{dockerfile.shown}: it has no FROM")
    return found


def _named(instruction: Instruction, stage: BuildStage) -> list[str]:
    """Returns the stages and images that an instruction reads."""
    match instruction.name:
        case "FROM":
            return [stage.base]
        case "COPY" if (name := instruction.flag("from")) is not None:
            return [evaluate(name, stage.variables)]
        case "RUN":
            mounts = (flag for flag in instruction.flags if flag.startswith("--mount="))
            found = (re.search(r"[=,]from=([^,]*)", mount) for mount in mounts)
            return [evaluate(match[1], stage.variables) for match in found if match]
    return []


def _is_stage(name: str, stages: list[BuildStage]) -> bool:
    by_number = int(name) if name.isdecimal() else -1
    return any(one.name == name.lower() or one.number == by_number for one in stages)


def _mistake(instruction: Instruction, stage: BuildStage | None) -> str | None:
    match instruction.name:
        case "ONBUILD":
            return "ONBUILD is not supported: it acts on images built from this one"
        case name if stage is None and name not in ("ARG", "FROM"):
            return "only ARG may stand before the first FROM"
        case "FROM" if stage is not None:
            return _bad_from(instruction, stage)
        case "RUN":
            secret = re.search(r"--mount=\S*\btype=(secret|ssh)\b", " ".join(instruction.flags))
            return f"builds have no {secret[1]} to mount" if secret else None
    return None


def _bad_from(instruction: Instruction, stage: BuildStage) -> str | None:
    words = instruction.words()
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        return "it must be FROM IMAGE or FROM IMAGE AS NAME"
    if stage.name is not None and not _NAME.fullmatch(stage.name):
        return f"{words[2]} is no name of a stage"
    if not stage.base:
        return "it is empty once its variables are replaced: give its ARG a default before FROM"
    if expand(instruction.flag("platform") or PLATFORM, BUILT_IN) != PLATFORM:
        return f"this machine builds for {PLATFORM} only"
    return None


def _bad_image(name: str) -> str | None:
    """Returns why `name` is no image, if it is none."""
    try:
        reference = parse(name)
    except TaskError as error:
        return str(error)
    if isinstance(reference, RegistryReference | LocalReference):
        return None
    return "it must name an image of a registry, local:NAME or a stage"
