"""Connections that the programs of all rollouts hold: the service needs descriptors itself."""

from collections.abc import Iterator
from contextlib import contextmanager

from uvicorn.server import ServerState

from prorl_service.net.connections import BoundedConnection
from prorl_service.utils import descriptors

SHARE = 4
"""Programs may have one in so many of the service's descriptors. Its API has half of them."""

Held = set[BoundedConnection]


class ProgramConnections:
    """Once there are too many, the program that holds most loses one; so no program can take what
    others need."""

    def __init__(self, most: int | None = None) -> None:
        self._most = descriptors.most() // SHARE if most is None else most
        self._doors: list[ServerState] = []

    @contextmanager
    def of_one(self) -> Iterator[ServerState]:
        """Returns what keeps the connections to one gateway."""
        door = ServerState()
        self._doors.append(door)
        try:
            yield door
        finally:
            self._doors = [one for one in self._doors if one is not door]

    def make_room(self, new: BoundedConnection) -> None:
        """Ends a connection if there are too many with this new one."""
        held = [_held(door) for door in self._doors]
        if sum(len(one) for one in held) <= self._most:
            return
        most = max(held, key=lambda one: (len(one), new in one))
        (new if new in most else min(most, key=lambda one: one.is_busy)).transport.abort()


def _held(door: ServerState) -> Held:
    return {
        one
        for one in door.connections
        if isinstance(one, BoundedConnection) and not one.transport.is_closing()
    }
