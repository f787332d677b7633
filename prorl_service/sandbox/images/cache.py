"""The image cache: references in, leased SIF files out. Safe with many processes on many nodes.

An image is made at most once at a time: by one task of a process, under a lock between processes.
The digest of its manifest identifies it, so an image in the cache is never fetched again. A tag is
looked up when it is unknown or `refresh` is set. A lease keeps an image from being removed. The
budget is for finished images; images that were made here (`local:`) count towards it, and only a
`prune` by age or of everything removes them. Two processes that finish at the same time may exceed
the budget by one image, until the next one makes room.
"""

import functools
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.cache import cache_root
from prorl_service.sandbox.images import oci_layout, registry, sif
from prorl_service.sandbox.images.aio import SingleFlight, disk_errors, in_thread
from prorl_service.sandbox.images.apptainer_build import ApptainerSource
from prorl_service.sandbox.images.base import (
    ImageStore,
    nothing_to_give_up,
    substitutes_of,
    to_prune,
)
from prorl_service.sandbox.images.builder import ImageBuilder, WantedImage
from prorl_service.sandbox.images.dockerfiles import DockerfileBuilders, DockerfileSource
from prorl_service.sandbox.images.dockerfiles.work import BaseImage
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.images.leases import ImageLease, Leases
from prorl_service.sandbox.images.locks import Heartbeat
from prorl_service.sandbox.images.references import (
    DockerfileReference,
    FileReference,
    LocalReference,
    PathReference,
    RegistryReference,
    parse,
)
from prorl_service.sandbox.images.store import CachedImage, Ref, Store

log = logging.getLogger(__name__)

BUILD_TIMEOUT_S = 3600.0
SUBSTITUTE = "without a network, name an image that is here: --image-base {}=local:NAME"


class ImageCache(ImageStore):
    """A cache for one event loop. Needs no closing: it works only while a caller holds or waits."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        budget_bytes: int | None = None,
        evict_one: Callable[[], Awaitable[bool]] = nothing_to_give_up,
        build_timeout_s: float = BUILD_TIMEOUT_S,
        bases: Iterable[str] = (),
        build_network: bool = True,
        builders: DockerfileBuilders | None = None,
    ) -> None:
        """`root` defaults to `images` in the service's cache; without a budget there is no limit.

        `evict_one` is called when leased images leave no room: it gets a lease or more released, or
        returns False, which is an error. `build_timeout_s` also bounds the wait for another process
        that makes the same image. `bases` are pairs `IMAGE=REFERENCE`: what stands in for images
        that tasks name and Dockerfiles begin with. Commands of Dockerfiles have the host's network
        if `build_network`. `builders` are this host's by default. Raises `TaskError` for what is
        no pair.
        """
        self.root = (root or cache_root() / "images").absolute()
        self._store = Store(self.root)
        heartbeat = Heartbeat()
        self._leases = Leases(self._store, heartbeat)
        self._builder = ImageBuilder(
            self._store,
            self._leases,
            heartbeat,
            budget_bytes=budget_bytes,
            evict_one=evict_one,
            build_timeout_s=build_timeout_s,
        )
        self._substitutes = substitutes_of(bases)
        self._dockerfile_builders = builders or DockerfileBuilders()
        self._build_network = build_network
        self._flights = SingleFlight()
        self._prepared = False

    @asynccontextmanager
    async def image(self, reference: str) -> AsyncIterator[Path]:
        """Gets an image and releases it at the end of the block."""
        async with await self.get(reference) as lease:
            yield lease.path

    async def _pull(self, reference: str, leases: AsyncExitStack) -> int | None:
        lease = await leases.enter_async_context(await self.get(reference, refresh=True))
        return None if lease.digest is None else lease.path.stat().st_size

    async def get(self, reference: str, *, refresh: bool = False) -> ImageLease:
        """Leases the image, made if missing; `refresh` asks the registry what a tag stands for now.

        Raises `TaskError` for an image that does not exist or is refused, `SandboxError` for
        network and disk trouble, and for an image that the budget cannot hold.
        """
        parsed = parse(reference)
        if (instead := self._substitutes.get(str(parsed))) is not None:
            parsed = parse(instead)
        if isinstance(parsed, PathReference):
            return ImageLease(await in_thread(_checked, parsed.path))
        with disk_errors(self.root):
            await self._prepare()
            if isinstance(parsed, RegistryReference):
                wanted = await self._at_registry(parsed, refresh=refresh)
            elif isinstance(parsed, DockerfileReference):
                return await self._built(parsed)
            else:
                wanted = await in_thread(self._find_here, parsed)
            return await self._obtain(wanted)

    async def config(self, reference: str) -> ImageConfig:
        """Returns where an image's commands start, as whom and with which variables, as far as that
        is known; gets the image if it is missing. Raises what `get` raises."""
        async with self._described(reference) as image:
            return ImageConfig.of_oci(image.oci)

    @asynccontextmanager
    async def _described(self, reference: str) -> AsyncIterator[BaseImage]:
        async with await self.get(reference) as lease:
            oci: dict[str, Any] = {}
            if lease.digest is not None:
                oci = await in_thread(self._store.oci_config, lease.digest)
            elif lease.path.is_file():
                oci = await in_thread(sif.oci_config, lease.path)
            yield BaseImage(lease.path, oci)

    async def build(self, name: str, source: ApptainerSource | str) -> CachedImage:
        """Makes `local:name` of a definition, or of what a reference stands for."""
        local = str(parse(f"local:{name}"))
        with disk_errors(self.root):
            await self._prepare()
            if isinstance(source, ApptainerSource):
                lease = await self._builder.make_local(source)
            else:
                lease = await self.get(source, refresh=True)
                if lease.digest is None:
                    lease = await self._builder.make_local(await in_thread(_to_copy, lease.path))
            async with lease:
                assert lease.digest is not None
                ref = Ref(local, lease.digest, lease.digest, None)
                await in_thread(self._store.set_ref, ref)
        return next(entry for entry in await self.entries() if local in entry.names)

    async def entries(self) -> list[CachedImage]:
        """Returns all images, least recently used first."""
        with disk_errors(self.root):
            await self._prepare()
            return await in_thread(self._store.entries)

    async def prune(
        self,
        *,
        budget_bytes: int | None = None,
        unused_s: float | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> list[CachedImage]:
        """Removes unused images, and what crashed processes left. Returns the removed images.

        Removes those not used for `unused_s`, or `everything`; then the least recently used that
        were not made here, down to `budget_bytes`. `dry_run` only returns what it would remove.
        """
        with disk_errors(self.root):
            await self._prepare()
            if not dry_run:
                await in_thread(self._store.sweep)
            entries = await in_thread(self._store.entries)
            chosen = to_prune(entries, budget_bytes, unused_s, everything)
            if dry_run:
                return chosen
            return [entry for entry in chosen if await in_thread(self._store.evict, entry.digest)]

    async def _prepare(self) -> None:
        if not self._prepared:
            await self._flights.run("prepare", self._first_use)

    async def _first_use(self) -> None:
        await in_thread(self._store.prepare)
        await in_thread(self._store.sweep)
        self._prepared = True

    async def _obtain(self, wanted: WantedImage) -> ImageLease:
        lease = await self._leases.lease(wanted.digest)
        try:
            if not await in_thread(self._store.is_ready, wanted.digest):
                await self._flights.run(wanted.digest, lambda: self._builder.make(wanted))
        except BaseException:
            await lease.release()
            raise
        return lease

    async def _built(self, parsed: DockerfileReference) -> ImageLease:
        wanted = self._of_dockerfile(parsed)
        lease = await self._obtain(wanted)
        ref = Ref(str(parsed), wanted.digest, wanted.digest, None)
        if await in_thread(self._store.ref, ref.reference) != ref:
            await in_thread(self._store.set_ref, ref)
        return lease

    def _find_here(self, parsed: FileReference | LocalReference) -> WantedImage:
        if isinstance(parsed, LocalReference):
            ref = self._store.ref(str(parsed))
            if ref is None:
                raise TaskError(
                    f"there is no image {parsed}",
                    hint=f"make it: prorl images build {parsed.name} ...",
                )
            return WantedImage(ref.digest, None)
        content = oci_layout.inspect(parsed)
        shown = str(parsed)
        if parsed.form == "oci":
            view = functools.partial(oci_layout.view, parsed.path, content.digest)
            return WantedImage(content.digest, ApptainerSource(shown, view), content.size_bytes)
        return WantedImage(
            content.digest,
            ApptainerSource(shown, lambda _: shown),
            content.size_bytes,
            digest_now=lambda: oci_layout.inspect(parsed).digest,
        )

    def _of_dockerfile(self, parsed: DockerfileReference) -> WantedImage:
        """The context and what stands in for images identify what is made of them."""
        digest = parsed.archive
        if self._substitutes:
            instead = repr((digest, sorted(self._substitutes.items())))
            digest = f"sha256:{hashlib.sha256(instead.encode()).hexdigest()}"
        shown = str(parsed)
        source = DockerfileSource(
            *(shown, parsed.archive, self._dockerfile_builders, self._described),
            network=self._build_network,
        )
        return WantedImage(digest, source)

    async def _at_registry(self, parsed: RegistryReference, *, refresh: bool) -> WantedImage:
        ref = await in_thread(self._store.ref, str(parsed))
        if ref is None or (refresh and parsed.digest is None):
            try:
                ref = await self._look_up(parsed, ref)
            except SandboxError as error:
                if not refresh:
                    name = str(parsed).removeprefix("docker://")
                    error.hint = f"{error.hint}; {SUBSTITUTE.format(name)}"
                raise
        uri = f"docker://{parsed.name}@{ref.digest}"
        source = ApptainerSource(str(parsed), lambda _: uri, plain_http=parsed.is_loopback)
        return WantedImage(ref.digest, source, ref.size_bytes)

    async def _look_up(self, parsed: RegistryReference, known: Ref | None) -> Ref:
        """Returns what a name stands for; offline, what it stood for if that image is cached."""
        try:
            ref = await registry.resolve(parsed, known)
        except SandboxError as error:
            if known is None or not await in_thread(self._store.image(known.digest).exists):
                raise
            log.warning("%s; using the cached image %s", error, known.digest)
            return known
        if ref is not known:
            await in_thread(self._store.set_ref, ref)
        return ref


def _to_copy(path: Path) -> Path | ApptainerSource:
    return path if path.is_file() else ApptainerSource(str(path), lambda _: str(path))


def _checked(path: Path) -> Path:
    """Returns `path`. Raises `TaskError` unless it is a SIF file or a root file system."""
    if path.is_dir():
        if not any((path / name).is_dir() for name in ("bin", "usr")):
            raise TaskError(f"{path} is not a root file system: it has no bin or usr")
        return path
    try:
        is_sif = sif.is_sif(path)
    except OSError as error:
        raise TaskError(f"the image {path} cannot be read: {error.strerror}") from error
    if not is_sif:
        raise TaskError(f"{path} is not a SIF file", hint="for archives: docker-archive:FILE")
    return path
