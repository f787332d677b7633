"""Images in the store of Podman or Docker: pulled, loaded and built by the engine itself.

Registries, mirrors and logins are the engine's own files, and the engine keeps an image that a
container uses. This module adds a record of each image that it brought, a file whose modification
time is the last use: only those count towards the budget, and only those are ever removed. Images
that users brought are used and left alone. Layers that images share count once for each.
"""

import asyncio
import hashlib
import logging
import os
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from prorl_service.errors import ProRLError, SandboxError, TaskError
from prorl_service.sandbox.cache import cache_root
from prorl_service.sandbox.images import oci_layout
from prorl_service.sandbox.images.aio import SingleFlight, disk_errors, in_thread
from prorl_service.sandbox.images.apptainer_build import ApptainerSource, failure
from prorl_service.sandbox.images.base import ImageOptions, ImageStore, substitutes_of, to_prune
from prorl_service.sandbox.images.builder import mb
from prorl_service.sandbox.images.dockerfiles.buildah import step_failed
from prorl_service.sandbox.images.dockerfiles.context import Context, unpack
from prorl_service.sandbox.images.dockerfiles.stages import images
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.images.references import (
    DockerfileReference,
    FileReference,
    LocalReference,
    PathReference,
    Reference,
    RegistryReference,
    parse,
)
from prorl_service.sandbox.images.store import CachedImage
from prorl_service.utils import files

log = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 3600.0
"""Seconds for the longest work of an engine: a pull or a build."""

# The end of the engine's input is not enough: a failed tar must not make an image.
# What an ordinary user unpacked is that user's, and was root's.
_IMPORT = """set -o pipefail; from=$1; to=$2; shift 2
if [ "$(id -u)" -ne 0 ]; then owner="--owner=0 --group=0"; fi
tar -C "$from" ${owner:-} -c . | "$@" import - "$to"
"""


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    command: Sequence[str]
    """Start of its command lines."""
    is_podman: bool

    @property
    def name(self) -> str:
        return "podman" if self.is_podman else "docker"


@dataclass(frozen=True, slots=True)
class EngineImage:
    name: str
    id: str
    size_bytes: int
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _ImageRecord:
    """An image that this module brought, or is bringing."""

    name: str
    reference: str
    used_at: float


@dataclass(frozen=True, slots=True)
class _EngineOutput:
    status: int
    out: str
    errors: str


class EngineImages(ImageStore):
    """The images of one engine, for one event loop. Needs no closing."""

    def __init__(self, engine: ContainerEngine, options: ImageOptions) -> None:
        """Raises `TaskError` for bases that are no pairs."""
        self._engine = engine
        self._options = options
        self._substitutes = substitutes_of(options.bases)
        self.root = (options.root or cache_root() / "images").absolute() / engine.name
        self._flights = SingleFlight()
        self._leased: Counter[str] = Counter()

    @asynccontextmanager
    async def image(self, reference: str) -> AsyncIterator[str]:
        """Gets an image, and keeps it until the end of the block. Yields its id."""
        async with self._lease(reference) as image:
            yield image.id

    async def config(self, reference: str) -> ImageConfig:
        async with self._lease(reference) as image:
            return ImageConfig.of_oci(image.config)

    async def build(self, name: str, source: ApptainerSource | str) -> CachedImage:
        if isinstance(source, ApptainerSource):
            raise TaskError(
                f"{source.shown}: definitions and --debian are Apptainer's",
                hint="name a directory with a Dockerfile or of a root file system",
            )
        local = parse(f"local:{name}")
        target = await self._name(local)
        with disk_errors(self.root):
            self._record(target, str(local))
        parsed = parse(source)
        if isinstance(parsed, PathReference):
            await self._import(parsed.path, target)
        else:
            async with self._lease(source, refresh=True) as image:
                await self._work(str(parsed), "tag", image.id, target)
        return next(entry for entry in await self.entries() if str(local) in entry.names)

    async def entries(self) -> list[CachedImage]:
        with disk_errors(self.root):
            records = await in_thread(_records, self.root)
        return [entry for record in records if (entry := await self._entry(record)) is not None]

    async def prune(
        self,
        *,
        budget_bytes: int | None = None,
        unused_s: float | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> list[CachedImage]:
        chosen = to_prune(await self.entries(), budget_bytes, unused_s, everything)
        if dry_run:
            return chosen
        return [entry for entry in chosen if await self._evict(entry)]

    async def _pull(self, reference: str, leases: AsyncExitStack) -> int | None:
        image = await leases.enter_async_context(self._lease(reference, refresh=True))
        return image.size_bytes

    async def remove_container(self, name: str) -> None:
        """Ends and removes a container, if there is one of that name: it would keep its image."""
        await self._run("rm", "--force", name)

    @asynccontextmanager
    async def _lease(self, reference: str, *, refresh: bool = False) -> AsyncIterator[EngineImage]:
        parsed = parse(reference)
        if (instead := self._substitutes.get(str(parsed))) is not None:
            parsed = parse(instead)
        name = await self._name(parsed)
        self._leased[name] += 1
        try:
            with disk_errors(self.root):
                yield await self._get(parsed, name, refresh=refresh)
        finally:
            self._leased[name] -= 1
            with suppress(FileNotFoundError):
                os.utime(self._file(name))

    async def _get(self, parsed: Reference, name: str, *, refresh: bool) -> EngineImage:
        known = await self._find(name)
        may_move = isinstance(parsed, RegistryReference) and parsed.digest is None
        if known is None or (refresh and may_move):
            await self._flights.run(name, lambda: self._bring(parsed, name, known))
            known = await self._find(name)
        if known is None:
            raise SandboxError(f"{self._engine.name} has lost the image {name}")
        with suppress(FileNotFoundError):
            os.utime(self._file(name))
        return known

    async def _name(self, parsed: Reference) -> str:
        """Returns the name of an image at the engine."""
        match parsed:
            case RegistryReference():
                return str(parsed).removeprefix("docker://")
            case LocalReference():
                return f"localhost/prorl-local:{parsed.name}"
            case DockerfileReference():
                pairs = sorted(self._substitutes.items())
                made_of = hashlib.sha256(repr((parsed.archive, pairs)).encode()).hexdigest()
                return f"localhost/prorl-built:{made_of}"
            case FileReference():
                content = await in_thread(oci_layout.inspect, parsed)
                return f"localhost/prorl-loaded:{content.digest.removeprefix('sha256:')}"
            case PathReference():
                raise TaskError(
                    f"{parsed.path}: {self._engine.name} uses no files and directories as they are",
                    hint="import a root file system: prorl images build NAME DIRECTORY "
                    f"--kind {self._engine.name}; its image is local:NAME",
                )

    # --- work -----------------------------------------------------------------------------------

    async def _bring(self, parsed: Reference, name: str, known: EngineImage | None) -> None:
        if known is None:
            self._record(name, str(parsed))
        try:
            await self._fetch(parsed, name)
            await self._remove_older(name, known)
        except ProRLError as error:
            if known is None:
                self._file(name).unlink(missing_ok=True)
                raise
            log.warning("%s; using the image that is here", error)
        await self._make_room(name)

    async def _remove_older(self, name: str, known: EngineImage | None) -> None:
        """Removes an image of ours whose name is another's by now."""
        new = await self._find(name)
        has_moved = known is not None and new is not None and known.id != new.id
        if known is not None and has_moved and await in_thread(self._file(name).exists):
            await self._run("rmi", known.id)

    async def _fetch(self, parsed: Reference, name: str) -> None:
        shown = str(parsed)
        match parsed:
            case RegistryReference():
                plain = self._engine.is_podman and parsed.is_loopback
                await self._work(shown, "pull", *(["--tls-verify=false"] if plain else []), name)
            case FileReference():
                await self._load(parsed, name)
            case DockerfileReference():
                await self._build(parsed, name)
            case _:
                raise TaskError(
                    f"there is no image {shown}",
                    hint=f"make it: prorl images build {shown.removeprefix('local:')} ...",
                )

    async def _load(self, parsed: FileReference, name: str) -> None:
        """Loads an image, and takes away the names that it brings along."""
        shown = str(parsed)
        names = await self._names()
        if self._engine.is_podman:
            loaded = await self._pull_file(parsed, name)
        elif parsed.form == "docker-archive":
            said = await self._work(shown, "load", "--input", str(parsed.path))
            loaded = said.splitlines()[-1].partition(": ")[2]
        else:
            raise TaskError(f"{shown}: Docker loads archives of `docker save` only")
        await self._work(shown, "tag", loaded, name)
        for other in await self._names() - names - {name}:
            await self._run("rmi", other)

    async def _pull_file(self, parsed: FileReference, name: str) -> str:
        """Has Podman load a file. Returns the image's id."""
        shown = str(parsed)
        if parsed.form != "oci":
            return await self._work(shown, "pull", "--quiet", shown)
        # Podman makes a name of the path, which only a path in lower case can be.
        with tempfile.TemporaryDirectory(dir=self.root, prefix="load-") as workspace:
            digest = f"sha256:{name.rpartition(':')[2]}"
            await in_thread(oci_layout.view, parsed.path, digest, Path(workspace))
            return await self._work(shown, "pull", "--quiet", "oci:layout", cwd=workspace)

    async def _names(self) -> set[str]:
        listed = await self._work("", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}")
        return set(listed.splitlines())

    async def _build(self, parsed: DockerfileReference, name: str) -> None:
        shown = str(parsed)
        with tempfile.TemporaryDirectory(dir=self.root, prefix="build-") as workspace:
            context = await in_thread(unpack, parsed.archive, Path(workspace, "context"), shown)
            async with AsyncExitStack() as leases:
                options = await self._bases(context, leases)
                command = [
                    *("build", *options, "--tag", name),
                    *(["--layers=false"] if self._engine.is_podman else []),
                    f"--network={'host' if self._options.build_network else 'none'}",
                    str(context.directory),
                ]
                said = await self._run(*command)
        if said.status:
            text = said.out + said.errors
            error = failure(shown, said.status, text, program=self._engine.name)
            raise step_failed(context.dockerfile, text) or error

    async def _bases(self, context: Context, leases: AsyncExitStack) -> list[str]:
        """Gets the images that a Dockerfile names, and returns options with what stands in."""
        options = []
        for name, instruction in images(context.dockerfile).items():
            try:
                base = await leases.enter_async_context(self._lease(name))
            except ProRLError as error:
                message = context.dockerfile.error(instruction, error.message).message
                raise type(error)(message, hint=error.hint, retryable=error.retryable) from error
            # Docker has this option with buildx only, and finds images by Docker's short names.
            if self._engine.is_podman or base.name != str(parse(name)).removeprefix("docker://"):
                options.append(f"--build-context={name}=docker-image://{base.name}")
        return options

    async def _import(self, directory: Path, name: str) -> None:
        if not any((directory / part).is_dir() for part in ("bin", "usr")):
            raise TaskError(f"{directory} is not a root file system: it has no bin or usr")
        said = await _output(
            ["bash", "-c", _IMPORT, "import", str(directory), name, *self._engine.command]
        )
        if said.status:
            raise failure(str(directory), said.status, said.errors, program=self._engine.name)

    async def _work(self, shown: str, *arguments: str, cwd: str | None = None) -> str:
        """Runs the engine. Returns what it said. Raises `TaskError`, `SandboxError`."""
        said = await self._run(*arguments, cwd=cwd)
        if said.status:
            raise failure(shown, said.status, said.errors, program=self._engine.name)
        return said.out.strip()

    async def _run(self, *arguments: str, cwd: str | None = None) -> _EngineOutput:
        return await _output([*self._engine.command, *arguments], cwd=cwd)

    async def _find(self, name: str) -> EngineImage | None:
        said = await self._run("image", "inspect", name)
        if said.status:
            return None
        (found,) = orjson.loads(said.out)
        return EngineImage(name, found["Id"], found["Size"], found.get("Config") or {})

    # --- records and room -----------------------------------------------------------------------

    def _file(self, name: str) -> Path:
        return self.root / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def _record(self, name: str, reference: str) -> None:
        """Writes it before the work: what a killed process has brought can still be removed."""
        self.root.mkdir(parents=True, exist_ok=True)
        content = orjson.dumps({"name": name, "reference": reference}).decode()
        files.write_whole(self._file(name), content)

    async def _entry(self, record: _ImageRecord) -> CachedImage | None:
        image = await self._find(record.name)
        if image is None:
            return None
        users = await self._run("ps", "--all", "--quiet", "--filter", f"ancestor={image.id}")
        return CachedImage(
            digest=image.id,
            path=self._file(record.name),
            size_bytes=image.size_bytes,
            source=record.name,
            used_at=record.used_at,
            in_use=bool(self._leased[record.name]) or bool(users.out.strip()),
            names=(record.reference,),
        )

    async def _evict(self, entry: CachedImage) -> bool:
        """Removes an image that nothing uses. Returns False if a container uses it by now."""
        if self._leased[entry.source] or (await self._run("rmi", entry.source)).status:
            return False
        self._file(entry.source).unlink(missing_ok=True)
        return True

    async def _make_room(self, new: str) -> None:
        """Evicts until the budget is kept. Raises `SandboxError` if images in use prevent that."""
        budget = self._options.budget_bytes
        while budget is not None:
            entries = await self.entries()
            for entry in to_prune(entries, budget, None, False):
                await self._evict(entry)
            left = await self.entries()
            size = sum(entry.size_bytes for entry in left)
            if size <= budget:
                return
            alone = all(entry.source == new for entry in left)
            if alone or not await self._options.evict_one():
                await self._run("rmi", new)
                self._file(new).unlink(missing_ok=True)
                why = f"{mb(size)} are in use or were made here, the budget is {mb(budget)}"
                hint = "raise the budget, or use fewer images at once; see `prorl images list`"
                raise SandboxError(f"no room for {new}: {why}", hint=hint, retryable=not alone)


def _records(root: Path) -> list[_ImageRecord]:
    """Returns the least recently used first."""
    found = []
    for path in root.glob("*.json"):
        with suppress(FileNotFoundError):  # removed meanwhile
            found.append(
                _ImageRecord(**orjson.loads(path.read_bytes()), used_at=path.stat().st_mtime)
            )
    return sorted(found, key=lambda record: record.used_at)


async def _output(command: Sequence[str], *, cwd: str | None = None) -> _EngineOutput:
    """Runs a program, and ends its processes if the caller leaves."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            out, errors = await process.communicate()
    except TimeoutError:
        shown = " ".join(command[:3])
        raise SandboxError(f"{shown} took more than {COMMAND_TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode is not None
    return _EngineOutput(
        process.returncode, out.decode(errors="replace"), errors.decode(errors="replace")
    )
