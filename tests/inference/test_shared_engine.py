"""An engine that two services were given: neither returns tokens of the other's policy."""

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_service.errors import BackendUnavailable
from prorl_service.inference.pool import BackendPool
from prorl_service.schemas import BackendSpec, BackendState
from prorl_service.testing import StubEngine
from tests.inference.pools import generate, id_of, pool_of, until, upload
from tests.waits import condition

SERVICES = ("a", "b")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("push", "call", "call", "restart", "join")), st.sampled_from(SERVICES)
    ),
    min_size=2,
    max_size=12,
)


async def test_the_service_that_did_not_push_says_who_did(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    async with (
        pool_of([engine], tmp_path / "a", wait_for_backend_s=0.5) as a,
        pool_of([engine], tmp_path / "b") as b,
    ):
        await a.weights.load_stream(upload(b"of a"))
        await until(b, BackendState.DOWN, 1)
        [status] = b.statuses()
        assert "was given weights by another service (version 1-" in status.reason
        assert "give each service engines of its own" in status.reason
        report = await b.weights.load_stream(upload(b"of b"))
        assert (report.applied, engine.weights) == ([], b"of a")
        await b.remove(id_of(engine))
        await b.add(BackendSpec(url=engine.url))
        assert engine.weights == b"of b"
        await until(a, BackendState.DOWN, 1)
        with a.session("r") as generator, pytest.raises(BackendUnavailable) as caught:
            await generate(generator)
        assert "was given weights by another service (version 2-" in caught.value.hint
        engine.restart()
        await condition(lambda: engine.weights in (b"of a", b"of b"))


class _Policies:
    """Two services, their one engine, and whose weights it samples with."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.engine = StubEngine(model, lambda _: [1 + self.known.index(self.engine.weights)])
        self.known: list[bytes | str] = [b""]
        self.own = defaultdict[str, set[bytes | str]](lambda: {b""})
        self.pools: dict[str, BackendPool] = {}
        self.directory = directory

    async def push(self, name: str) -> None:
        weights = f"{name} {len(self.known)}".encode()
        self.known.append(weights)
        self.own[name].add(weights)
        with suppress(BackendUnavailable):
            await self.pools[name].weights.load_stream(upload(weights))

    async def call(self, name: str) -> None:
        with self.pools[name].session("r") as generator, suppress(BackendUnavailable):
            [token] = (await generate(generator)).token_ids
            assert self.known[token - 1] in self.own[name]

    async def restart(self, _: str) -> None:
        self.engine.restart()

    async def join(self, name: str) -> None:
        """Takes the engine as it is found, which a new service does too."""
        self.own[name].add(self.engine.weights)
        with suppress(BackendUnavailable):
            await self.pools[name].remove(id_of(self.engine))
            await self.pools[name].add(BackendSpec(url=self.engine.url))


@pytest.mark.slow
@settings(max_examples=25)
@given(steps=STEPS)
def test_whatever_they_do_each_gets_tokens_of_its_own_policy(
    steps: list[tuple[str, str]], tiny_model: Path
) -> None:
    async def run(directory: Path) -> None:
        policies = _Policies(directory, tiny_model)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(policies.engine)
            for name in SERVICES:
                pool = pool_of([policies.engine], directory / name, wait_for_backend_s=0.3)
                policies.pools[name] = await stack.enter_async_context(pool)
            for step, name in steps:
                await getattr(policies, step)(name)

    with TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))
