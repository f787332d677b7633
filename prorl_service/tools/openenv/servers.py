"""OpenEnv servers that the operator named, and sessions on them.

A task only chooses among their names. What a server offers is asked once, at the start, so that all
prompts are alike. A rollout waits while its server is full or away, and is not charged for that.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import JsonValue

from prorl_service.errors import InvalidRequest, ProRLError, TaskError, ToolServerError
from prorl_service.tools.openenv.episode import STEP, Episode, Mode
from prorl_service.tools.openenv.protocol import (
    CONNECT_TIMEOUT_S,
    INVALID,
    MAX_ANSWER_BYTES,
    Away,
    Observation,
    Refused,
)
from prorl_service.tools.remote import NamedServers, RemoteTool, read_within
from prorl_service.tools.spec import OpenEnvSpec
from prorl_service.utils.budget import WorkClock
from prorl_service.utils.tasks import TaskOwner

if TYPE_CHECKING:
    from prorl_service.tools.openenv.session import Session

log = logging.getLogger(__name__)

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 2.0
RESERVED = frozenset({"reset", STEP, "state", "close"})
"""Names that OpenEnv keeps for itself."""
LIST_TOOLS = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task wants to use."""

    server: str
    mode: Mode | None = None
    """None: the server's own."""


class OpenEnvServers(NamedServers["OpenEnvServer"]):
    """Each says what it offers when the context is entered, which fails where one does not."""

    def __init__(self, specs: Iterable[OpenEnvSpec] = (), *, wait_s: float = 600.0) -> None:
        """`wait_s`: most seconds that a rollout waits for a server that is full or away."""
        super().__init__(OpenEnvSpec, {spec.name: OpenEnvServer(spec, wait_s) for spec in specs})

    def tools(self, wanted: Wanted, episode: Episode | None = None) -> list[RemoteTool]:
        """Returns the server's tools, for calls in `episode`. Raises `InvalidRequest`."""
        return self[wanted.server].tools(wanted.mode, episode)


class OpenEnvServer:
    """What one server offers, and its sessions."""

    def __init__(self, spec: OpenEnvSpec, wait_s: float) -> None:
        self._spec = spec
        self._wait_s = wait_s
        self._freed = asyncio.Condition()
        """Notified when a session has ended, so that its place is free."""
        self._offers: dict[Mode, list[tuple[str, str, dict[str, Any]]]] = {}
        """Names, descriptions and schemas of tools; the server's own mode comes first."""

    def tools(self, mode: Mode | None, episode: Episode | None) -> list[RemoteTool]:
        own = next(iter(self._offers))
        offered = self._offers.get(mode or own)
        if offered is None:
            raise InvalidRequest(
                f"{self._spec} has no tools of mode {mode!r}", hint=f"its mode is {own!r}"
            )
        return [RemoteTool(*tool, episode) for tool in offered]

    # --- at the start ---------------------------------------------------------------------------

    async def start(self, background: TaskOwner) -> None:
        """Asks what the server offers. Raises `ProRLError`."""
        try:
            async with httpx.AsyncClient(
                base_url=self._spec.url, headers=self._spec.headers, timeout=CONNECT_TIMEOUT_S
            ) as http:
                action = (await _fetch(http, "GET", "/schema"))["action"]
                listed: dict[str, Any] = {"result": {"tools": []}}
                if _calls_tools(action):
                    listed = await _fetch(http, "POST", "/mcp", json=LIST_TOOLS)
            self._offers = _offers(action, listed)
        except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ProRLError(
                f"{self._spec} cannot be used: {error or type(error).__name__}",
                hint="check that it runs and that its URL is that of an OpenEnv server",
            ) from error
        mode, tools = next(iter(self._offers.items()))
        names = ", ".join(name for name, _, _ in tools)
        log.info("%s offers %s (mode %s)", self._spec, names, mode)

    # --- for each rollout -----------------------------------------------------------------------

    @asynccontextmanager
    async def session(
        self, reset: Mapping[str, JsonValue], *, clock: WorkClock, timeout_s: float
    ) -> "AsyncIterator[tuple[Session, Observation]]":
        """Yields a session of an environment that was reset, and its first observation.

        Raises `TaskError` for arguments that the server refuses, and `ToolServerError`.
        """
        session, first = await self._begun(reset, clock, timeout_s)
        try:
            yield session, first
        finally:
            await session.close()
            async with self._freed:
                self._freed.notify()

    async def _begun(
        self, reset: Mapping[str, JsonValue], clock: WorkClock, timeout_s: float
    ) -> "tuple[Session, Observation]":
        now = asyncio.get_running_loop().time
        ends_at, delay_s = now() + self._wait_s, FIRST_DELAY_S
        while True:
            try:
                return await self._begin(reset, clock, timeout_s)
            except Away as away:
                if now() + delay_s > ends_at:
                    raise ToolServerError(
                        f"{self._spec} had no session within {self._wait_s:g} s: {away}",
                        hint="start more of it, or raise --openenv-wait-s",
                    ) from away
            with clock.waiting():
                await self._until_freed(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    async def _begin(
        self, reset: Mapping[str, JsonValue], clock: WorkClock, timeout_s: float
    ) -> "tuple[Session, Observation]":
        """Raises `Away` for a server that is full or away."""
        from prorl_service.tools.openenv.session import Session

        with clock.waiting():
            session = await Session.open(self._spec)
        try:
            return session, await session.reset(reset, timeout_s=timeout_s)
        except Refused as refused:
            await session.close()
            raise self._failure(refused) from refused
        except BaseException:
            await session.close()
            raise

    def _failure(self, refused: Refused) -> Exception:
        problem = str(refused)[:1000]
        if refused.code == "CAPACITY_REACHED":
            return Away(problem)
        if refused.code == INVALID:
            return TaskError(f"{self._spec} refuses the reset: {problem}", hint="see data.reset")
        return ToolServerError(
            f"{self._spec} failed to reset, {refused.code}: {problem}",
            hint="see data.reset and the server's log",
        )

    async def _until_freed(self, longest_s: float) -> None:
        """Waits for the end of one of this service's sessions. Nothing reports the end of others'
        or the return of a server, so that it is asked again after `longest_s`."""
        try:
            async with asyncio.timeout(longest_s), self._freed:
                await self._freed.wait()
        except TimeoutError:
            pass


async def _fetch(http: httpx.AsyncClient, method: str, path: str, **arguments: Any) -> Any:
    """Returns JSON. Raises `httpx.HTTPError` and `ValueError`, also for too much of it."""
    async with http.stream(method, path, **arguments) as response:
        if response.is_error:
            raise ValueError(f"{path} answers HTTP status {response.status_code}")
        return json.loads(await read_within(response, MAX_ANSWER_BYTES))


def _offers(
    action: dict[str, Any], listed: dict[str, Any]
) -> dict[Mode, list[tuple[str, str, dict[str, Any]]]]:
    """Returns the tools of each mode, the server's own mode first. Raises `ValueError`."""
    step = [(STEP, _described(action), _without_metadata(action))]
    if "error" in listed:
        if "tool_name" in action["properties"]:
            raise ValueError(f"it does not list its tools: {listed['error']}")
        return {"step": step}
    tools = [
        (
            str(tool["name"]),
            str(tool.get("description") or ""),
            tool.get("input_schema") or tool.get("inputSchema") or {"type": "object"},
        )
        for tool in listed["result"]["tools"]
    ]
    if reserved := RESERVED.intersection(name for name, _, _ in tools):
        raise ValueError(f"OpenEnv reserves the names of its tools: {', '.join(sorted(reserved))}")
    return {"mcp": tools, "step": step} if tools else {"step": step}


def _calls_tools(action: dict[str, Any]) -> bool:
    """Returns whether steps may be calls of tools, rather than an action of the environment's own:
    an action without fields may stand for any."""
    properties = action.get("properties", {})
    return "tool_name" in properties or not properties.keys() - {"metadata"}


def _described(action: dict[str, Any]) -> str:
    return str(action.get("description") or "Take one step in the environment.")


def _without_metadata(action: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what every action may carry and no environment requires of a policy."""
    required = action.get("required", [])
    properties = {
        name: schema
        for name, schema in action.get("properties", {}).items()
        if name != "metadata" or name in required
    }
    left = {key: value for key, value in action.items() if key not in ("title", "description")}
    return {**left, "properties": properties}
