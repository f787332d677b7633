"""Dockerfiles by buildah: needs no daemon, no Docker, and for a user nothing but subordinate ids.

A build runs in a mount and a PID namespace, without a network also in a network namespace, and for
an ordinary user in a user namespace of the subordinate ids. So the end of one process ends every
process of RUN and every mount. Storage is in the build's workspace. Images that the file names
come from the cache: buildah asks no registry.

The commands of RUN are root's in a changed root (`--isolation chroot`), not in a sandbox.
"""

import asyncio
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prorl_service.errors import ProRLError, TaskError
from prorl_service.sandbox.images import apptainer_build, sif
from prorl_service.sandbox.images.dockerfiles.rewriting import HEREDOCS, rewrite
from prorl_service.sandbox.images.dockerfiles.syntax import Dockerfile, Instruction
from prorl_service.sandbox.images.dockerfiles.work import BaseImage, DockerfileBuild, failed
from prorl_service.sandbox.images.host_image import make_host_image
from prorl_service.sandbox.images.image_config import ImageConfig

INSTALL = "prorl install buildah"
DRIVERS = ("overlay", "vfs")
"""Ways of storage, best first. vfs copies all files for each stage, and works everywhere."""

TRIAL_TIMEOUT_S = 60.0
LOG_BYTES = 1 << 20
"""Bytes of the end of buildah's messages that are searched for the step that failed."""

_UNKNOWN = ("parents", "exclude", "checksum", "keep-git-dir")
"""Flags that buildah of Debian 12 does not know."""
_REMOTE = re.compile(r"(https?|ftp|git)://|git@")
_STEP = re.compile(r"^(?:\[(\d+)/\d+\] )?STEP (\d+)/\d+: .*\n?", re.MULTILINE)
_NOISE = re.compile(
    r"^(?:subprocess exited with status \d+|time=.*level=(?:warning|debug).*)\n?", re.MULTILINE
)

# Elsewhere, as root, buildah and its libraries keep notes.
_COVER = """for d in /var/lib/containers /run/containers; do
  mkdir -p $d 2>/dev/null && mount -t tmpfs tmpfs $d 2>/dev/null || :
done"""


class Buildah:
    name = "buildah"

    def __init__(self) -> None:
        self._driver = DRIVERS[0]

    async def trial(self, workspace: Path) -> str | None:
        """Runs a command of the host in an empty image, with each way of storage."""
        why: str | None = None
        for self._driver in DRIVERS:
            directory = workspace / f"trial-{self._driver}"
            await asyncio.to_thread(directory.mkdir)
            why = await self._try(directory)
            if why is None:
                break
        return why

    async def _try(self, workspace: Path) -> str | None:
        binds = await asyncio.to_thread(make_host_image, workspace / "empty")
        options = [option for bind in binds for option in ("--volume", bind)]
        script = [
            *(_run("from", "--name", "trial", "scratch"), f"m=$({_run('mount', 'trial')})"),
            'cp -a empty/. "$m"',
            _run("run", "--isolation", "chroot", *options, "trial", "--", "/usr/bin/true"),
        ]
        status, text = await self._in_namespaces(
            script, workspace, "a trial", network=False, timeout_s=TRIAL_TIMEOUT_S
        )
        if status == 0:
            return None
        lines = text.strip().splitlines()
        return lines[-1] if lines else f"exit status {status}"

    def obstacle(self, build: DockerfileBuild) -> TaskError | None:
        for one in build.context.dockerfile.instructions:
            for flag in one.flags:
                alone = flag == "--network=none" and build.network
                if alone or flag[2:].partition("=")[0] in _UNKNOWN:
                    return build.beyond(self.name, f"it does not know {flag}", one)
            if one.name == "ADD" and not build.network and _REMOTE.match(one.words()[0]):
                why = f"{one.words()[0]} needs the network, which builds do not have here"
                return build.beyond(self.name, why, one)
        return None

    async def make(self, build: DockerfileBuild, made: Path) -> Mapping[str, Any]:
        script, archive = await asyncio.to_thread(self._prepare, build)
        status, text = await self._in_namespaces(
            script, build.workspace, build.shown, network=build.network, timeout_s=build.timeout_s
        )
        if status != 0:
            error = apptainer_build.failure(build.shown, status, text, program="buildah")
            raise step_failed(build.context.dockerfile, text) or error
        source = apptainer_build.ApptainerSource(build.shown, lambda _: f"oci-archive:{archive}")
        return await source.make(made, workspace=build.workspace, timeout_s=build.timeout_s)

    def _prepare(self, build: DockerfileBuild) -> tuple[list[str], Path]:
        """Writes the Dockerfile. Returns the commands, and the archive that they make."""
        names = {name: f"localhost/prorl-base:{n}" for n, name in enumerate(build.bases)}
        heredocs = build.workspace / HEREDOCS
        heredocs.mkdir()
        text = rewrite(build.context.dockerfile, names, build.environment_of, heredocs)
        file = build.workspace / "Dockerfile.rewritten"
        file.write_text(text)
        archive = build.workspace / "image.tar"
        command = _run(
            *("build", "--isolation", "chroot", "--layers=false", "--pull-never"),
            *("--network", "host", "--build-context", f"{HEREDOCS}={heredocs}"),
            *("--file", str(file), "--tag", f"oci-archive:{archive}"),
            str(build.context.directory),
        )
        bases = [self._import(base, names[name]) for name, base in build.bases.items()]
        return [_COVER, *bases, command], archive

    def _import(self, base: BaseImage, name: str) -> str:
        """Returns commands that make an image of one from the cache."""
        if base.path.is_dir():
            copy = f'cp -a {shlex.quote(str(base.path))}/. "$m"'
        else:
            offset = sif.file_system_offset(base.path)
            unpack = f'unsquashfs -quiet -no-progress -force -dest "$m" -offset {offset}'
            # Status 2: something was left out that only root may make, such as a device.
            copy = f"{unpack} {shlex.quote(str(base.path))} || [ $? -eq 2 ]"
        config = ImageConfig.of_oci(base.oci)
        options = [*(("--workingdir", config.workdir) if config.workdir else ())]
        options += [*(("--user", config.user) if config.user else ())]
        for variable, value in config.environment.items():
            # It replaces variables in the value, and $$ by a dollar.
            options += ["--env", f"{variable}={value.replace('$', '$$')}"]
        return "\n".join(
            [
                _run("from", "--name", "base", "scratch"),
                f"m=$({_run('mount', 'base')})",
                copy,
                'rm -rf "$m/.singularity.d" "$m/.exec" "$m/.run" "$m/.shell" "$m/.test"',
                'rm -f "$m/environment" "$m/singularity"',
                *([_run("config", *options, "base")] if options else []),
                _run("commit", "--quiet", "--rm", "base", name),
            ]
        )

    def _function(self) -> str:
        """Returns the shell function that `_run` calls."""
        storage = f'--storage-driver {self._driver} --root "$PWD/storage" --runroot "$PWD/run"'
        return f'in_storage() {{ buildah {storage} "$@"; }}'

    async def _in_namespaces(
        self, script: list[str], workspace: Path, shown: str, *, network: bool, timeout_s: float
    ) -> tuple[int, str]:
        """Runs a shell script. Returns its status and the end of its messages."""
        messages = workspace / "messages"
        file = workspace / "script"
        await asyncio.to_thread(
            file.write_text, "\n".join(["set -e", self._function(), *script, ""])
        )
        command = [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(["--user", "--map-root-user", "--map-auto"] if os.geteuid() else []),
            *([] if network else ["--net"]),
            *("/bin/sh", str(file)),
        ]
        own = {name: str(workspace) for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")}
        status = await apptainer_build.run(
            command,
            messages,
            workspace,
            cwd=workspace,
            shown=shown,
            timeout_s=timeout_s,
            environment={**own, "BUILDAH_FORMAT": "oci"},
        )
        return status, await asyncio.to_thread(apptainer_build.tail, messages, LOG_BYTES)


def step_failed(dockerfile: Dockerfile, messages: str) -> ProRLError | None:
    """Returns the error of the last step in buildah's messages; None if there is none."""
    steps = list(_STEP.finditer(messages))
    if not steps:
        return None
    instruction = _nth(dockerfile, int(steps[-1][1] or 1), int(steps[-1][2]))
    said = _NOISE.sub("", messages[steps[-1].end() :]).strip()
    return None if instruction is None else failed(dockerfile, instruction, said)


def _nth(dockerfile: Dockerfile, stage: int, step: int) -> Instruction | None:
    """Returns the instruction by its stage and its number there, both from 1."""
    instructions = dockerfile.instructions
    begins = [number for number, one in enumerate(instructions) if one.name == "FROM"]
    wanted = [*instructions, None][begins[stage - 1] :] if stage <= len(begins) else []
    return wanted[step - 1] if step <= len(wanted) else None


def _run(*arguments: str) -> str:
    return shlex.join(["in_storage", *arguments])
