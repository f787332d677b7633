"""One engine's release of vLLM: refused if it is too old or lacks a flag, bracketed if necessary.

Does not apply to other kinds of engines. See `releases` for what each release has, and `bracket`
for engines whose answers do not say which weights sampled a token.
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
    """`Backend._call`: returns what `read` makes of the answer; raises `BackendError`."""

    def __call__(
        self, method: Method, route: str, *, json: Any = None, read: Callable[[Any], Any] = ...
    ) -> Awaitable[Any]: ...


class Vllm:
    def __init__(
        self,
        url: str,
        call: Call,
        read_label: Callable[[Any], int | None],
        warn: Callable[[str], None],
    ) -> None:
        """`read_label` reads the version of the weights from the answer of `/weight_info`; `warn`
        logs a text once, with the URL in place of its %s."""
        self.bracket: Bracket | None = None
        """Bracket of an engine whose answers have no versions."""
        self._url = url
        self._call = call
        self._read_label = read_label
        self._warn = warn
        self._generates = False
        """True once `GENERATE` was found: vLLM may log an error each time it is tried."""

    async def check(self) -> Release | None:
        """Returns the release; None: not vLLM, or a build without a number. Raises
        `BackendError`."""
        release: Release | None = None
        with suppress(BackendRejected):  # other engines lack this route
            release = await self._call("GET", "/version", read=_read_release)
        if problem := releases.problem(release):
            raise BackendRejected(f"{self._url}: {problem}")
        if warning := releases.warning(release):
            self._warn(f"%s: {warning}")
        if release is None or release >= releases.REPORTS_VERSIONS:
            self.bracket = None
        elif self.bracket is None:
            self.bracket = Bracket(self._label, self.process)
        if release is not None and release >= releases.NEEDS_SCALE_OUT and not self._generates:
            await self._check_route()
        return release

    async def version(self) -> int | None:
        """Returns the version of the weights. Raises `BackendRejected` if it cannot be known."""
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
        except BackendRejected:  # the empty request
            self._generates = True

    async def _label(self) -> int | None:
        version: int | None = await self._call("GET", "/weight_info", read=self._read_label)
        return version

    async def process(self) -> str:
        """Returns an identifier of this start of the engine."""
        process = await self._call("GET", "/server_info?config_format=json", read=_read_process)
        return str(process)


def complete(answer: Any, prompt_length: int, version: int) -> None:
    """Adds what an older release omits from an answer that `version` alone sampled."""
    answer.setdefault("usage", {"prompt_tokens": prompt_length})  # absent before 0.25
    choice = answer["choices"][0]
    span = {"version": str(version), "start": 0, "end": len(choice["token_ids"])}
    choice.setdefault("weight_versions", [span] if choice["token_ids"] else [])


def _read_release(answer: Any) -> Release | None:
    return releases.release_of(answer["version"])


def _read_process(answer: Any) -> str:
    """Returns the instance id, which vLLM derives from the time of its start."""
    process = answer["vllm_config"]["instance_id"]
    if type(process) is not str or not process:
        raise ValueError(f"instance_id {process!r}")
    return process
