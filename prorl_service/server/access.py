"""What callers may do, by role, and the log of what they did to weights, engines and rollouts.

A named caller submits under its own name, and ends only rollouts of its own. Trainers push weights:
they need the role `admin`.
"""

import logging
from collections.abc import Iterable
from typing import Annotated

import orjson
from fastapi import Depends, Request
from starlette.types import ASGIApp

from prorl_service.errors import ProRLError, Unauthorized
from prorl_service.net.callers import OWNER, Caller, Role
from prorl_service.net.credentials import TOKEN_VARIABLE
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.schemas import Group
from prorl_service.server.errors import error_response

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/", "/health", "/docs", "/redoc", "/openapi.json"})
OPEN_FOLDERS = ("/page/", "/static-offline-docs/", "/r/")
"""Beginnings of paths that need no token; gateways of rollouts (`/r/`) have keys of their own."""

UNAUTHORIZED = error_response(
    Unauthorized(
        "this service requires its own bearer token, and the request has none or another's",
        hint=f"pass `token` to the client, or set {TOKEN_VARIABLE}; where the service runs, "
        "`prorl token` prints the token of your own services",
    )
)
LOOKS = ("GET", "HEAD", "OPTIONS")
ASKS = frozenset({"/v1/tasks/check", "/v1/rollouts/stream"})
"""Paths that change nothing, whatever their method."""
SUBMITS = ("/v1/rollouts", "/v1/groups/")
"""Beginnings of the paths of those who submit."""
GATEWAY = "/gateway"
"""End of a path that gives a key of a rollout's model."""


class NotAllowed(ProRLError):
    """The caller's role or name does not suffice."""

    answer_status = 403


class ServiceAccess:
    """What of the service is open, and to whom."""

    def is_open(self, path: str) -> bool:
        """Returns whether the path needs no token, as it reveals nothing: whether the process
        lives, the page that describes the interface, and the page for people, without its data.
        Metrics need it: they name engines, tools and failures, and Prometheus can send a token."""
        return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)

    def refusal(self, caller: Caller | None, method: str, path: str) -> ASGIApp | None:
        if caller is None:
            return UNAUTHORIZED
        if not _may(caller.role, method, path):
            record(caller, f"was refused {method} {path}")
            return error_response(
                NotAllowed(
                    f"{caller} has a token of the role {caller.role.value}, which does not suffice "
                    f"for {method} {path}",
                    hint="ask the service's owner for another: `prorl token add NAME --role ...`",
                )
            )
        return None


def _may(role: Role, method: str, path: str) -> bool:
    if role is Role.ADMIN or path in ASKS:
        return True
    if method in LOOKS and not path.endswith(GATEWAY):
        return True
    return role is Role.SUBMIT and path.startswith(SUBMITS)


def caller_of(request: Request) -> Caller:
    """Returns who calls; the owner, if the service has no tokens."""
    caller: Caller = getattr(request.state, "caller", OWNER)
    return caller


CallerDep = Annotated[Caller, Depends(caller_of)]


def record(caller: Caller, what: str) -> None:
    """Logs what a caller does to weights, engines or rollouts, and what it was refused."""
    log.info("%s %s", caller, what)


def sign(groups: Iterable[Group], caller: Caller) -> None:
    """Gives groups the name of their submitter: that of its token, whatever they say."""
    for group in groups:
        group.client = caller.name or group.client


async def check_own(caller: Caller, group_ids: Iterable[str], journal: Journal) -> None:
    """Raises `NotAllowed` if a group was submitted by another. Unknown groups are nobody's."""
    if caller.role is Role.ADMIN:
        return
    for group_id, request in (await journal.read(tables.find, set(group_ids))).items():
        submitter = orjson.loads(request).get("client")
        if submitter != caller.name:
            raise NotAllowed(
                f"group {group_id} is of {submitter or 'the owner'}, not of {caller}",
                hint="those with the role admin may end others' rollouts",
            )
