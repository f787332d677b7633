"""The pool of warm sandboxes, over fakes that start, fail and die on demand."""

import asyncio
import logging

import pytest

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import ToolResult
from prorl_service.sandbox.warm_pool import PARALLEL_STARTS, WarmPool
from tests.sandbox.fake_provider import LIMITS, OTHER_LIMITS, Provider, background, started


@pytest.fixture
def provider() -> Provider:
    return Provider()


async def test_expected_sandboxes_are_ready_before_they_are_requested(provider: Provider) -> None:
    pool = WarmPool(provider, spares=4)
    pool.prewarm(["a", "b"])
    assert provider.expected == ["a", "b"]
    await background()
    provider.may_start.clear()
    assert await (await started(pool, "b")).call_tool("bash", {}, timeout_s=1) == ToolResult("b")
    await started(pool, "a")
    assert pool.counts() == {"running": 2, "warm": 0, "hits": 2, "misses": 0}


async def test_spares_needed_soonest_are_made_first_a_few_at_a_time(provider: Provider) -> None:
    pool = WarmPool(provider, spares=4)
    provider.may_start.clear()
    pool.prewarm(["a", "b", "a", "c", "d"])
    await background()
    assert [sandbox.image for sandbox in provider.made] == ["a", "b"]
    assert len(provider.made) == PARALLEL_STARTS
    provider.may_start.set()
    await background()
    assert provider.running() == ["a", "b", "a", "c"]


async def test_spares_that_are_no_longer_expected_make_room(provider: Provider) -> None:
    pool = WarmPool(provider, spares=3)
    pool.prewarm(["a", "a", "b"])
    await background()
    pool.prewarm(["b", "c"])
    await background()
    assert provider.running() == ["b", "c"]


async def test_a_start_uses_up_an_expectation(provider: Provider) -> None:
    pool = WarmPool(provider, spares=2)
    pool.prewarm(["a", "a", "b", "c"])
    await background()
    first = await started(pool)
    await background()
    assert pool.counts()["warm"] == 2
    assert sorted(map(str, provider.running())) == ["a", "a", "b"]
    await first.stop()


async def test_the_last_used_images_are_replaced_without_expectations(provider: Provider) -> None:
    pool = WarmPool(provider, spares=2)
    for image in ("a", "b", "b"):
        await (await started(pool, image)).stop()
        await background()
    assert provider.running() == ["b", "b"]
    await started(pool, "b")
    await background()
    assert provider.running() == ["b", "b", "b"]


async def test_a_spare_has_the_limits_requested_most_often(provider: Provider) -> None:
    pool = WarmPool(provider, spares=2)
    pool.prewarm(["a"])
    await background()
    sandbox = await started(pool, limits=OTHER_LIMITS)
    assert (pool.hits, pool.misses) == (0, 1)
    pool.prewarm(["b"])
    await background()
    assert {one.limits for one in provider.made if one.image == "b"} == {OTHER_LIMITS}
    await sandbox.stop()


async def test_dead_spares_are_replaced_unnoticed(provider: Provider) -> None:
    pool = WarmPool(provider, spares=3)
    pool.prewarm(["a"] * 3)
    await background()
    dead = provider.made[:2]
    for sandbox in dead:
        sandbox.running = False
    await started(pool)
    assert (pool.hits, pool.misses) == (1, 0)
    await background()
    assert all(sandbox.stopped.is_set() for sandbox in dead)
    for sandbox in provider.made:
        sandbox.running = False
    user = await started(pool)
    await user.ping(timeout_s=1)
    assert pool.misses == 1


async def test_a_failed_image_is_logged_and_waits_for_a_successful_start(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    pool = WarmPool(provider, spares=2)
    provider.broken = {"a"}
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            pool.prewarm(["a", "b", "b"])
            await background()
    assert "it is broken" in caplog.text
    assert [one.image for one in provider.made] == ["a", "b"]
    pool.prewarm(["a"] * 5)
    with pytest.raises(SandboxError, match="broken"):
        await started(pool)
    provider.broken = set()
    await background()
    assert provider.running() == []
    await started(pool)
    await background()
    assert provider.running() == ["a"] * 3


async def test_a_failed_image_is_retried_once_it_is_expected_again(provider: Provider) -> None:
    pool = WarmPool(provider, spares=1)
    provider.broken = {"a"}
    pool.prewarm(["a"])
    await background()
    provider.broken = set()
    pool.prewarm(["b"])
    pool.prewarm(["a"])
    await background()
    assert provider.running() == ["a"]


async def test_spares_are_not_started_while_others_are_handed_out(provider: Provider) -> None:
    pool = WarmPool(provider, spares=2)
    pool.prewarm(["a"] * 9)
    await background()
    provider.may_answer.clear()
    starts = [asyncio.create_task(started(pool)) for _ in range(2)]
    await background()
    pool.prewarm(["a"] * 7)
    await background()
    assert len(provider.made) == 2
    provider.may_answer.set()
    await asyncio.gather(*starts)
    await background()
    assert len(provider.made) == 4


async def test_a_start_that_misses_its_stop_is_not_counted(
    provider: Provider,
) -> None:
    pool = WarmPool(provider, spares=0)
    provider.may_start.clear()
    provider.starts_notice_stop = False
    sandbox = pool.create(image="a", limits=LIMITS)
    start = asyncio.create_task(sandbox.start())
    await background()
    await asyncio.gather(sandbox.stop(), start)
    assert pool.counts() == {"running": 0, "warm": 0, "hits": 0, "misses": 0}


async def test_the_pool_refuses_what_its_kind_refuses(provider: Provider) -> None:
    pool = WarmPool(provider, spares=1)
    with pytest.raises(TaskError, match="no such images"):
        pool.check("refused")
    with pytest.raises(TaskError, match="no such images"):
        pool.create(image="refused", limits=LIMITS)


async def test_a_sandbox_is_used_once(provider: Provider) -> None:
    pool = WarmPool(provider, spares=2)
    for _ in range(10):
        sandbox = await started(pool)
        with pytest.raises(SandboxError, match="only once"):
            await sandbox.start()
        await asyncio.gather(sandbox.stop(), sandbox.stop())
        await background()
    assert {one.starts for one in provider.made} == {1}
    assert (pool.running, pool.hits, pool.misses) == (0, 9, 1)


async def test_a_sandbox_that_never_started_can_be_stopped(provider: Provider) -> None:
    sandbox = WarmPool(provider, spares=1).create(image=None, limits=LIMITS)
    with pytest.raises(SandboxError, match="not started"):
        await sandbox.download("file")
    await sandbox.stop()
    with pytest.raises(SandboxError, match="only once"):
        await sandbox.start()
    assert not provider.made


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("way", ["stop", "cancel"])
async def test_ending_a_start_half_way_leaves_nothing(
    provider: Provider, warm: bool, way: str
) -> None:
    pool = WarmPool(provider, spares=1 if warm else 0)
    pool.prewarm(["a"])
    await background()
    provider.may_start.clear()
    provider.may_answer.clear()
    sandbox = pool.create(image="a", limits=LIMITS)
    start = asyncio.create_task(sandbox.start())
    await background()
    if way == "stop":
        await sandbox.stop()
        with pytest.raises(SandboxError, match="stopped"):
            await start
    else:
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not provider.running()
        await sandbox.stop()
    await background()
    assert not provider.running()
    assert (pool.running, pool.hits, pool.misses) == (0, 0, 0)


async def test_closing_ends_running_and_starting_spares(provider: Provider) -> None:
    pool = WarmPool(provider, spares=4)
    pool.prewarm(["a", "a", "b", "b"])
    await background()
    provider.may_start.clear()
    pool.prewarm(["a", "c", "c", "c"])
    await background()
    await pool.close()
    assert not provider.running()
    assert provider.closed
    made = len(provider.made)
    pool.prewarm(["d"])
    provider.may_start.set()
    await background()
    assert (len(provider.made), provider.running()) == (made, [])


async def test_a_pool_without_spares_only_counts(provider: Provider) -> None:
    pool = WarmPool(provider, spares=0)
    pool.prewarm(["a", "b"])
    sandbox = await started(pool)
    await background()
    assert provider.running() == ["a"]
    assert pool.counts() == {"running": 1, "warm": 0, "hits": 0, "misses": 1}
    await sandbox.stop()


async def test_a_spare_that_cannot_be_stopped_is_logged(
    provider: Provider, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        raise KeyError("a bug")

    pool = WarmPool(provider, spares=1)
    pool.prewarm(["a"])
    await background()
    monkeypatch.setattr(provider.made[0], "stop", refuse)
    await pool.close()
    (record,) = caplog.records
    assert record.levelno == logging.CRITICAL
    assert "stop a spare sandbox failed: KeyError('a bug')" in record.getMessage()
