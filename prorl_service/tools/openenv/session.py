"""One session of an OpenEnv server: messages over its WebSocket, one answer to each.

Does not know whose fault a refusal is. Answers are not trusted: they are bounded in size, and one
that is not what the protocol says is an error of the server. Imported late: only services that use
such servers need the library.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from pydantic import JsonValue, ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from prorl_service.errors import ToolServerError, problems_of
from prorl_service.tools.openenv import protocol
from prorl_service.tools.openenv.protocol import INVALID, Away, Observation, Refused
from prorl_service.tools.spec import OpenEnvSpec

PING_INTERVAL_S = 20.0
"""Seconds between pings, which keep connections open while the policy samples."""
PING_TIMEOUT_S = 60.0
"""Seconds without a pong after which a session is lost: an environment may block its server."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds for a server to end a session, and then to close its connection."""


class Session:
    def __init__(self, spec: OpenEnvSpec, connection: ClientConnection) -> None:
        self._spec = spec
        self._connection = connection

    @classmethod
    async def open(cls, spec: OpenEnvSpec) -> Self:
        """Raises `Away`, and `ToolServerError` for a server that refuses the connection."""
        try:
            connection = await connect(
                spec.socket_url,
                additional_headers=spec.headers,
                max_size=protocol.MAX_ANSWER_BYTES,
                open_timeout=protocol.CONNECT_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status >= 500 or status == 429:
                raise Away(f"HTTP status {status}") from error
            raise ToolServerError(
                f"{spec} refuses sessions with HTTP status {status}",
                hint="check its URL and its key",
                retryable=False,
            ) from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise Away(str(error) or type(error).__name__) from error
        return cls(spec, connection)

    async def reset(self, arguments: Mapping[str, JsonValue], *, timeout_s: float) -> Observation:
        """See `_ask`."""
        return await self._ask("reset", arguments, timeout_s)

    async def step(self, action: Mapping[str, JsonValue], *, timeout_s: float) -> Observation:
        """See `_ask`."""
        return await self._ask("step", action, timeout_s)

    async def close(self) -> None:
        """Ends the session. Another may take its place on return, unless the server is busy."""
        with suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._connection.send(json.dumps({"type": "close"}))
                async for _ in self._connection:  # ends once the server has closed
                    pass
        await self._connection.close()

    async def _ask(self, kind: str, data: Mapping[str, JsonValue], timeout_s: float) -> Observation:
        """Raises `Refused`, and `ToolServerError` if the session is lost or the answer is late: the
        session is of no more use then, since answers do not say what they answer."""
        message = json.dumps({"type": kind, "data": data}, ensure_ascii=False)
        try:
            message.encode()
        except UnicodeEncodeError:  # would end the session: the server cannot write its answer
            raise Refused(INVALID, "its text has half of a surrogate pair") from None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._answer(message)
        except TimeoutError:
            raise ToolServerError(
                f"{self._spec} did not answer a {kind} within {timeout_s:g} s",
                hint=f"raise limits.{'init' if kind == 'reset' else 'tool'}_timeout_s",
            ) from None
        except ConnectionClosed as lost:
            raise ToolServerError(
                f"{self._spec} lost the session: {lost}", hint="its log says why"
            ) from lost
        return self._read(answer)

    async def _answer(self, message: str) -> str | bytes:
        with suppress(ConnectionClosed):  # the server's last message may say why
            await self._connection.send(message)
        return await self._connection.recv()

    def _read(self, answer: str | bytes) -> Observation:
        try:
            message = json.loads(answer)
            kind, data = message["type"], message["data"]
            if kind == "error":
                raise Refused(str(data["code"]), _problem(data))
            if kind == "observation":
                return Observation.model_validate(data)
            problem = f"a message of type {kind!r:.40}"
        except ValidationError as error:
            problem = problems_of(error)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}"
        raise ToolServerError(f"{self._spec} broke the protocol: {problem:.1000}", retryable=False)


def _problem(data: Mapping[str, Any]) -> str:
    """Returns the message of an error, and the places of a wrong action."""
    found = [
        f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in data.get("errors", ())
    ]
    return "; ".join(found) or str(data.get("message", "no reason given"))
