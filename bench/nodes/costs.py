"""CPU of a front for a rollout, by its sampled tokens, and of one over 256 services at rest.

The services are stubs, all traffic is loopback.
"""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench.frame import Found, Row, alternate, middle
from bench.load.ours import cpu_s
from bench.nodes.agent import AGENT, GROUP_SIZE, group, run
from bench.nodes.engine import waiting_engine
from prorl_service import local
from prorl_service.client import AsyncRolloutClient

GROUPS = {64: 100, 512: 100, 4096: 100, 32_768: 50}
"""Groups of a round, by tokens."""
ROUNDS, AT_ONCE = 3, 16
QUICK_GROUPS = 4
NODES, IDLE, QUICK_IDLE = 4, 256, 8
SETTLE_S, REST_S, QUICK_REST_S = 10.0, 40.0, 5.0
PROMPT = "word " * 80


@contextmanager
def front(count: int, *options: str) -> Iterator[tuple[local.LocalProcess, str]]:
    """Starts a front over so many stub services; yields it, and the URL of one of them."""
    with TemporaryDirectory(prefix="prorl-bench-") as name, waiting_engine(Path(name)) as engine:
        directory = Path(name) / "services"
        directory.mkdir(0o700)
        command = [sys.executable, "-m", "bench.nodes.stubs", str(directory), str(count)]
        stubs = subprocess.Popen(command)
        try:
            while len(files := list(directory.glob("*.json"))) < count:
                time.sleep(0.1)
            url = json.loads(files[0].read_text())["url"]
            given = [*AGENT, "--wait-for", str(count), *options]
            log = Path(name) / "front.log"
            with local.front(directory, [engine.url], log=log, options=given) as running:
                yield running, url
        finally:
            stubs.terminate()
            stubs.wait()


def costs(quick: bool) -> Found:
    with TemporaryDirectory() as name, front(NODES, "--journal", f"{name}/j.sqlite") as (at, _):
        asyncio.run(_run(at, 32, 64))  # to warm up
        turns = {str(tokens): partial(_round, at, tokens, quick) for tokens in GROUPS}
        found = alternate(turns, 1 if quick else ROUNDS)
    rows = [middle(own, "front_ms") for own in found.values()]
    headline = {
        "front_ms_per_rollout_64_tokens": rows[0]["front_ms"],
        "front_ms_per_rollout_32k_tokens": rows[-1]["front_ms"],
    }
    return Found(rows, headline)


def _round(at: local.LocalProcess, tokens: int, quick: bool, _: int) -> Row:
    groups = QUICK_GROUPS if quick else GROUPS[tokens]
    before_s, began = cpu_s(at.pid), time.perf_counter()
    read_bytes = asyncio.run(_run(at, groups, tokens))
    took_s, rollouts = time.perf_counter() - began, groups * GROUP_SIZE
    return {
        "tokens": tokens,
        "kb": round(read_bytes / rollouts / 1e3, 1),
        "front_ms": round(1e3 * (cpu_s(at.pid) - before_s) / rollouts, 2),
        "rollouts_per_s": round(rollouts / took_s, 1),
    }


async def _run(at: local.LocalProcess, groups: int, tokens: int) -> int:
    """Runs that many groups; returns the bytes of their content."""
    sizes: list[int] = []
    async with AsyncRolloutClient(at.url) as client:
        waiting = (group(1, tokens, PROMPT) for _ in range(groups))
        await run(client, waiting, AT_ONCE, sizes)
    return sum(sizes)


def idle(quick: bool) -> Found:
    """Measures a front over stub services that have nothing to do."""
    count = QUICK_IDLE if quick else IDLE
    with front(count, "--journal", "none") as (at, url):
        time.sleep(QUICK_REST_S if quick else SETTLE_S)
        used_s, asked, began = cpu_s(at.pid), _asked(url), time.monotonic()
        time.sleep(QUICK_REST_S if quick else REST_S)
        rested_s = time.monotonic() - began
        row = {
            "services": count,
            "cores": round((cpu_s(at.pid) - used_s) / rested_s, 3),
            "rss_mb": round(psutil.Process(at.pid).memory_info().rss / 2**20),
            "requests_per_s_per_service": round((_asked(url) - asked) / rested_s / count, 3),
        }
    return Found([row], {"idle_256_cores": row["cores"], "idle_256_rss_mb": row["rss_mb"]})


def _asked(url: str) -> int:
    """Returns the number of requests that the stub services have got, but for this one."""
    with urllib.request.urlopen(f"{url}/report") as report:
        counts: dict[str, int] = json.load(report)
    return sum(count for kind, count in counts.items() if kind != "GET /report")
