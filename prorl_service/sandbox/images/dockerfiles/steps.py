"""Finds the instruction at which a builder failed, in the builder's messages. Pure."""

import re

from prorl_service.errors import ProRLError, SandboxError
from prorl_service.sandbox.images.apptainer_build import is_network_trouble
from prorl_service.sandbox.images.dockerfiles.syntax import Dockerfile, Instruction

SHOWN_BYTES = 2000
"""Bytes of the end of a command's output that an error shows."""

_STEP = re.compile(r"^(?:\[(\d+)/\d+\] )?STEP (\d+)/\d+: .*\n?", re.MULTILINE)
_ERROR = re.compile(r'^(?:Error|error): (?:building at STEP ".*?": )?', re.MULTILINE | re.DOTALL)
_NOISE = re.compile(
    r"^(?:subprocess exited with status \d+|time=.*level=(?:warning|debug).*)\n?", re.M
)


def step_failed(dockerfile: Dockerfile, messages: str) -> ProRLError | None:
    """Returns the error of the last step of buildah; None if there is none."""
    steps = list(_STEP.finditer(messages))
    if not steps:
        return None
    stage, step = int(steps[-1][1] or 1), int(steps[-1][2])
    instruction = _nth(dockerfile, stage, step)
    if instruction is None:
        return None
    said = _NOISE.sub("", messages[steps[-1].end() :]).strip()
    return failed(dockerfile, instruction, said)


def failed(dockerfile: Dockerfile, instruction: Instruction, said: str) -> ProRLError:
    """Returns the error of an instruction whose command said that."""
    output, _, why = said.rpartition("Error: ")
    why = _ERROR.sub("", f"Error: {why}").strip() if why else ""
    output = output.strip()[-SHOWN_BYTES:]
    error = dockerfile.error(instruction, "\n".join(part for part in (why, output) if part))
    if is_network_trouble(said):
        return SandboxError(error.message, hint="check the network of this host")
    return error


def _nth(dockerfile: Dockerfile, stage: int, step: int) -> Instruction | None:
    """Returns the instruction by its stage and its number there, both from 1."""
    begun = 0
    for index, instruction in enumerate(dockerfile.instructions):
        begun += instruction.name == "FROM"
        if begun == stage:
            wanted = dockerfile.instructions[index : index + step]
            return wanted[-1] if len(wanted) == step else None
    return None
