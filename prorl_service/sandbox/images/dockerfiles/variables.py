"""Variables of a Dockerfile: what ARG and ENV give to each instruction. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prorl_service.sandbox.images.dockerfiles.syntax import Dockerfile, Instruction
from prorl_service.sandbox.images.oci_layout import PLATFORM

Variables = Mapping[str, str]

_VARIABLE = re.compile(r"\\(.)|\$(\w+)|\$\{(\w+)(?:(:?[-+?])([^}]*))?\}", re.DOTALL)
_QUOTED = re.compile(r"\"((?:\\.|[^\"])*)\"|'([^']*)'")
SHELL = ("/bin/sh", "-c")
BUILT_IN = {
    f"{whose}{name}": value
    for whose in ("BUILD", "TARGET")
    for name, value in (
        ("PLATFORM", PLATFORM),
        ("OS", "linux"),
        ("ARCH", PLATFORM.removeprefix("linux/")),
    )
}


@dataclass(slots=True)
class BuildStage:
    """State of a stage before one of its instructions."""

    number: int
    base: str
    """Image or earlier stage that it begins with."""
    name: str | None
    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    shell: tuple[str, ...] = SHELL

    @property
    def variables(self) -> Variables:
        return {**self.arguments, **self.environment}


def expand(text: str, variables: Variables) -> str:
    """Replaces `$NAME`, `${NAME}` and `${NAME:-word}`. An unknown variable is empty."""

    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[1] if match[1] in "$\\" else match[0]
        found = variables.get(match[2] or match[3])
        operator = match[4] or ""
        is_set = bool(found) if operator.startswith(":") else found is not None
        if operator.endswith("-"):
            return (found or "") if is_set else expand(match[5], variables)
        if operator.endswith("+"):
            return expand(match[5], variables) if is_set else ""
        return found or ""

    return _VARIABLE.sub(value, text)


def walk(
    dockerfile: Dockerfile, environment_of: Callable[[str], Variables] = lambda _: {}
) -> Iterator[tuple[Instruction, BuildStage | None]]:
    """Yields each instruction with the stage before it; None for those before the first FROM.

    The stage of a FROM is the one that it begins. `environment_of` gives the variables of an image.
    """
    globals_: dict[str, str] = dict(BUILT_IN)
    stages: list[BuildStage] = []
    for instruction in dockerfile.instructions:
        if instruction.name == "FROM":
            stages.append(_begin(instruction, globals_, stages, environment_of))
            yield instruction, stages[-1]
            continue
        if not stages:
            yield instruction, None
            if instruction.name == "ARG":
                globals_ |= _pairs(instruction, globals_)
            continue
        yield instruction, stages[-1]
        _apply(instruction, stages[-1], globals_)


def last_stage(dockerfile: Dockerfile, environment_of: Callable[[str], Variables]) -> BuildStage:
    """Returns the state after the last instruction."""
    stages = [stage for _, stage in walk(dockerfile, environment_of) if stage]
    return stages[-1]


def _begin(
    instruction: Instruction,
    globals_: Variables,
    stages: list[BuildStage],
    environment_of: Callable[[str], Variables],
) -> BuildStage:
    words = instruction.words()
    base = evaluate(words[0], globals_) if words else ""
    name = words[2].lower() if len(words) == 3 else None
    stage = BuildStage(len(stages), base, name)
    parent = next((one for one in reversed(stages) if one.name == base.lower()), None)
    if parent is None:
        stage.environment = dict(environment_of(base))
    else:
        stage.environment = dict(parent.environment)
        stage.workdir, stage.user, stage.shell = parent.workdir, parent.user, parent.shell
    return stage


def _apply(instruction: Instruction, stage: BuildStage, globals_: Variables) -> None:
    match instruction.name:
        case "ARG":
            given = {word.partition("=")[0] for word in instruction.words() if "=" in word}
            for name, value in _pairs(instruction, stage.variables).items():
                stage.arguments[name] = value if name in given else globals_.get(name, "")
        case "ENV":
            stage.environment |= _pairs(instruction, stage.variables)
        case "WORKDIR":
            path = evaluate(instruction.rest, stage.variables)
            stage.workdir = path if path.startswith("/") else f"{stage.workdir.rstrip('/')}/{path}"
        case "USER":
            stage.user = evaluate(instruction.rest, stage.variables)
        case "SHELL":
            stage.shell = tuple(instruction.words())


def _pairs(instruction: Instruction, variables: Variables) -> dict[str, str]:
    """Returns the names and values of an ARG or ENV; also of the old `ENV NAME VALUE`."""
    words = instruction.words()
    if words and "=" not in words[0] and instruction.name == "ENV":
        name, _, value = instruction.rest.partition(" ")
        return {name: evaluate(value.strip(), variables)}
    pairs = (word.partition("=") for word in words)
    return {name: evaluate(value, variables) for name, _, value in pairs}


def unquoted(word: str) -> str:
    return _QUOTED.sub(lambda match: match[1] or match[2] or "", word)


def evaluate(word: str, variables: Variables) -> str:
    """Returns a word without its quotes, and with variables replaced outside of single quotes."""
    parts = []
    end = 0
    for match in _QUOTED.finditer(word):
        parts.append(expand(word[end : match.start()], variables))
        parts.append(expand(match[1], variables) if match[1] is not None else match[2] or "")
        end = match.end()
    return "".join([*parts, expand(word[end:], variables)])
