"""One inference engine of any kind, as the pool uses it.

Its class (`engines`) speaks to it; here are the time limits, the order of an update, and what is
checked of every answer. Knows nothing of other engines, retries or health over time: the pool does,
and owns the connections.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from prorl_service.errors import BackendError, BackendLent, BackendRejected, WeightsRejected
from prorl_service.inference.connections import Connections
from prorl_service.inference.engines import routers
from prorl_service.inference.engines.base import (
    INT32_END,
    Engine,
    EngineCall,
    EngineGauges,
    EngineInfo,
    Generation,
    Intake,
    Transfer,
    WeightSource,
)
from prorl_service.inference.engines.http import HINTS, EngineHttp
from prorl_service.inference.engines.kinds import AUTO, engine_class, recognised
from prorl_service.schemas import LogprobsMode
from prorl_service.tokens.chat import ChatFormat

RESUME_TIMEOUT_S = 30.0
INTAKE_TIMEOUT_S = 60.0


class Backend:
    """The engine at `url`.

    Every method raises `BackendError`: `BackendUnavailable` if the engine is busy or out of reach,
    `BackendRejected` if it refuses the request itself.
    """

    def __init__(
        self,
        url: str,
        connections: Connections,
        api_key: str | None = None,
        kind: str = AUTO,
        model: str | None = None,
    ) -> None:
        """`kind`: one of `ENGINES`, or "auto". `model`: to ask an API for. Raises `InvalidRequest`
        for another kind."""
        self.http = EngineHttp(url, connections, api_key)
        self.vocab_size = INT32_END
        """Bound of the ids in prompts and answers, lowered once the model is known."""
        self.logprobs_mode: LogprobsMode | None = None
        """Mode that was seen; None until `check_logprobs`."""
        self.kind = kind
        """Kind that was asked for; that of the `engine` once it was described."""
        self._intake: Intake | None = None
        self._processes = routers.Processes(self.url)
        self._become(engine_class(kind))
        self.engine.model_name = model or ""

    def _become(self, kind: type[Engine]) -> None:
        self.engine = kind(self.http)
        self.http.hints = {**HINTS, **kind.hints}
        self.forget_intake()

    @property
    def url(self) -> str:
        return self.http.url

    @property
    def backend_id(self) -> str:
        return self.http.backend_id

    async def describe(self, *, timeout_s: float = 60) -> EngineInfo:
        """Asks what the engine serves, and with which weights."""
        async with self.http.budget(timeout_s):
            info = await self.engine.serves()
            kind = recognised(info) if self.kind == AUTO else engine_class(self.kind)
            if type(self.engine) is not kind:
                self._become(kind)
            return await self.engine.describe(info)

    def know(self, chat: ChatFormat) -> None:
        """Takes the format of the model that it serves."""
        self.engine.chat = chat
        if chat.vocab_size is not None:
            self.vocab_size = chat.vocab_size

    async def is_healthy(self, *, timeout_s: float) -> bool:
        """Returns whether the engine's process is alive; a paused engine is healthy, too."""
        try:
            async with self.http.budget(timeout_s):
                await self.engine.check_health()
        except BackendError:
            return False
        return True

    async def refuse_router(self, *, timeout_s: float) -> None:
        """Raises `BackendRejected` if the address is that of a router that lists its engines."""
        async with self.http.budget(timeout_s):
            await routers.refuse_listed(self.http)

    async def load(self, *, timeout_s: float, asks: int = 1) -> EngineGauges | None:
        """Returns what fills the engine; None if it does not say, or not now. Raises
        `BackendRejected` if several engines answer. `asks`: number of concurrent requests."""
        answers = await asyncio.gather(*(self._load(timeout_s) for _ in range(asks)))
        self._processes.note(*(one.started_at for one in answers if one is not None))
        return answers[0]

    async def _load(self, timeout_s: float) -> EngineGauges | None:
        try:
            async with self.http.budget(timeout_s):
                return await self.engine.load()
        except BackendError:
            return None

    async def intake(self, info: EngineInfo) -> Intake:
        """Returns what the engine can be given. Asks once: vLLM inspects its whole machine."""
        if self._intake is None:
            async with self.http.budget(INTAKE_TIMEOUT_S):
                self._intake = await self.engine.intake(info)
        return self._intake

    def forget_intake(self) -> None:
        """Has the next call ask again: the engine may restart with other options."""
        self._intake = self.logprobs_mode = None

    async def check_logprobs(self, info: EngineInfo, *, may_probe: bool) -> None:
        """Learns the mode of the logprobs, once: asks or, if the engine does not say, has it sample
        a few tokens. Raises `BackendRejected` if it is another than training needs."""
        if self.logprobs_mode is None:
            self.logprobs_mode = (await self.intake(info)).logprobs_mode
        if self.logprobs_mode is None and may_probe:
            with suppress(BackendLent):
                async with self.http.budget(INTAKE_TIMEOUT_S):
                    self.logprobs_mode = await self.engine.probe_logprobs(self.vocab_size)

    async def generate(self, call: EngineCall) -> Generation:
        """Waits as long as the model generates. If cancelled, the engine aborts the call."""
        if not call.prompt.is_of(self.vocab_size):  # such an id ends SGLang
            raise BackendRejected(
                f"the prompt has ids that the model of {self.url} does not know",
                hint=f"its vocabulary ends at {self.vocab_size}",
            )
        if call.pictures and not self.engine.sees:
            raise BackendRejected(
                f"{self.url} takes no pictures", hint="vLLM 0.32 and the reference engine do"
            )
        answer = await self.engine.generate(call)
        if len(answer.token_ids) > call.max_tokens:
            raise self._invalid("more ids than asked for")
        if max(answer.token_ids, default=0) >= self.vocab_size:
            raise self._invalid("unknown ids")
        if self.logprobs_mode != "processed":
            return replace(answer, logprobs_mode="unknown")
        return answer

    def _invalid(self, problem: str) -> BackendError:
        return BackendError(f"{self.url} sent an invalid answer: {problem}")

    # --- weights --------------------------------------------------------------------------------

    async def join_group(self, init_info: Mapping[str, Any], *, timeout_s: float) -> None:
        """Has all workers of the engine join a trainer's NCCL group."""
        async with self.http.budget(timeout_s):
            await self.engine.join_group(init_info)

    async def process(self) -> str:
        """Returns an identifier of this start of the engine."""
        async with self.http.budget(INTAKE_TIMEOUT_S):
            return await self.engine.process()

    async def load_weights(self, source: WeightSource, label: str, *, timeout_s: float) -> None:
        """Pauses, loads, labels them with `label`, resumes. Calls in flight continue with the new
        weights, or are aborted where an adapter replaces a whole model or the other way round.

        `timeout_s` bounds each step, and each silence while weights are sent. Raises
        `BackendRejected` if the engine refuses the weights before it has touched its own, which
        continue to serve. A later failure leaves the engine paused, since its tokens could not be
        trusted: it must be restarted. Only new weights resume an engine that was found paused.
        """
        before = await self.describe(timeout_s=timeout_s)
        transfer = await self.engine.transfer(source, before, await self.intake(before))
        async with self.http.budget(timeout_s) as on_progress:
            await transfer.prepare(on_progress)
        async with self._resumed_after(BaseException, before):
            async with self.http.budget(timeout_s):
                await self.engine.pause(transfer.pause_mode)
            async with self.http.budget(timeout_s):
                await transfer.meet()
        async with self._resumed_after(WeightsRejected, before):
            await self._swap(transfer, label, timeout_s)
        await self._resume(timeout_s)

    async def _swap(self, transfer: Transfer, label: str, timeout_s: float) -> None:
        try:
            async with self.http.budget(timeout_s):
                await transfer.swap(label)
        except WeightsRejected:
            raise
        except BackendError as error:
            raise BackendError(
                f"{self.url} may have lost its weights and stays paused: {error}",
                hint="restart the inference engine",
                retryable=False,
            ) from error

    @asynccontextmanager
    async def _resumed_after(
        self, failure: type[BaseException], before: EngineInfo
    ) -> AsyncIterator[None]:
        """Resumes the engine, if it was not paused `before`, after a failure that has left it its
        old weights."""
        try:
            yield
        except failure:
            if not before.is_paused:
                with suppress(BackendError):  # the caller should see the first error
                    await self._resume(RESUME_TIMEOUT_S)
            raise

    async def _resume(self, timeout_s: float) -> None:
        async with self.http.budget(timeout_s):
            await self.engine.resume()
