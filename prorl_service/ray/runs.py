"""Runs on a Ray cluster, from outside: started, looked at and stopped.

Blocking, for commands: the cluster's actors do the work.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ray
from ray import exceptions
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from prorl_service.errors import ProRLError
from prorl_service.neighbours import neighbours
from prorl_service.ray import scaler
from prorl_service.ray.members import Actor, first_line
from prorl_service.ray.plan import LOCAL, RunPlan, RunStatus, State, alive
from prorl_service.ray.supervisor import NAMESPACE, Supervisor, actor_name, kept

SUPERVISOR = "supervisor"
LOOK_S, GONE_LOOK_S = 1.0, 0.1
ANSWER_S = 30.0
OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's object store on a machine of its own: HTTP carries the data."""


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connects to the cluster, or starts one for the block on this machine. Raises `ProRLError`."""
    neighbours()["ray"].check("prorl ray")
    named = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    _require_listener(named)
    own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="WARNING",
            **(own if address == LOCAL else {}),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _unreachable(named, error) from None
    try:
        yield
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Raises `ProRLError` if nothing listens at the address; Ray tries for ten minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise _no_cluster(address, str(error)) from None


def _unreachable(address: str, error: Exception) -> ProRLError:
    cause: BaseException | None = error
    while cause is not None:
        if "AuthenticationError" in f"{cause!r} {cause}":
            return ProRLError(
                f"the Ray cluster at {address} takes no connection without its token",
                hint="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH if the token is not in "
                "~/.ray/auth_token",
            )
        cause = cause.__cause__ or cause.__context__
    return _no_cluster(address, first_line(error))


def _no_cluster(address: str, why: str) -> ProRLError:
    return ProRLError(
        f"there is no Ray cluster at {address}: {why}",
        hint="start one with `ray start --head`, name another with --address or RAY_ADDRESS, "
        f"or let `prorl ray up --address {LOCAL}` start one on this machine",
    )


def names() -> list[str]:
    """Returns the names of the cluster's runs."""
    actors = list_named_actors(all_namespaces=True)
    found = (one["name"] for one in actors if one["namespace"] == NAMESPACE)
    ending = actor_name("", SUPERVISOR)
    return sorted(one.removesuffix(ending) for one in found if one.endswith(ending))


def the_run(name: str | None) -> str:
    """Returns the run with that name, or the only one. Raises `ProRLError`."""
    known = names()
    if name is None and len(known) == 1:
        return known[0]
    if name in known and name is not None:
        return name
    listed = ", ".join(known) or "none"
    problem = "there are several runs" if name is None else f"there is no run {name}"
    raise ProRLError(
        f"{'there is no run' if not known else problem} on this cluster; runs: {listed}",
        hint="name one with --run" if known else "start one with `prorl ray up`",
    )


def start(plan: RunPlan) -> None:
    """Starts the run, or does nothing if it is there. Raises `ProRLError` if it is there with
    other options."""
    head = next((one for one in alive(ray.nodes()) if one.is_head), None)
    if head is None:
        raise ProRLError("Ray's head node is not alive")
    strategy = NodeAffinitySchedulingStrategy(head.node_id, soft=False)
    name = actor_name(plan.run, SUPERVISOR)
    actor = kept(Supervisor, name, scheduling_strategy=strategy).remote(plan)
    if _ask(actor.plan.remote) != plan:
        raise ProRLError(
            f"the run {plan.run} is up with other options",
            hint=f"end it first: `prorl ray down --run {plan.run}`; its rollouts are kept",
        )


def wait_until_up(
    run: str, *, services: int, timeout_s: float, report: Callable[[str], None]
) -> RunStatus:
    """Returns when the front and so many services answer. `report` gets progress. Raises
    `ProRLError` after `timeout_s`, with what is known of each."""
    deadline, reported = time.monotonic() + timeout_s, ""
    while True:
        now = status(run)
        serving = sum(one.report.state is State.SERVING for one in now.nodes)
        line = f"front {now.front.state}, {serving} of {services} services answer"
        if line != reported:
            report(line)
            reported = line
        if now.front.state is State.SERVING and serving >= services:
            return now
        if time.monotonic() > deadline:
            raise _not_up(now, line)
        time.sleep(LOOK_S)


def _not_up(now: RunStatus, line: str) -> ProRLError:
    lines = [("front", now.front), *((one.name, one.report) for one in now.nodes)]
    known = "".join(
        f"\n  {name}: {one.state}{f', {one.problem}' if one.problem else ''}" for name, one in lines
    )
    return ProRLError(
        f"{line}{known}",
        hint="`prorl ray status` shows more, and so do the logs of the run on each node; it stays "
        f"up: `prorl ray down --run {now.run}` ends it",
    )


def status(run: str) -> RunStatus:
    """Raises `ProRLError` if its supervisor does not answer."""
    actor = _supervisor(run)
    deadline = time.monotonic() + ANSWER_S
    while (now := _ask(actor.status.remote)) is None:
        if time.monotonic() > deadline:
            raise ProRLError(f"the supervisor of {run} sees no nodes")
        time.sleep(LOOK_S)
    assert isinstance(now, RunStatus)
    return now


def stop(run: str) -> None:
    """Drains the run: its journals keep what has not ended. Raises `ProRLError`."""
    actor = _supervisor(run)
    try:
        ray.get(actor.stop.remote())
    except exceptions.RayError as error:
        raise ProRLError(f"{run} did not end in order: {first_line(error)}") from None
    ray.kill(actor, no_restart=True)
    deadline = time.monotonic() + ANSWER_S
    while run in names() and time.monotonic() < deadline:
        time.sleep(GONE_LOOK_S)
    if not names():
        try:
            ray.kill(ray.get_actor(scaler.NAME, NAMESPACE), no_restart=True)
        except ValueError:  # no run had Ray add nodes
            return


def _supervisor(run: str) -> Actor:
    try:
        return ray.get_actor(actor_name(run, SUPERVISOR), NAMESPACE)
    except ValueError:
        raise ProRLError(f"there is no run {run} on this cluster") from None


def _ask(method: Callable[[], object]) -> object:
    """Returns an actor's answer, also while Ray starts it again. Raises `ProRLError`."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            return ray.get(method(), timeout=ANSWER_S)
        except (exceptions.RayActorError, exceptions.GetTimeoutError) as error:
            if time.monotonic() > deadline or isinstance(error, exceptions.ActorDiedError):
                raise ProRLError(f"the supervisor does not answer: {first_line(error)}") from None
            time.sleep(LOOK_S)
