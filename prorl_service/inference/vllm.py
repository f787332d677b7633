"""One engine's release of vLLM: refused if it is too old or lacks a flag, bracketed if it must be.

For engines of other kinds nothing of this applies. See `releases` for what each release has, and
`bracket` for engines whose answers do not say which weights sampled what.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol

from prorl_service.errors import BackendRejected
from prorl_service.inference import releases
from prorl_service.inference.answers import PauseMode
from prorl_service.inference.bracket import Bracket
from prorl_service.inference.connections import Method
from prorl_service.inference.releases import Release
from prorl_service.inference.transfer.ways import NotOffered

GENERATE = "/inference/v1/generate"

Pause = Callable[[PauseMode], Awaitable[None]]


class Call(Protocol):
    """`Backend`'s: what `read` makes of the answer; raises `BackendError`."""

    def __call__(
        self, method: Method, route: str, *, json: Any = None, read: Callable[[Any], Any] = ...
    ) -> Awaitable[Any]: ...


class Vllm:
    def __init__(self, url: str, call: Call, read_label: Callable[[Any], int | None]) -> None:
        """`read_label` reads the version of the weights in the answer of `/weight_info`."""
        self.bracket: Bracket | None = None
        """Calls and updates of an engine whose answers have no versions."""
        self._url = url
        self._call = call
        self._read_label = read_label
        self._generates = False
        """Whether the route to generate has been seen: vLLM may log an error when it is tried."""

    async def check(self) -> Release | None:
        """None: not vLLM, or a build without a number. Raises `BackendError`."""
        release: Release | None = None
        with suppress(BackendRejected):  # no other engine has this
            release = await self._call("GET", "/version", read=_read_release)
        if problem := releases.problem(release):
            raise BackendRejected(f"{self._url}: {problem}")
        if release is None or release >= releases.REPORTS_VERSIONS:
            self.bracket = None
        elif self.bracket is None:
            self.bracket = Bracket(self._label, self.process)
        if release is not None and release >= releases.NEEDS_SCALE_OUT and not self._generates:
            await self._check_route()
        return release

    async def version(self) -> int | None:
        """Version of the weights. Raises `BackendRejected` if that cannot be known."""
        if self.bracket is None:
            return await self._label()
        self.bracket.version = await self.bracket.version_now()
        return self.bracket.version

    async def note_process(self) -> None:
        if self.bracket is not None:
            await self.bracket.note_process()

    def updating(self) -> AbstractContextManager[None]:
        return nullcontext() if self.bracket is None else self.bracket.closed()

    async def stop_sampling(self, pause: Pause, mode: PauseMode) -> None:
        if self.bracket is None:
            await pause(mode)
        else:
            await self.bracket.drain(lambda: pause("abort"))

    def took(self, version: int) -> None:
        if self.bracket is not None:
            self.bracket.took(version)

    async def _check_route(self) -> None:
        try:
            await self._call("POST", GENERATE, json={})
        except NotOffered as error:
            raise BackendRejected(f"{self._url}: start vLLM with --enable-scale-out") from error
        except BackendRejected:  # of an empty request
            self._generates = True

    async def _label(self) -> int | None:
        version: int | None = await self._call("GET", "/weight_info", read=self._read_label)
        return version

    async def process(self) -> str:
        """What no other start of the engine has in common with this one."""
        process = await self._call("GET", "/server_info?config_format=json", read=_read_process)
        return str(process)


def complete(answer: Any, prompt_length: int, version: int) -> None:
    """Adds what an older release leaves out of an answer that it sampled with `version` only."""
    answer.setdefault("usage", {"prompt_tokens": prompt_length})  # not before 0.25
    choice = answer["choices"][0]
    span = {"version": str(version), "start": 0, "end": len(choice["token_ids"])}
    choice.setdefault("weight_versions", [span] if choice["token_ids"] else [])


def _read_release(answer: Any) -> Release | None:
    return releases.release_of(answer["version"])


def _read_process(answer: Any) -> str:
    """vLLM makes it of the time of its start."""
    process = answer["vllm_config"]["instance_id"]
    if type(process) is not str or not process:
        raise ValueError(f"instance_id {process!r}")
    return process
