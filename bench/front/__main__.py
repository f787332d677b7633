"""Measures what a front costs: `python -m bench.front`, eight minutes.

CPU of the front for a rollout, by its sampled tokens; cores and memory of a front over 256 services
at rest; requests at rest to a service, and from a service to its engine. The services of the first
two are stubs, all traffic is loopback.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import psutil
from starlette.requests import Request
from starlette.responses import Response

from bench import result
from bench.front.drive import GROUP_SIZE, Driver, cpu_s, session
from prorl_service import local
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat

TOKENS = (64, 512, 4096, 32_768)
ROUNDS = 3
GROUPS = {64: 100, 512: 100, 4096: 100, 32_768: 50}
"""Groups of a round, by tokens."""
NODES, IDLE = 4, 256
AGENT = ("--agent", "bench.front.agent:OneCall")
SETTLE_S, REST_S = 10.0, 40.0
REAL = 2
"""Real services that share an engine at rest."""

Row = dict[str, object]


class CountingEngine(StubEngine):
    """Counts all requests."""

    requests = 0

    async def respond(self, request: Request) -> Response:
        self.requests += 1
        return await super().respond(request)


@contextmanager
def stubs(directory: Path, count: int) -> Iterator[str]:
    """Starts stub services, announced in `directory`; yields the URL of one."""
    directory.mkdir(0o700)
    command = [sys.executable, "-m", "bench.front.stubs", str(directory), str(count)]
    process = subprocess.Popen(command)
    try:
        while len(list(directory.glob("*.json"))) < count:
            time.sleep(0.1)
        yield json.loads(next(directory.glob("*.json")).read_text())["url"]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def front(
    directory: Path, engine: StubEngine, count: int, *options: str
) -> Iterator[local.LocalProcess]:
    waiting = ("--wait-for", str(count))
    log = directory.with_suffix(".log")
    with local.front(
        directory, [engine.url], log=log, options=[*AGENT, *waiting, *options]
    ) as running:
        yield running


# --- CPU of a rollout ---------------------------------------------------------------------------


def costs(place: Path, engine: StubEngine) -> list[Row]:
    directory, journal = place / "busy", ("--journal", str(place / "front.sqlite"))
    with stubs(directory, NODES), front(directory, engine, NODES, *journal) as running:
        return [_told(row) for row in asyncio.run(_costs_of(running))]


async def _costs_of(running: local.LocalProcess) -> list[Row]:
    process = psutil.Process(running.pid)
    rounds: dict[int, list[Row]] = {tokens: [] for tokens in TOKENS}
    async with session(running.url) as http:
        await Driver(http, running.url).run(32, 64)
        for _ in range(ROUNDS):
            for tokens, rows in rounds.items():
                rows.append(await _round(Driver(http, running.url), process, tokens))
    return [_middle(rows) for rows in rounds.values()]


async def _round(driver: Driver, process: psutil.Process, tokens: int) -> Row:
    rollouts, before_s = GROUPS[tokens] * GROUP_SIZE, cpu_s(process)
    took_s = await driver.run(GROUPS[tokens], tokens)
    return {
        "tokens": tokens,
        "kb": round(driver.read_bytes / rollouts / 1e3, 1),
        "front_ms": round(1e3 * (cpu_s(process) - before_s) / rollouts, 2),
        "rollouts_per_s": round(rollouts / took_s, 1),
        "rss_mb": round(process.memory_info().rss / 2**20),
        "load_1m": round(os.getloadavg()[0], 1),
    }


def _told(row: Row) -> Row:
    """Prints a row as soon as it is measured: the whole takes minutes."""
    print(json.dumps(row), flush=True)
    return row


def _middle(rounds: list[Row]) -> Row:
    """Returns the round whose CPU time is the median."""
    times = [float(str(row["front_ms"])) for row in rounds]
    return rounds[times.index(median(times))]


# --- at rest ------------------------------------------------------------------------------------


def idle(place: Path, engine: StubEngine) -> Row:
    """Measures a front over stub services that have nothing to do."""
    directory = place / "idle"
    with stubs(directory, IDLE) as url:
        began = time.monotonic()
        with front(directory, engine, IDLE, "--journal", "none") as running:
            start_s = time.monotonic() - began
            time.sleep(SETTLE_S)
            process = psutil.Process(running.pid)
            used_s, asked, began = cpu_s(process), _asked(url), time.monotonic()
            time.sleep(REST_S)
            rested_s = time.monotonic() - began
            return {
                "services": IDLE,
                "start_s": round(start_s, 1),
                "cores": round((cpu_s(process) - used_s) / rested_s, 3),
                "rss_mb": round(process.memory_info().rss / 2**20),
                "requests_per_s_per_service": round((_asked(url) - asked) / rested_s / IDLE, 3),
                "load_1m": round(os.getloadavg()[0], 1),
            }


def _asked(url: str) -> int:
    """Returns the number of requests that the stub services have got, but for this one."""
    with urllib.request.urlopen(f"{url}/report") as report:
        counts: dict[str, int] = json.load(report)
    return sum(count for kind, count in counts.items() if kind != "GET /report")


def engine_requests(place: Path, engine: CountingEngine) -> Row:
    """Measures how often real services ask an engine that a front looks after."""
    directory = place / "real"
    directory.mkdir(0o700)
    with ExitStack() as stack:
        stack.enter_context(front(directory, engine, 0, "--journal", "none"))
        alone = _requests_per_s(engine)
        for name in range(REAL):
            announced = ("--announce", str(directory / f"{name}.json"))
            sandbox = ("--sandbox", "process", "--warm-sandboxes", "0")
            options = [*AGENT, *sandbox, *announced, "--journal", "none"]
            log = place / f"{name}.log"
            stack.enter_context(local.service([], log=log, options=options))
        together = _requests_per_s(engine)
    return {
        "real_services": REAL,
        "engine_requests_per_s_front": round(alone, 2),
        "engine_requests_per_s_per_service": round((together - alone) / REAL, 3),
    }


def _requests_per_s(engine: CountingEngine) -> float:
    time.sleep(SETTLE_S)
    before, began = engine.requests, time.monotonic()
    time.sleep(REST_S)
    return (engine.requests - before) / (time.monotonic() - began)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        build_tiny_model(place / "model")
        end = ChatFormat.load(place / "model").end_of_turn_id
        with CountingEngine(place / "model", lambda _: [5, 6, end]).in_thread() as engine:
            at_rest = _told(idle(place, engine))
            rows = costs(place, engine)
            at_engine = _told(engine_requests(place, engine))
    headline = _headline(rows, at_rest, at_engine)
    result.write("scale_front", [*rows, at_rest, at_engine], headline, module="front")


def _headline(rows: list[Row], at_rest: Row, at_engine: Row) -> Row:
    front_ms = {row["tokens"]: row["front_ms"] for row in rows}
    return {
        "front_ms_per_rollout_64_tokens": front_ms[64],
        "front_ms_per_rollout_32k_tokens": front_ms[32_768],
        "idle_256_cores": at_rest["cores"],
        "idle_256_rss_mb": at_rest["rss_mb"],
        "requests_per_s_per_service_at_rest": at_rest["requests_per_s_per_service"],
        "engine_requests_per_s_per_service_at_rest": at_engine["engine_requests_per_s_per_service"],
    }


if __name__ == "__main__":
    main()
