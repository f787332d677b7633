"""One inference engine over HTTP: vLLM, or our reference engine, which has the same routes.

Every answer is checked here, so the rest of the service can trust a `Generation`. Knows nothing of
other engines, retries or health over time: the pool does, and owns the connections.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, BinaryIO, cast

import orjson

from prorl_service.errors import (
    BackendError,
    BackendLent,
    BackendRejected,
    BackendUnavailable,
    WeightsRejected,
)
from prorl_service.inference import logprobs
from prorl_service.inference.answers import (
    INT32_END,
    SILENT_STATUSES,
    EngineInfo,
    PauseMode,
    error_of,
    read_generation,
    read_logprobs,
    read_models,
    read_pause,
    read_version,
    reason_of,
    require,
)
from prorl_service.inference.base import Generation
from prorl_service.inference.connections import Answer, Connections, Method, Progress, Unreachable
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.inference.releases import Release
from prorl_service.inference.transfer.intake import ANY_RANK, Intake, Way, of_vllm
from prorl_service.inference.transfer.ways import (
    Broadcast,
    Fetch,
    FetchAdapter,
    Push,
    Receive,
    Reload,
    Transfer,
    WeightDirectory,
    WeightSource,
)
from prorl_service.inference.vllm import GENERATE, Vllm, complete
from prorl_service.schemas import LogprobsMode, Sampling

log = logging.getLogger(__name__)

UNKNOWN_MODE = (
    "the logprobs of %s may not be of the distribution that it samples from: it does not say, and "
    "a probe shows nothing. If it is vLLM, start it with `--logprobs-mode processed_logprobs`"
)
NO_SEEDS = "%s gets no seeds: vLLM on a CPU may end at a seeded call with a long prompt"
RESUME_TIMEOUT_S = 30.0
INTAKE_TIMEOUT_S = 60.0


class Backend:
    """The engine at `url`.

    Every method raises `BackendError`: `BackendUnavailable` if the engine is busy or out of reach,
    `BackendRejected` if it refuses the request itself.
    """

    def __init__(self, url: str, connections: Connections, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.api_key = api_key
        """Bearer token of every call to the engine."""
        self.backend_id = self.url.split("://", 1)[1]
        self.vocab_size = INT32_END
        """Bound of the ids in answers, lowered once the model is known."""
        self._connections = connections
        self.logprobs_mode: LogprobsMode | None = None
        """Mode that was seen; None until `check_logprobs`."""
        self._warned: set[str] = set()
        self._model: str | None = None
        """Name of the model in calls; None: the engine's default."""
        self._intake: Intake | None = None
        self._vllm = Vllm(self.url, self._call, read_version, self._warn)

    @property
    def needs_probes(self) -> bool:
        """True if the versions of its tokens are known only by asking: see `bracket`."""
        return self._vllm.bracket is not None

    async def describe(self, *, timeout_s: float = 60) -> EngineInfo:
        """Asks what the engine serves, and with which weights."""
        async with self._budget(timeout_s):
            info: EngineInfo = await self._call("GET", "/v1/models", read=read_models)
            if not info.is_ours:
                info = replace(info, release=await self._vllm.check())
            # vLLM has these routes in its development mode only.
            with suppress(BackendRejected):
                info = replace(info, policy_version=await self._vllm.version())
            with suppress(BackendRejected):
                info = await self._call("GET", "/is_paused", read=partial(read_pause, info))
        return info

    async def is_healthy(self, *, timeout_s: float) -> bool:
        """Returns whether the engine's process is alive; a paused engine is healthy, too."""
        try:
            async with self._budget(timeout_s):
                await self._call("GET", "/health")
        except BackendError:
            return False
        return True

    async def intake(self, info: EngineInfo) -> Intake:
        """Returns what the engine can be given. Asks once: vLLM inspects its whole machine."""
        if self._intake is None and info.is_ours:
            mode = info.logprobs_mode
            self._intake = Intake(Way.PUSHED, info.dtype, ANY_RANK, logprobs_mode=mode)
        elif self._intake is None:
            async with self._budget(INTAKE_TIMEOUT_S):
                self._intake = await self._intake_of_vllm(info.release)
        return self._intake

    async def _intake_of_vllm(self, release: Release | None) -> Intake:
        route, read = "/server_info?config_format=json", partial(of_vllm, release=release)
        try:
            intake: Intake = await self._call("GET", route, read=read)
        except BackendRejected:
            return Intake()
        if intake.way is not Way.BROADCAST:
            return intake
        workers = await self._call(
            "GET", "/get_world_size", read=lambda one: int(one["world_size"])
        )
        return replace(intake, workers=workers)

    def forget_intake(self) -> None:
        """Has the next call ask again: the engine may restart with other options."""
        self._intake = self.logprobs_mode = None

    async def check_logprobs(self, info: EngineInfo, *, may_probe: bool) -> None:
        """Learns the mode of the logprobs, once: asks or, if the engine does not say, has it sample
        a few tokens. Raises `BackendRejected` if it is another than training needs."""
        if self.logprobs_mode is not None:
            return
        mode = (await self.intake(info)).logprobs_mode or info.logprobs_mode
        if mode is not None:
            logprobs.require_processed(self.url, mode)
            self.logprobs_mode = "processed"
        elif may_probe:
            with suppress(BackendLent):
                self.logprobs_mode = await logprobs.probed(self.url, self._probe, self.vocab_size)
        if self.logprobs_mode == "unknown":
            self._warn(UNKNOWN_MODE)

    def _warn(self, message: str) -> None:
        """Logs a message about this engine once."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, self.url)

    async def _probe(self, prompt: list[int], temperature: float) -> list[float]:
        """Returns the logprobs of some tokens; none if the engine refuses the call."""
        params = {
            "temperature": temperature,
            "top_p": 1.0,
            "top_k": 0,
            "max_tokens": logprobs.PROBED_TOKENS,
            "logprobs": 0,
            "detokenize": False,
        }
        body = {"token_ids": prompt, "sampling_params": params}
        if self._model is not None:
            body["model"] = self._model
        headers = {"X-Session-ID": "prorl-probe"}
        found: list[float] = []
        with suppress(BackendRejected):
            async with self._budget(INTAKE_TIMEOUT_S):
                found = await self._call(
                    "POST", GENERATE, json=body, headers=headers, read=read_logprobs
                )
        return found

    async def generate(
        self,
        prompt: EncodedPrompt,
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
        stop_token_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
    ) -> Generation:
        """Waits as long as the model generates. If cancelled, the engine aborts the call."""
        params = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop_token_ids": stop_token_ids,
            "logprobs": 0,
            "detokenize": bool(stop),  # vLLM needs the text to find a stop in it
            **({"stop": stop} if stop else {}),
        }
        if seed is not None and self._intake is not None and not self._intake.takes_seeds:
            self._warn(NO_SEEDS)
            seed = None
        sample = partial(self._sample, params, session_id)
        if self._vllm.bracket is None:
            return await sample(prompt, max_tokens, seed, None)
        return await self._vllm.bracket.generate(sample, prompt, max_tokens, seed)

    async def _sample(
        self,
        params: Mapping[str, Any],
        session_id: str,
        prompt: EncodedPrompt,
        max_tokens: int,
        seed: int | None,
        version: int | None,
    ) -> Generation:
        """Makes one call. `version`: that of all tokens; None if the answer has one for each."""
        body = {
            "token_ids": orjson.Fragment(prompt.json()),
            "sampling_params": {"max_tokens": max_tokens, "seed": seed, **params},
        }
        if self._model is not None:
            body["model"] = self._model

        def read(answer: Any) -> Generation:
            if version is not None:
                complete(answer, len(prompt), version)
            generation = read_generation(answer, len(prompt), self.backend_id)
            require(len(generation.token_ids) <= max_tokens, "more ids than asked for")
            require(max(generation.token_ids, default=0) < self.vocab_size, "unknown ids")
            if self.logprobs_mode != "processed":
                return replace(generation, logprobs_mode="unknown")
            return generation

        headers = {"X-Session-ID": session_id}
        answer = await self._call("POST", GENERATE, json=body, headers=headers, read=read)
        return cast("Generation", answer)

    # --- weights --------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode, *, timeout_s: float) -> None:
        """Returns once sampling has stopped. `keep` freezes calls, `wait` lets them end."""
        async with self._budget(timeout_s):
            await self._call("POST", f"/pause?mode={mode}&clear_cache=true")

    async def resume(self, *, timeout_s: float) -> None:
        async with self._budget(timeout_s):
            await self._call("POST", "/resume")

    async def join_group(self, init_info: Mapping[str, Any], *, timeout_s: float) -> None:
        """Has all workers of vLLM join a trainer's NCCL group."""
        async with self._budget(timeout_s):
            route = "/init_weight_transfer_engine"
            await self._call("POST", route, json={"init_info": init_info})

    async def process(self, *, timeout_s: float = INTAKE_TIMEOUT_S) -> str:
        """Returns an identifier of this start of vLLM."""
        async with self._budget(timeout_s):
            return await self._vllm.process()

    async def load_weights(self, source: WeightSource, version: int, *, timeout_s: float) -> None:
        """Pauses, loads, labels with `version`, resumes. Calls in flight continue with the new
        weights, or are aborted where an adapter replaces a whole model or the other way round.

        `timeout_s` bounds each step, and each silence while weights are sent. Raises
        `BackendRejected` if the engine refuses the weights before it has touched its own, which
        continue to serve. A later failure leaves the engine paused, since its tokens could not be
        trusted: it must be restarted. Only new weights resume an engine that was found paused.
        """
        before = await self.describe(timeout_s=timeout_s)
        transfer = await self._transfer(source, before)
        async with self._budget(timeout_s) as begin_again:
            await transfer.offer(begin_again)
            await self._vllm.note_process()
        with self._vllm.updating():
            await self._load(transfer, before, version, timeout_s)

    async def _load(
        self, transfer: Transfer, before: EngineInfo, version: int, timeout_s: float
    ) -> None:
        # A frozen call would continue with the model that it named.
        mode: PauseMode = "keep" if transfer.model == self._model else "abort"
        try:
            async with self._budget(timeout_s):
                await self._vllm.stop_sampling(partial(self.pause, timeout_s=timeout_s), mode)
            async with self._budget(timeout_s) as begin_again:
                await transfer.send(begin_again)
        except BaseException:
            await self._go_on_as(before)
            raise
        try:
            async with self._budget(timeout_s):
                await transfer.swap(str(version))
                if transfer.model is None and not before.is_ours:
                    await self._unload(before.adapters)
        except WeightsRejected:
            await self._go_on_as(before)
            raise
        except BackendError as error:
            raise BackendError(
                f"{self.url} may have lost its weights and stays paused: {error}",
                hint="restart the inference engine",
                retryable=False,
            ) from error
        self._model = transfer.model
        self._vllm.took(version)
        await self.resume(timeout_s=timeout_s)

    async def _transfer(self, source: WeightSource, engine: EngineInfo) -> Transfer:
        """Raises `BackendRejected` if the engine cannot take the weights."""
        intake = await self.intake(engine)
        if isinstance(source, WeightDirectory):
            whole = await asyncio.to_thread(source.only_file)
            if whole is None or intake.way is not Way.FETCHED:
                return Reload(self._call, source)
            return Fetch(self._call, whole, self.url)
        if isinstance(source, Broadcast):
            return Receive(self._call, source)
        intake.require_files(self.url)
        if source.is_adapter:
            intake.require_adapters(self.url)
        if engine.is_ours:
            return Push(self._call, source)
        if source.is_adapter:
            return FetchAdapter(self._call, source.path, self.url, engine.adapters)
        return Fetch(self._call, source.path, self.url)

    async def _unload(self, adapters: Iterable[str]) -> None:
        """Unloads adapters whose base model was replaced."""
        for name in adapters:
            await self._call("POST", "/v1/unload_lora_adapter", json={"lora_name": name})

    async def _go_on_as(self, before: EngineInfo) -> None:
        if before.is_paused:
            return
        with suppress(BackendError):  # the caller should see the first error
            await self.resume(timeout_s=RESUME_TIMEOUT_S)

    # --- one call -------------------------------------------------------------------------------

    async def _call(
        self,
        method: Method,
        route: str,
        *,
        json: Any = None,
        data: BinaryIO | bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        on_progress: Progress = lambda: None,
        read: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Returns what `read` makes of the answer's JSON, or of None if the answer is empty."""
        if json is not None:
            data = orjson.dumps(json)
            headers = {**headers, "Content-Type": "application/json"}
        if self.api_key is not None:
            headers = {**headers, "Authorization": f"Bearer {self.api_key}"}
        url = self.url + route
        try:
            answer = await self._connections.request(
                method, url, headers=headers, body=data, on_progress=on_progress
            )
        except Unreachable as error:
            raise BackendUnavailable(f"{method} {url}: {error}") from error
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:  # engines do not redirect
            raise self._failure(method, url, answer)
        if read is None:
            return None
        try:
            return read(orjson.loads(answer.content) if answer.content else None)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise BackendError(f"{url} sent an invalid answer: {error!r}") from error

    def _failure(self, method: Method, url: str, answer: Answer) -> BackendError:
        """Returns the error for a refusal, with the engine's reason for a POST only. A host gets no
        POST before its answers to GET have shown that it is an engine, so callers never see texts
        of other hosts."""
        kind, reason = reason_of(answer.content)
        if self.api_key:
            reason = reason.replace(self.api_key, "***")
        log.debug("%s %s: %d %s", method, url, answer.status, reason)
        is_silent = method == "GET" or answer.status in SILENT_STATUSES
        text = f"{method} {url}: {answer.status} {'' if is_silent else reason}".rstrip()
        return error_of(text, answer.status, kind)

    @asynccontextmanager
    async def _budget(self, timeout_s: float) -> AsyncIterator[Callable[[], None]]:
        """Raises `BackendUnavailable` after `timeout_s`. Yields a function that restarts the
        time."""
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(timeout_s) as budget:
                yield lambda: budget.reschedule(now() + timeout_s)
        except TimeoutError:
            message = f"{self.url} did not answer within {timeout_s:g} s"
            raise BackendUnavailable(message) from None
