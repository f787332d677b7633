"""Services that stop answering with connections open: stopped, or behind a dead link."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import BackendSpec, RolloutState, Stage
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.front.conftest import TWO_AT_ONCE, service
from tests.front.test_front import assert_done, at, ends, ids_of, until_both_run, until_empty
from tests.programs import ran
from tests.server.application import Settings, serving, until
from tests.server.scored_agent import scored

pytestmark = pytest.mark.processes

CLOSED_WITHIN_S, LEFT_WITHIN_S = 30, 60
"""Seconds well above those that a front needs, and well below the timeouts of connections."""


@contextmanager
def stopped(running: local.LocalProcess) -> Iterator[None]:
    running.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        running.process.send_signal(signal.SIGCONT)


async def until_left(client: AsyncRolloutClient, slots: int) -> None:
    """Waits until the front counts on `slots` rollouts at a time."""
    async with asyncio.timeout(CLOSED_WITHIN_S):
        await until(client.status, lambda status: status.workers[Stage.RUN] == slots)


async def test_rollouts_of_a_hung_service_end_once_elsewhere(
    services: list[local.LocalProcess], settings: Settings
) -> None:
    groups = [scored(f"g{i}", 0, 1, 0, 1, sleep=0.5) for i in range(4)]
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.submit(groups)
        await until_both_run(services)
        with stopped(services[0]):
            ended = await client.wait(ids_of(groups), LEFT_WITHIN_S)
        await until_empty(services[0])  # the rollouts it still had are cancelled there
        await until_left(client, 6)  # and the front counts on it again
        more = [scored(f"more{i}", 0, 1, 0, 1, sleep=0.5) for i in range(4)]
        await client.submit(more)
        await until_both_run(services)
        assert_done(await client.wait(ids_of(more), LEFT_WITHIN_S), more)
    assert_done(ended, groups)
    assert {one.attempt for one in ended} == {1, 2}
    assert ends(settings) == Counter({(one, "done"): 1 for one in ids_of([*groups, *more])})


async def test_a_hung_service_gets_no_new_groups(
    services: list[local.LocalProcess], client: AsyncRolloutClient
) -> None:
    await until_left(client, 6)
    with stopped(services[0]):
        await until_left(client, 3)
        groups = [scored(f"g{i}", 0, 1) for i in range(4)]
        await client.submit(groups)
        ended = await client.wait(ids_of(groups), LEFT_WITHIN_S)
    assert_done(ended, groups)
    assert {one.attempt for one in ended} == {1}
    assert not (await at(services[0])).total()


async def test_a_service_that_hangs_for_a_moment_continues_its_rollouts(
    services: list[local.LocalProcess], client: AsyncRolloutClient
) -> None:
    groups = [scored(f"g{i}", 0, 1, sleep=1) for i in range(4)]
    await client.submit(groups)
    await until_both_run(services)
    with stopped(services[0]):
        await until_left(client, 3)
    ended = await client.wait(ids_of(groups), LEFT_WITHIN_S)
    assert_done(ended, groups)
    assert {one.attempt for one in ended} == {1}


@pytest.mark.parametrize("is_lost", [True, False], ids=["when lost", "before"])
async def test_rollouts_cancelled_on_a_hung_service_end_when_it_answers(
    services: list[local.LocalProcess], client: AsyncRolloutClient, is_lost: bool
) -> None:
    groups = [scored(f"slow{i}", 0, 1, sleep=1000) for i in range(2)]
    await client.submit(groups)
    await until_both_run(services)
    with stopped(services[0]), stopped(services[1]):
        if is_lost:
            await until_left(client, 0)
        await client.cancel(ids_of(groups))
        ended = await client.wait(ids_of(groups), LEFT_WITHIN_S)
    assert {one.state for one in ended} == {RolloutState.CANCELLED}
    async with asyncio.timeout(LEFT_WITHIN_S):
        await until_empty(*services)


# --- a dead link --------------------------------------------------------------------------------

NETWORK = "198.18.77"
"""A network set aside for tests (RFC 2544)."""
NAMESPACE = "prorl-front-test"


def ip(*arguments: str, check: bool = True) -> None:
    done = ran("ip", *arguments)
    if check and done.returncode:
        pytest.skip(f"no network namespaces here: ip {' '.join(arguments)}: {done.stderr.strip()}")


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace, `NETWORK`.2, linked to the one of the test, `NETWORK`.1."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    ip("netns", "add", NAMESPACE)
    try:
        peer = ("peer", "name", "prorl-far", "netns", NAMESPACE)
        ip("link", "add", "prorl-near", "type", "veth", *peer)
        ip("address", "add", f"{NETWORK}.1/24", "dev", "prorl-near")
        ip("link", "set", "prorl-near", "up")
        ip("-n", NAMESPACE, "address", "add", f"{NETWORK}.2/24", "dev", "prorl-far")
        ip("-n", NAMESPACE, "link", "set", "prorl-far", "up")
        ip("-n", NAMESPACE, "link", "set", "lo", "up")
        yield NAMESPACE
    finally:
        # The kernel deletes a namespace later, and what is in it with it: the link goes first.
        ip("link", "delete", "prorl-near", check=False)
        ip("netns", "delete", NAMESPACE, check=False)


@pytest.fixture
async def engine_of_both(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    engine = StubEngine(tiny_model, lambda _: [5, 6, chat.end_of_turn_id], host=f"{NETWORK}.1")
    async with engine:
        yield engine


@contextmanager
def service_behind(namespace: str, tmp_path: Path, *options: str) -> Iterator[None]:
    """Runs a service in `namespace`, announced as `far`."""
    command = [
        *("ip", "netns", "exec", namespace, sys.executable, "-m", "prorl_service.cli", "serve"),
        *("--host", f"{NETWORK}.2", "--port", "8080", "--journal", "none", *TWO_AT_ONCE),
        *("--announce", str(tmp_path / "services" / "far.json"), *options),
    ]
    with (tmp_path / "far.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def test_rollouts_of_a_service_behind_a_dead_link_end_once_elsewhere(
    namespace: str, engine_of_both: StubEngine, settings: Settings, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    secret = ("--token-file", str(token))
    backends = (BackendSpec(url=engine_of_both.url),)
    settings = replace(settings, backends=backends, token=token.read_text())
    groups = [scored(f"g{i}", 0, 1, 0, 1, sleep=1) for i in range(4)]
    with service("near", tmp_path, *secret), service_behind(namespace, tmp_path, *secret):
        async with (
            serving(settings) as url,
            AsyncRolloutClient(url, token=settings.token) as client,
            AsyncRolloutClient(f"http://{NETWORK}.2:8080", token=settings.token) as far,
        ):
            await until_left(client, 6)
            await client.submit(groups)
            await until(far.status, lambda status: status.rollouts.get(RolloutState.RUNNING))
            ip("-n", namespace, "link", "set", "prorl-far", "down")
            ended = await client.wait(ids_of(groups), LEFT_WITHIN_S)
            ip("-n", namespace, "link", "set", "prorl-far", "up")
            await until(far.status, lambda status: not status.rollouts)
    assert_done(ended, groups)
    assert {one.attempt for one in ended} == {1, 2}
    assert ends(settings) == Counter({(one, "done"): 1 for one in ids_of(groups)})
