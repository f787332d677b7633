"""VeRL's inference engines, called token in, token out, with the version of every token.

`LLMServerClient.generate` is not used: it hides the Ray call, which could then not be cancelled,
and its asynchronous form forgets where one version of the weights ends and the next begins. Its
router is used: acquire a server, call it, release it. `contract` guards the private parts of that.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray

from prorl_service.client.engine_gateway import AskedSampling, Completion
from prorl_service.errors import BackendLent, BackendRejected
from prorl_verl.pictures import Vision, opened

RESUME_DELAY_S = 0.2
"""Delay before a call continues after an engine aborted it because its weights change."""
MAX_RESUME_DELAY_S = 1.0
"""Maximum delay. The router names engines before they are awake and after they have left; those
abort every call immediately, possibly until new weights arrive."""
CANCEL_TIMEOUT_S = 10.0
"""Time for an engine to end a cancelled call."""
SEED_NAMES = {"sglang": "sampling_seed"}
"""Name of the seed among an engine's sampling parameters, where it is not `seed`."""
LENT = "the trainer needs the engines for a while"


class Engines:
    """All of a trainer's engines; belongs to one event loop."""

    problem = ""

    def __init__(
        self,
        llm_client: Any,
        *,
        max_in_flight: int,
        engine: str = "vllm",
        vision: Vision | None = None,
    ) -> None:
        """`llm_client`: an `LLMServerClient`. `engine`: VeRL's name of the engines' kind. `vision`:
        that of a model that sees."""
        self._vision = vision
        self._seed_name = SEED_NAMES.get(engine, "seed")
        self.versions: set[int] = set()
        """Versions that have sampled."""
        self.on_change: Callable[[], None] = lambda: None
        """Callback for when `is_lent` may have changed."""
        self._client = llm_client
        self._room = asyncio.Semaphore(max_in_flight)
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._calls: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._parked = 0
        """Number of calls that their engine aborted and that have sampled nothing since."""

    @property
    def version(self) -> int:
        """Newest version that has sampled."""
        return max(self.versions, default=0)

    @property
    def is_lent(self) -> bool:
        """True while nothing is sampled, or nothing more for some calls."""
        return not self._is_open.is_set() or self._parked > 0

    def expanded(self, prompt: list[int], pictures: Sequence[bytes]) -> list[int]:
        """See `TrainersEngines`."""
        if self._vision is None:
            raise BackendRejected("the trainer's model sees no pictures")
        return self._vision.expanded(prompt, pictures)

    async def sample(
        self,
        session_id: str,
        prompt: list[int],
        asked: AskedSampling,
        pictures: Sequence[bytes] = (),
    ) -> Completion:
        """Like `generate`, for the service's parameters."""
        params = _params(asked, self._seed_name)
        return await self.generate(session_id, prompt, params, asked.max_tokens, pictures)

    async def generate(
        self,
        session_id: str,
        prompt_ids: list[int],
        params: dict[str, Any],
        max_tokens: int,
        pictures: Sequence[bytes] = (),
    ) -> Completion:
        """Continues with new weights where an engine stopped for them; a cancelled call ends at its
        engine, too. Raises `BackendLent`, and what the engine raises.

        A call ends with "stop" if its last token is in `params["stop_token_ids"]`, which may be the
        last one allowed: VeRL's servers say the same of both ends.
        """
        done, ends = Completion(), params.get("stop_token_ids", ())
        while True:
            left = max_tokens - len(done.token_ids)
            output = await self._call(
                session_id, prompt_ids + done.token_ids, {**params, "max_tokens": left}, pictures
            )
            self._add(done, output)
            if done.token_ids and done.token_ids[-1] in ends:
                done.finish_reason = "stop"
            elif len(done.token_ids) >= max_tokens:
                done.finish_reason = "length"
            elif output.stop_reason in ("aborted", "abort"):
                await self._until_back(session_id, prompt_ids[:1], params)
                continue
            return done

    async def _until_back(self, session_id: str, prompt_ids: list[int], params: Any) -> None:
        """Returns when an engine has sampled a token, which is discarded: a call that is made too
        early may wait silently for as long as the trainer trains."""
        delay_s = RESUME_DELAY_S
        self._park(1)
        try:
            is_back = False
            while not is_back:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_RESUME_DELAY_S)
                output = await self._call(session_id, prompt_ids, {**params, "max_tokens": 1})
                is_back = bool(output.token_ids)
        finally:
            self._park(-1)

    def _park(self, calls: int) -> None:
        self._parked += calls
        self.on_change()

    def _add(self, done: Completion, output: Any) -> None:
        version = int(output.extra_fields.get("global_steps") or 0)
        if not done.versions:
            done.cached_tokens = int(output.extra_fields.get("num_cached_tokens") or 0)
        done.token_ids += output.token_ids
        done.logprobs += output.log_probs or []
        done.versions += [version] * len(output.token_ids)
        if output.token_ids:
            self.versions.add(version)

    async def _call(
        self,
        session_id: str,
        prompt_ids: list[int],
        params: dict[str, Any],
        pictures: Sequence[bytes] = (),
    ) -> Any:
        """Raises `BackendLent` if the engines are closed, or close meanwhile."""
        async with self._room:
            if not self._is_open.is_set():
                raise BackendLent(LENT)
            call = asyncio.create_task(self._call_one(session_id, prompt_ids, params, pictures))
            self._calls.add(call)
            self._idle.clear()
            call.add_done_callback(self._ended)
            try:
                await asyncio.wait([call])
            finally:
                call.cancel()
        if call.cancelled():
            raise BackendLent(LENT)
        return call.result()

    def _ended(self, call: "asyncio.Task[Any]") -> None:
        self._calls.discard(call)
        if not self._calls:
            self._idle.set()

    async def _call_one(
        self,
        session_id: str,
        prompt_ids: list[int],
        params: dict[str, Any],
        pictures: Sequence[bytes],
    ) -> Any:
        client = self._client
        server_id, server = await client._acquire_server(
            session_id, prompt_ids=prompt_ids, sampling_params=params
        )
        try:
            reference = server.generate.remote(
                request_id=client._vllm_request_id(session_id),
                prompt_ids=prompt_ids,
                sampling_params=params,
                image_data=opened(pictures) or None,
                video_data=None,
            )
            try:
                return await reference
            except asyncio.CancelledError:
                ray.cancel(reference)
                with suppress(Exception):  # its result does not matter
                    await asyncio.wait_for(reference, CANCEL_TIMEOUT_S)
                raise
        finally:
            client._release_server(server_id, request_id=session_id)

    async def close(self) -> None:
        """Returns when no engine samples for us. Calls in flight are given back: the service
        repeats them after `open`."""
        self._is_open.clear()
        self.on_change()
        for call in self._calls:
            call.cancel()
        await self._idle.wait()

    def open(self) -> None:
        if not self._is_open.is_set():
            self._is_open.set()
            self.on_change()


def _params(asked: AskedSampling, seed_name: str) -> dict[str, Any]:
    """Returns sampling parameters as VeRL's agent loops give them."""
    params = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k or -1,
        "repetition_penalty": 1.0,
        "logprobs": True,
        "stop_token_ids": asked.stop_token_ids,
    }
    wishes = {seed_name: asked.seed, "stop": asked.stop or None}
    return params | {name: value for name, value in wishes.items() if value is not None}
