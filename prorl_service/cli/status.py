"""`prorl status`: what a service says of itself."""

import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from prorl_service.cli.program import Json
from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.cli.wording import counts, duration, listed, megabytes, plural
from prorl_service.schemas import (
    TERMINAL_STATES,
    BackendState,
    BackendStatus,
    CacheStatus,
    PolicyLease,
    ServiceStatus,
    Stage,
)
from prorl_service.schemas.service import ServiceBehind
from prorl_service.utils.visible import visible_line

NAME_CHARS = 10
BAD = "bold red"
GOOD = "bold green"
SLOW_LOOP_S = 0.5
"""Delay of the event loop that is worth a colour."""


def status(*, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show what a service is doing: its run, stages, engines, sandboxes and failures."""
    with connected(url) as client:
        now = client.status()
    screen = Screen(sys.stdout)
    if as_json:
        screen.line(now.model_dump_json(indent=2))
        return
    head = heading(url, now)
    screen.line(f"{head.name}: {head.text}", head.style)
    for line in lines(now):
        screen.behind(f"{line.name:{NAME_CHARS}} ").line(line.text, line.style)


# --- lines --------------------------------------------------------------------------------------


class Line(NamedTuple):
    name: str
    text: str
    style: str = ""


def heading(url: str, now: ServiceStatus) -> Line:
    """Returns whether it is alive, and what it is."""
    failure = now.failure or now.refused_weights
    problem = visible_line(failure, limit=500) if failure else ""
    state = problem or ("stopping" if now.is_stopping else "healthy")
    style = BAD if problem else "bold yellow" if now.is_stopping else GOOD
    up = f", up {duration(time.time() - now.started_at)}" if now.started_at else ""
    version, run = visible_line(now.version), visible_line(now.run)
    return Line(visible_line(url), f"{state}, prorl {version}, run {run}{up}", style)


def lines(now: ServiceStatus) -> Iterator[Line]:
    model = "not known yet" if now.model is None else visible_line(now.model)
    yield Line("model", f"{model}, policy version {now.policy_version}")
    if now.training is not None:
        yield _trainer(now.training)
    yield Line("agents", listed(map(visible_line, now.agents)))
    live = {one.value: n for one, n in now.rollouts.items() if one not in TERMINAL_STATES}
    yield Line("rollouts", counts(live))
    yield from _stages(now)
    yield from _engines(now)
    yield from _cache(now.cache)
    yield from map(_service, now.services)
    yield from _sandboxes(now)
    yield Line("ended", counts({one.value: n for one, n in now.ended.items()}))
    failures = counts({blame.value: n for blame, n in now.failures.items()})
    yield Line("failures", failures, "" if failures == "none" else "red")
    yield _shelf(now)
    if now.loop_lag_s is not None:
        style = BAD if now.loop_lag_s >= SLOW_LOOP_S else ""
        worst = f"{1000 * now.loop_lag_s:.0f} ms late at worst in the last minute"
        yield Line("loop", worst, style)


def _trainer(lease: PolicyLease) -> Line:
    by = lease.training
    who = f"{visible_line(by.user)}, pid {by.pid} on {visible_line(by.host)}"
    since = duration(time.time() - lease.since)
    heard = f"last heard of {duration(lease.silent_s)} ago" if lease.is_live else "ended"
    return Line("trains for", f"{who}, for {since}, {heard}", "" if lease.is_live else "yellow")


def _stages(now: ServiceStatus) -> Iterator[Line]:
    width = len(str(max((*now.workers.values(), *now.queues.values(), 0))))
    for stage in Stage:
        workers, waiting = now.workers.get(stage), now.queues.get(stage.value)
        parts = []
        if workers is not None:
            parts.append(f"{now.running.get(stage, 0):>{width}} of {workers:>{width}} working")
        if waiting is not None:
            parts.append(f"{waiting:>{width}} waiting")
        if parts:
            yield Line(stage.value.upper(), ", ".join(parts))


def _engines(now: ServiceStatus) -> Iterator[Line]:
    for one in now.backends:
        yield Line("engine", _engine(one), "" if one.state is BackendState.HEALTHY else "red")
    if not now.backends:
        hint = "none; POST one to /v1/backends, or start the service with --backend"
        yield Line("engine", hint, "yellow")


def _engine(one: BackendStatus) -> str:
    limit = "" if one.max_calls is None else f" of {one.max_calls}"
    parts = [
        f"{visible_line(one.backend_id)} {one.state.value}",
        f"version {one.policy_version}",
        f"{one.in_flight}{limit} calls",
        plural(one.sessions, "rollout"),
    ]
    if one.prompt_tokens:
        parts.append(f"{one.cached_tokens / one.prompt_tokens:.0%} of prompts cached")
    if one.gauges is not None and one.gauges.kv_tokens is not None:
        parts.append(f"{one.gauges.kv_use:.0%} of {one.gauges.kv_tokens} tokens of cache in use")
    if one.reason:
        parts.append(visible_line(one.reason))
    return ", ".join(parts)


def _cache(cache: CacheStatus | None) -> Iterator[Line]:
    if cache is not None and cache.held + cache.waiting:
        text = f"full: {cache.held} held before a turn, {cache.waiting} waiting to begin"
        yield Line("cache", text, "yellow")


def _service(one: ServiceBehind) -> Line:
    parts = [f"{visible_line(one.name)} {visible_line(one.url)}", f"{one.load} of {one.slots} busy"]
    if not one.takes_rollouts:
        parts.append("takes no rollouts")
    if one.problem:
        parts.append(visible_line(one.problem))
    return Line("service", ", ".join(parts), "red" if one.problem else "")


def _sandboxes(now: ServiceStatus) -> Iterator[Line]:
    if now.sandboxes is None:
        return
    held = now.sandboxes
    parts = [visible_line(now.sandbox), f"{held.running} running", f"{held.warm} warm"]
    if starts := held.hits + held.misses:
        parts.append(f"{held.hits} of {plural(starts, 'start')} took a warm one")
    yield Line("sandboxes", ", ".join(parts))


def _shelf(now: ServiceStatus) -> Line:
    if now.shelf is None:
        return Line("shelf", "off", "yellow")
    if now.shelf.failure:
        return Line("shelf", visible_line(now.shelf.failure), BAD)
    used, limit = megabytes(now.shelf.bytes), megabytes(now.shelf.limit_bytes)
    return Line("shelf", f"{used} of {limit} MiB")
