"""A real service that is kept running: killed, hung, unable to start, and drained."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from prorl_service.ray import keeper
from prorl_service.ray.keeper import Keeper, kept_port
from prorl_service.ray.options import NodeOptions
from prorl_service.ray.plan import ProcessPlan, Report, RunPlan, State

pytestmark = [pytest.mark.processes, pytest.mark.slow]

OPTIONS = ("--sandbox", "process", "--warm-sandboxes", "0")


def service_in(directory: Path, *options: str) -> ProcessPlan:
    serve = (*OPTIONS, *options)
    nodes = NodeOptions(state=directory)
    run = RunPlan(run="r", token="a-token-of-a-run", nodes=nodes, serve=serve, drain_s=1)
    return run.service("n", "127.0.0.1")


@asynccontextmanager
async def kept(plan: ProcessPlan) -> AsyncIterator[Keeper]:
    running = Keeper(plan)
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        await running.stop()
        await task


async def until(running: Keeper, state: State, *, but: int = 0) -> Report:
    """Returns the report of a process in `state` whose id is not `but`."""
    report = await running.report(-1, 0)
    while report.state is not state or (but and report.pid == but):
        report = await running.report(report.number, 60)
    return report


async def test_a_killed_service_returns_at_its_address_and_a_drained_one_does_not(
    tmp_path: Path,
) -> None:
    async with kept(service_in(tmp_path)) as running:
        first = await until(running, State.SERVING)
        os.kill(first.pid, signal.SIGKILL)
        ended = await until(running, State.RESTARTING)
        assert "SIGKILL ended it" in ended.problem
        second = await until(running, State.SERVING, but=first.pid)
        assert (second.url, second.restarts, second.problem) == (first.url, 1, "")
        await running.stop()
        assert (await until(running, State.STOPPED)).pid == 0
        assert not psutil.pid_exists(second.pid)
    assert "run r, journal" in service_in(tmp_path).log.read_text()


async def test_a_hung_service_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "SILENT_S", 1.0)
    monkeypatch.setattr(keeper, "ANSWER_S", 0.5)
    async with kept(service_in(tmp_path)) as running:
        first = await until(running, State.SERVING)
        os.kill(first.pid, signal.SIGSTOP)
        assert "did not answer for" in (await until(running, State.RESTARTING)).problem
        assert not psutil.pid_exists(first.pid)


async def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with kept(service_in(tmp_path, "--run-workers", "none")) as running:
        problem = (await until(running, State.RESTARTING)).problem
    assert problem.startswith("prorl: --run-workers")


async def test_an_interpreter_that_is_missing_is_reported(tmp_path: Path) -> None:
    nodes = NodeOptions(state=tmp_path, python="/no/python")
    run = RunPlan(run="r", token="a-token-of-a-run", nodes=nodes)
    async with kept(run.service("n", "127.0.0.1")) as running:
        problem = (await until(running, State.RESTARTING)).problem
    assert "/no/python" in problem


def test_a_port_is_kept_unless_another_process_has_it(tmp_path: Path) -> None:
    plan = service_in(tmp_path)
    port = kept_port(plan)
    assert kept_port(plan) == port
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        taken = kept_port(plan)
    assert taken != port
    assert kept_port(plan) == taken
