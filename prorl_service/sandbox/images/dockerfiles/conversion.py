"""Simple Dockerfiles by spython, which converts them to Apptainer definitions.

For hosts without buildah: one stage, copies of whole files to absolute paths, which come before all
commands, and commands of a shell, which all run as root. What spython would silently do otherwise
than Docker is an obstacle.
"""

import asyncio
import os
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from prorl_service.errors import ProRLError, SandboxError, TaskError
from prorl_service.sandbox.images import apptainer_build
from prorl_service.sandbox.images.dockerfiles.stages import SCRATCH
from prorl_service.sandbox.images.dockerfiles.syntax import Instruction, json_list
from prorl_service.sandbox.images.dockerfiles.variables import last_stage, unquoted
from prorl_service.sandbox.images.dockerfiles.work import BaseImage, DockerfileBuild, failed
from prorl_service.sandbox.images.host_image import make_host_image
from prorl_service.sandbox.images.image_config import ImageConfig

TRIAL_TIMEOUT_S = 60.0
_MARK = "prorl: line"
_MARKED = re.compile(rf"^{_MARK} (\d+)$\n?", re.MULTILINE)
_GLOB = re.compile(r"[*?\[]")
_PLAIN = re.compile(r"(?:\w+=(?:\"[^\"\\]*\"|[\w./:,@%+${}-]*)(?:\s+|$))+")
_WORDS = re.compile(r"[^\s;&|<>()\"'=:]+")
_ENVIRONMENT = re.compile(r"^%environment\n(?:(?!%).*\n)*", re.MULTILINE)
_IGNORED = ("ENTRYPOINT", "CMD", "HEALTHCHECK", "STOPSIGNAL", "EXPOSE", "VOLUME", "MAINTAINER")
"""Instructions about running a container, which sandboxes do their own way."""


class Conversion:
    name = "spython"

    async def trial(self, workspace: Path) -> str | None:
        """Builds a definition with a command on an empty image."""
        empty, definition = workspace / "empty", workspace / "trial.def"
        try:
            await asyncio.to_thread(_import)
            binds = ",".join(await asyncio.to_thread(make_host_image, empty))
            text = "Bootstrap: localimage\nFrom: empty.sif\n\n%post\ntrue\n"
            await asyncio.to_thread(definition.write_text, text)
            await _make(empty, workspace / "empty.sif", ())
            await _make(definition, workspace / "made.sif", ("--bind", binds))
        except ProRLError as error:
            return error.message
        return None

    def obstacle(self, build: DockerfileBuild) -> TaskError | None:
        instructions = build.context.dockerfile.instructions
        stages = [one for one in instructions if one.name == "FROM"]
        if len(stages) > 1:
            return build.beyond(self.name, "it has more than one stage", stages[1])
        user = None
        commands: list[Instruction] = []
        for instruction in instructions:
            why = _beyond(instruction, user) or _too_late(instruction, commands)
            why = why or _leads_out(instruction, build.context.directory)
            if why is not None:
                return build.beyond(self.name, why, instruction)
            if instruction.name == "USER":
                user = instruction.rest
            if instruction.name == "RUN":
                commands.append(instruction)
        if not build.network:
            return build.beyond(self.name, "its commands have the host's network")
        return None

    async def make(self, build: DockerfileBuild, made: Path) -> Mapping[str, Any]:
        definition, config = await asyncio.to_thread(_convert, build)
        source = apptainer_build.ApptainerSource(
            build.shown, lambda _: str(definition), cwd=build.context.directory
        )
        try:
            await source.make(made, workspace=build.workspace, timeout_s=build.timeout_s)
        except ProRLError as error:
            raise _named(build, error) from None
        return config.as_oci()


def _named(build: DockerfileBuild, error: ProRLError) -> ProRLError:
    """Returns the error of the command that failed: the last one that was marked."""
    marks = list(_MARKED.finditer(error.message))
    for instruction in build.context.dockerfile.instructions:
        if marks and instruction.line == int(marks[-1][1]):
            said = error.message[marks[-1].end() :]
            return failed(build.context.dockerfile, instruction, said)
    return error


def _convert(build: DockerfileBuild) -> tuple[Path, ImageConfig]:
    """Writes the definition. Returns it, and what the image will not have inside."""
    dockerfile = build.context.dockerfile
    (base,) = build.bases.values()
    lines = [_line(one, build) for one in dockerfile.instructions if one.name not in _IGNORED]
    file = build.workspace / "Dockerfile.rewritten"
    file.write_text("\n".join([*lines, ""]))
    sections = _spython(file, dockerfile.shown).partition("\n%")[2]
    inherited, config = ImageConfig.of_oci(base.oci), _config(build, base)
    own = dict(config.environment.items() - inherited.environment.items())
    sections = _ENVIRONMENT.sub(lambda _: _environment(own), f"%{sections}")
    definition = build.workspace / "definition"
    definition.write_text(f"Bootstrap: localimage\nFrom: {base.path}\n\n{sections}")
    return definition, config


def _beyond(instruction: Instruction, user: str | None) -> str | None:
    """Returns why an instruction is beyond spython, if it is."""
    if instruction.heredocs:
        return "it has a here-document"
    if instruction.flags and instruction.name not in ("FROM", "HEALTHCHECK"):
        return f"{instruction.flags[0]} is unknown to it"
    match instruction.name:
        case "SHELL":
            return "it knows one shell only"
        case "FROM" if instruction.rest.split()[0] == SCRATCH:
            return "it needs an image to begin with"
        case "FROM" | "WORKDIR" | "USER" if "$" in instruction.rest:
            return "it replaces no variables here"
        case "ENV" | "ARG" if not _PLAIN.fullmatch(instruction.rest):
            return "it needs NAME=VALUE with plain values"
        case "RUN" if json_list(instruction.rest) is not None:
            return "it knows commands of a shell only"
        case "RUN" if user not in (None, "root", "0"):
            return f"all its commands run as root, not as {user}"
        case "WORKDIR" if not instruction.rest.startswith("/"):
            return "it needs an absolute path"
        case "COPY" | "ADD":
            return _beyond_copies(instruction)
    return None


def _beyond_copies(instruction: Instruction) -> str | None:
    words = [unquoted(word) for word in instruction.words()]
    if "://" in words[0] or re.search(r"\.(tar|tgz|tar\.\w+)$", words[0]):
        return "it neither downloads nor unpacks"
    if len(words) != 2 or any(_GLOB.search(word) or "$" in word or " " in word for word in words):
        return "it copies one file or directory at a time, by its name"
    if not words[1].startswith("/"):
        return "it needs an absolute destination"
    return None


def _too_late(instruction: Instruction, commands: Sequence[Instruction]) -> str | None:
    """Returns why a copy cannot come before the `commands` above it. Apptainer copies first."""
    if instruction.name not in ("COPY", "ADD"):
        return None
    target = PurePosixPath(unquoted(instruction.words()[-1]))
    for command in commands:
        for word in _WORDS.findall(command.rest):
            place = PurePosixPath(word)
            is_near = place in target.parents or place.is_relative_to(target)
            if is_near and place.parent != place:
                return f"it copies before all commands, and line {command.line} uses {word}"
    return None


def _environment(variables: Mapping[str, str]) -> str:
    """Returns the section, with the values that the build gave the variables."""
    exports = (f"export {name}={shlex.quote(value)}" for name, value in variables.items())
    return "\n".join(["%environment", *exports, ""])


def _line(instruction: Instruction, build: DockerfileBuild) -> str:
    text = f"{instruction.name} {instruction.rest}"
    match instruction.name:
        case "FROM":
            return f"FROM {instruction.rest.split()[0]}"
        case "RUN":
            return f"RUN echo '{_MARK} {instruction.line}' >&2\n{text}"
        case "COPY" | "ADD":
            source, target = (unquoted(word) for word in instruction.words())
            inside = _inside(source)
            path = build.context.directory / inside
            if not os.path.lexists(path):
                raise build.context.dockerfile.error(instruction, f"the context has no {source}")
            # Docker copies what is in a directory, cp the directory itself.
            return f"COPY {f'{inside}/.' if path.is_dir() else inside} {target}"
    return text


def _inside(source: str) -> str:
    """Returns a source's path below the context, which `..` and a leading `/` do not leave."""
    return posixpath.normpath(f"/{source}").strip("/") or "."


def _leads_out(instruction: Instruction, context: Path) -> str | None:
    """Returns why a copy is refused that would bring files of the host: Apptainer follows links."""
    if instruction.name not in ("COPY", "ADD"):
        return None
    source = context / _inside(unquoted(instruction.words()[0]))
    for one in (source, *source.rglob("*")):
        if one.is_symlink() and not one.resolve().is_relative_to(context.resolve()):
            return f"it follows links, and {one.relative_to(context)} leads out of the context"
    return None


def _spython(file: Path, shown: str) -> str:
    parser, writer = _import()
    try:
        definition = str(writer(parser(str(file)).recipe).convert())
    except SystemExit as error:  # spython's way to report a mistake
        raise TaskError(f"{shown} is not a Dockerfile that spython understands") from error
    # ENV and ARG also hold for later RUN lines; and all of %post runs as root, whatever USER says.
    definition = definition.replace("\n%post\n", "\n%post\nset -ae\n")
    return re.sub(r"^su - .* # USER .*\n", "", definition, flags=re.MULTILINE)


def _import() -> tuple[type, type]:
    try:
        from spython.main.parse.parsers import DockerParser
        from spython.main.parse.writers import SingularityWriter
    except ImportError as error:
        raise SandboxError(
            f"spython is not installed: {error}",
            hint="pip install 'prorl-service[images]'",
            retryable=False,
        ) from error
    return DockerParser, SingularityWriter


def _config(build: DockerfileBuild, base: BaseImage) -> ImageConfig:
    last = last_stage(build.context.dockerfile, build.environment_of)
    inherited = ImageConfig.of_oci(base.oci)
    named = {one.name for one in build.context.dockerfile.instructions}
    return ImageConfig(
        workdir=last.workdir if "WORKDIR" in named else inherited.workdir,
        user=last.user if "USER" in named else inherited.user,
        environment=last.environment,
    )


async def _make(source: Path, made: Path, options: Sequence[str]) -> None:
    trial = apptainer_build.ApptainerSource("a trial", lambda _: str(source), options=options)
    await trial.make(made, workspace=made.parent, timeout_s=TRIAL_TIMEOUT_S)
