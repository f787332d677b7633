"""The services of a run: which nodes have one, which get one, which are drained, and which are
announced."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import ray

from prorl_service.front.discovery import (
    DIRECTORY_MODE,
    FILE_MODE,
    SUFFIX,
    Announced,
    Announcements,
)
from prorl_service.ray.members import Actor, Member
from prorl_service.ray.plan import Node, NodeStatus, State
from prorl_service.schemas import ServiceBehind
from prorl_service.utils.files import write_whole
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)

CROWDED_S = 20.0
"""Seconds for which a service waits for room on a node that another run has filled, until a node
elsewhere is tried."""


class ServiceActors(Protocol):
    def start_service(self, node: Node) -> Actor:
        """Makes the actor of a node, or finds it."""

    def find_service(self, node: Node) -> Actor | None: ...

    def announce(self) -> None:
        """Called whenever a service has changed."""


class Fleet:
    def __init__(self, actors: ServiceActors) -> None:
        self._actors = actors
        self._members: dict[str, Member] = {}
        """Services by id of their node."""
        self._is_new = True
        self._crowded: set[str] = set()
        """Ids of nodes that had no room for a service of this run."""
        self._background = TaskOwner()
        self.spare: list[Node] = []
        """Nodes for rollouts that have no service."""

    @property
    def members(self) -> list[Member]:
        return sorted(self._members.values(), key=lambda one: one.node.name)

    def look(self, nodes: Sequence[Node], wanted: int | None) -> None:
        """Starts and drains services, so that `wanted` of the nodes have one; None: all."""
        here = {node.node_id for node in nodes}
        for node_id, member in list(self._members.items()):
            if node_id not in here or member.is_gone:
                member.is_gone = True
                del self._members[node_id]
            elif member.report.state is State.STOPPED:  # its node is free once the actor is gone
                ray.kill(member.actor, no_restart=True)
        if self._is_new:  # an earlier supervisor may have started services
            for node in nodes:
                if (actor := self._actors.find_service(node)) is not None:
                    self._follow(node, actor)
        self._is_new = False
        self._crowded &= here
        self.spare = [node for node in nodes if node.node_id not in self._members]
        if wanted is None:
            self._start(len(self.spare))
        else:
            self._leave_crowded()
            working = [one for one in self._members.values() if not one.is_draining]
            self._start(wanted - len(working))

    def drain(self, count: int, behind: Mapping[str, ServiceBehind]) -> None:
        """Drains the idlest services until `count` are left, and gives their nodes back."""
        working = [one for one in self._members.values() if not one.is_draining]
        loads = {name: one.load for name, one in behind.items()}
        idlest = sorted(working, key=lambda one: loads.get(one.node.name, 0))
        for member in idlest[: max(0, len(working) - count)]:
            log.info("%s is drained: fewer nodes are wanted", member.node.name)
            self._background.run_once(_remove(member), name=f"drain {member.node.name}")

    def statuses(self, behind: Mapping[str, ServiceBehind]) -> list[NodeStatus]:
        """`behind`: what the front says of its services, by name."""
        return [_status(one, behind.get(one.node.name)) for one in self.members]

    def _start(self, count: int) -> None:
        inviting = sorted(self.spare, key=lambda node: node.node_id in self._crowded)
        for node in inviting[: max(0, count)]:
            self.spare.remove(node)
            self._follow(node, self._actors.start_service(node))

    def _follow(self, node: Node, actor: Actor) -> None:
        member = Member(node, actor, self._actors.announce)
        self._members[node.node_id] = member
        self._background.run_once(member.follow(), name=f"follow {node.name}")

    def _leave_crowded(self) -> None:
        """Gives up nodes on which services wait for room, if there are others."""
        fresh = [node for node in self.spare if node.node_id not in self._crowded]
        waiting = [one for one in self._members.values() if one.waited_s > CROWDED_S]
        for member in waiting[: len(fresh)]:
            self._crowded.add(member.node.node_id)
            ray.kill(member.actor, no_restart=True)
            del self._members[member.node.node_id]
            self.spare.append(member.node)


async def _remove(member: Member) -> None:
    await member.drain()
    ray.kill(member.actor, no_restart=True)


def _status(member: Member, known: ServiceBehind | None) -> NodeStatus:
    node = member.node
    return NodeStatus(
        name=node.name,
        node_id=node.node_id,
        address=node.address,
        report=member.report,
        load=0 if known is None else known.load,
        slots=0 if known is None else known.slots,
        takes_rollouts=known is not None and known.takes_rollouts,
    )


class Directory:
    """The front's directory of services, which its supervisor writes: no other node need see it."""

    def __init__(self, path: Path) -> None:
        """Starts with what an earlier supervisor announced. Raises `OSError`."""
        path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        self._path = path
        self._announced = dict(Announcements(path).look())

    def announce(self, members: Sequence[Member]) -> None:
        """Announces services that have answered, until they are drained or their node is gone.

        A service that is away for a moment stays: the front knows how to wait. Raises `OSError`.
        """
        wanted: dict[str, str] = {}
        for one in members:
            name, is_serving = one.node.name, one.report.state is State.SERVING
            known = one.report.url if is_serving else self._announced.get(name)
            if known and not one.is_draining and not one.is_gone:
                wanted[name] = known
        if wanted == self._announced:
            return
        for file in self._path.glob(f"*{SUFFIX}"):
            if file.stem not in wanted:
                file.unlink(missing_ok=True)
        for name, url in wanted.items() - self._announced.items():
            text = Announced(url=url).model_dump_json()
            write_whole(self._path / f"{name}{SUFFIX}", text, mode=FILE_MODE)
        self._announced = wanted
