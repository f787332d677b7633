"""Images that Dockerfiles begin with, from the cache.

An image of a registry is fetched once, like one that a task names, and served without a network
afterwards. Substitutes name others in the place of both, for hosts that never have a network.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from prorl_service.errors import TaskError
from prorl_service.sandbox.images import sif
from prorl_service.sandbox.images.aio import in_thread
from prorl_service.sandbox.images.dockerfiles.rungs import Base
from prorl_service.sandbox.images.leases import Lease
from prorl_service.sandbox.images.references import LocalReference, parse
from prorl_service.sandbox.images.store import Store

SUBSTITUTE = "without a network, name an image that is here: --image-base {}=local:NAME"


def substitutes_of(pairs: Iterable[str]) -> dict[str, str]:
    """Reads `IMAGE=REFERENCE` pairs. Raises `TaskError` for what is none."""
    found = {}
    for pair in pairs:
        image, equals, reference = pair.partition("=")
        if not equals:
            raise TaskError(
                f"not a pair of images: {pair!r}", hint="write it as debian:bookworm=local:NAME"
            )
        found[str(parse(image))] = str(parse(reference))
    return found


async def described(lease: Lease, store: Store) -> Base:
    """Returns a leased image with its configuration."""
    if lease.digest is not None:
        return Base(lease.path, await in_thread(store.oci_config, lease.digest))
    if lease.path.is_file():
        return Base(lease.path, await in_thread(sif.oci_config, lease.path))
    return Base(lease.path, {})


class CachedBases:
    def __init__(
        self,
        get: Callable[[str], Awaitable[Lease]],
        store: Store,
        substitutes: Mapping[str, str],
    ) -> None:
        """`get` is the cache's. `substitutes` are of `substitutes_of`."""
        self._get = get
        self._store = store
        self._substitutes = substitutes

    async def is_here(self, name: str) -> bool:
        reference = parse(name)
        if str(reference) in self._substitutes or isinstance(reference, LocalReference):
            return True
        return await in_thread(self._store.ref, str(reference)) is not None

    @asynccontextmanager
    async def get(self, name: str) -> AsyncIterator[Base]:
        async with await self._get(name) as lease:
            yield await described(lease, self._store)
