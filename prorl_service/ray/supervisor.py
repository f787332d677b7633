"""The supervisor of one run: a service on each node for rollouts, and a front that knows them.

An actor on Ray's head node, which has the front, too. What it knows it learns from Ray and from its
actors, so that it continues when Ray has started it again; services and front work meanwhile.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from prorl_service.ray import scaler
from prorl_service.ray.actors import KeepingActor
from prorl_service.ray.demand import FrontWatch
from prorl_service.ray.fleet import Directory, Fleet
from prorl_service.ray.members import Actor, Member, first_line
from prorl_service.ray.plan import FRONT, SERVICES, Node, RunPlan, RunStatus, State, alive, chosen
from prorl_service.utils import logs
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)

NAMESPACE = "prorl"
LOOK_S = 1.0
"""Seconds between looks at Ray's nodes, of which Ray reports no events."""
ASK_S = 2.0
"""Seconds between questions to the front."""


def actor_name(run: str, what: str) -> str:
    return f"{run}:{what}"


class Supervisor:
    def __init__(self, plan: RunPlan) -> None:
        """Must be called in a running event loop, as Ray does for actors with coroutines."""
        logs.configure("text")
        self._plan = plan
        self._directory = Directory(plan.directory() / SERVICES)
        self._fleet = Fleet(self)
        self._front: Member | None = None
        self._scaler: Actor | None = None
        self._watch = FrontWatch(plan.token, plan.nodes, plan.slots)
        self._is_stopping = False
        self._background = TaskOwner()
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def plan(self) -> RunPlan:
        return self._plan

    async def status(self) -> RunStatus | None:
        """Returns None until it has looked around."""
        if self._front is None:
            return None
        return RunStatus(
            run=self._plan.run,
            front=self._front.report,
            nodes=self._fleet.statuses(self._watch.behind),
            others=len(self._fleet.spare),
            wanted=self._watch.wanted,
            running=self._watch.running,
            queued=self._watch.queued,
            is_stopping=self._is_stopping,
        )

    async def stop(self) -> None:
        """Drains the front, then the services. Returns when all have ended."""
        self._is_stopping = True
        await self._running
        await self._request(0)
        members = self._fleet.members
        if self._front is not None:
            await self._front.drain()
        await asyncio.gather(*(one.drain() for one in members))
        for one in (self._front, *members):
            if one is not None:
                ray.kill(one.actor, no_restart=True)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as work:
                work.create_task(self._watch_nodes())
                work.create_task(self._watch_front())
        except BaseException:
            log.critical("the supervisor ends, for Ray to start it again", exc_info=True)
            os._exit(1)

    async def _watch_nodes(self) -> None:
        while not self._is_stopping:
            found = await asyncio.to_thread(ray.nodes)
            if self._front is None:
                self._front = self._start_front(alive(found))
            wanted = self._watch.wanted
            self._fleet.look(chosen(found, self._plan.nodes), wanted)
            if wanted is not None:
                self._fleet.drain(wanted, self._watch.behind)
            self.announce()
            await asyncio.sleep(LOOK_S)

    async def _watch_front(self) -> None:
        while not self._is_stopping:
            if self._front is not None and self._front.report.state is State.SERVING:
                await self._watch.ask(self._front.report.url)
            await self._request(self._watch.wanted)
            await asyncio.sleep(ASK_S)

    def announce(self) -> None:
        self._directory.announce(self._fleet.members)

    def _start_front(self, nodes: Sequence[Node]) -> Member:
        """Starts it on this node: it reads the directory in which services are announced."""
        own = ray.get_runtime_context().get_node_id()
        node = next(one for one in nodes if one.node_id == own)
        actor = self._kept(node, FRONT).remote(self._plan, FRONT, node.address)
        member = Member(replace(node, name=FRONT), actor, lambda: None)
        self._background.run_once(member.follow(), name="follow the front")
        return member

    def start_service(self, node: Node) -> Actor:
        nodes = self._plan.nodes
        needs = {"num_cpus": nodes.cpus, "resources": nodes.resources()}
        kept = self._kept(node, _service(node), **needs)
        return kept.remote(self._plan, node.name, node.address)

    def find_service(self, node: Node) -> Actor | None:
        try:
            return ray.get_actor(actor_name(self._plan.run, _service(node)), NAMESPACE)
        except ValueError:
            return None

    def _kept(self, node: Node, what: str, **needs: Any) -> Any:
        """Returns what makes the actor `what` on `node`, or finds it if there is one."""
        strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        name = actor_name(self._plan.run, what)
        return kept(KeepingActor, name, scheduling_strategy=strategy, **needs)

    async def _request(self, count: int | None) -> None:
        """Asks Ray's autoscaler for `count` nodes, if this run has it add and remove nodes."""
        if count is None or self._plan.nodes.max_nodes is None:
            return
        if self._scaler is None:
            self._scaler = kept(scaler.Scaler, scaler.NAME).remote()
        try:
            await self._scaler.request.remote(self._plan.run, self._plan.nodes.resources(), count)
        except exceptions.RayError as error:
            self._scaler = None  # it may have ended with the cluster's last other run
            log.warning("Ray's autoscaler cannot be asked for nodes: %s", first_line(error))


def kept(kind: type, name: str, **options: Any) -> Any:
    """Returns what makes the actor `name`, which Ray keeps alive, or finds it if there is one."""
    return ray.remote(kind).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        **{"num_cpus": 0, **options},
    )


def _service(node: Node) -> str:
    return f"node:{node.node_id}"
