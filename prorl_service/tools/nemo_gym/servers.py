"""Resources servers of NeMo Gym, and one rollout's session at one of them.

The operator names the servers; a task only chooses among their names. A session is its cookies:
they travel with each of its requests, over connections that all sessions share. A tool's error is
an answer for the model; a server that is away fails the rollout. Servers are trusted, their answers
are not: an answer is text for the model, or JSON, and is bounded.
"""

import asyncio
import json
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx
from pydantic import JsonValue

from prorl_service.errors import EvaluatorError, ProRLError, ToolServerError
from prorl_service.sandbox.base import ToolResult
from prorl_service.tools.nemo_gym import failures
from prorl_service.tools.nemo_gym.failures import FailureStage, SessionLost, ToolServerAway
from prorl_service.tools.nemo_gym.outages import CONNECT_TIMEOUT_S, Outages
from prorl_service.tools.remote import NamedServers, RemoteTool, TooLong, clipped, read_within
from prorl_service.tools.spec import NemoGymSpec
from prorl_service.utils.tasks import TaskOwner

KEEP_ALIVE_S = 4.0
"""Seconds for which an idle connection can be reused: uvicorn closes it after 5 s by default, and
NeMo Gym's servers after 30 s."""
FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 5.0
MAX_TOOL_BYTES = 16 << 20
"""Maximum size of a tool's answer on the wire; the model sees `tools.remote.MAX_OUTPUT_BYTES`."""
MAX_VERDICT_BYTES = 64 << 20
"""Maximum size of a verdict, which repeats the row and the whole conversation."""

Json = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content: bytes


class NemoGymServers(NamedServers["NemoGymServer"]):
    def __init__(self, specs: Iterable[NemoGymSpec] = ()) -> None:
        super().__init__(NemoGymSpec, {spec.name: NemoGymServer(spec) for spec in specs})


def _client() -> httpx.AsyncClient:
    # The client's own jar would mix the sessions: it takes no cookie.
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(
        cookies=no_cookies,
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),  # each call has a budget
        limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S),
        trust_env=False,  # no proxy of the environment
        verify=ssl.create_default_context(),
    )


class NemoGymServer:
    def __init__(self, spec: NemoGymSpec) -> None:
        self.outages = Outages(spec.url, str(spec))
        self._spec = spec

    async def start(self, background: TaskOwner) -> None:
        """Does not ask the server: one that is down now may be up when its first rollout begins."""
        self._http = _client()
        background.start(self._watch(), name=f"outages of {self}")

    async def _watch(self) -> None:
        async with self._http:
            await self.outages.watch()

    async def seed(self, row: Json, *, timeout_s: float) -> "NemoGymSession":
        """Begins a session, and waits for a server that is away. Raises `TaskError` for a row that
        the server refuses, and `ToolServerError`."""
        delay_s, problem = FIRST_DELAY_S, "it does not answer"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._seed(row)
                    except ToolServerAway as away:
                        problem = away.message
                    await asyncio.sleep(delay_s)
                    delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        except TimeoutError:
            raise ToolServerAway(
                f"no session within {timeout_s:g} s: {problem}",
                hint="is the server up, and `prorl serve --nemo-gym` right?",
            ) from None

    async def _seed(self, row: Json) -> "NemoGymSession":
        session = NemoGymSession(self)
        try:
            answer = await session.post("seed_session", row, "seed", max_bytes=MAX_TOOL_BYTES)
        except TooLong as error:
            detail = failures.described(self, "seed", "agent_request_failed", str(error))
            raise ToolServerError(detail, retryable=False) from None
        if answer.status != httpx.codes.OK:
            raise failures.of_status(self, "seed", answer.status, answer.content)
        return session

    async def post(
        self, path: str, body: Json, stage: FailureStage, cookies: httpx.Cookies, max_bytes: int
    ) -> _Answer:
        """Raises `ToolServerAway` and `TooLong`."""
        url = f"{self._spec.url.rstrip('/')}/{path}"
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._spec.headers}
        request = self._http.build_request("POST", url, content=content, headers=headers)
        cookies.set_cookie_header(request)
        try:
            response = await self._http.send(request, stream=True)
            self.outages.back()
            try:
                cookies.extract_cookies(response)
                return _Answer(response.status_code, await read_within(response, max_bytes))
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            kind = "transport_peer_drop"
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                kind = "transport_unreachable"
                self.outages.away()
            detail = str(error) or type(error).__name__
            raise ToolServerAway(failures.described(self, stage, kind, detail)) from error

    def __str__(self) -> str:
        return str(self._spec)


class NemoGymSession:
    """One rollout's session, begun by `NemoGymServer.seed`."""

    def __init__(self, server: NemoGymServer) -> None:
        self._server = server
        self._outages = server.outages.count
        self._cookies = httpx.Cookies()

    async def post(self, path: str, body: Json, stage: FailureStage, *, max_bytes: int) -> _Answer:
        """Raises `ToolServerAway`, `SessionLost` and `TooLong`."""
        self._check_kept(stage)
        answer = await self._server.post(path, body, stage, self._cookies, max_bytes)
        self._check_kept(stage)
        return answer

    def _check_kept(self, stage: FailureStage) -> None:
        """A server that was restarted takes the session's cookie, but its state is gone: what it
        answers says nothing of the policy."""
        if self._outages != self._server.outages.count:
            detail = "the server was down during the rollout"
            raise SessionLost(failures.described(self._server, stage, "session_lost", detail))

    async def call(self, name: str, arguments: Json, *, timeout_s: float) -> ToolResult:
        """Returns what the server answers, errors included, as NeMo Gym's own agent shows it.
        Raises `ToolServerError`."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.post(name, arguments, "agent", max_bytes=MAX_TOOL_BYTES)
        except TimeoutError:
            return ToolResult(f"[timed out after {timeout_s:g} s]", is_error=True)
        except TooLong as error:
            return ToolResult(f"{name} failed: {error}", is_error=True)
        text = clipped(answer.content.decode(errors="replace"))
        return ToolResult(text, is_error=not httpx.codes.is_success(answer.status))

    async def verify(self, body: Json, *, timeout_s: float) -> dict[str, Any]:
        """Returns the verdict. Raises `EvaluatorError`, `AgentError` and `ToolServerError`, which
        all say that there is none."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.post(
                    "verify", body, "verification", max_bytes=MAX_VERDICT_BYTES
                )
        except TimeoutError:
            detail = f"no verdict within {timeout_s:g} s"
            raise self._no_verdict("transport_timeout", detail, retryable=True) from None
        except TooLong as error:
            raise self._no_verdict("verifier_error", str(error)) from None
        if answer.status != httpx.codes.OK:
            raise failures.of_status(self._server, "verification", answer.status, answer.content)
        try:
            verdict = json.loads(answer.content)
        except ValueError:
            verdict = None
        if not isinstance(verdict, dict):
            raise self._no_verdict("verifier_error", "its answer is not a JSON object")
        if (failure := failures.of_verdict(self._server, verdict)) is not None:
            raise failure
        return verdict

    def _no_verdict(self, kind: str, detail: str, *, retryable: bool = False) -> ProRLError:
        message = failures.described(self._server, "verification", kind, detail)
        return EvaluatorError(message, retryable=retryable)


def tools(
    offered: Sequence[Mapping[str, Any]], session: NemoGymSession | None = None
) -> list[RemoteTool]:
    """`session` None: the tools are only shown."""
    return [
        RemoteTool(one["name"], one["description"], one["parameters"], session) for one in offered
    ]
