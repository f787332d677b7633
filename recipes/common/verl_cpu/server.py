"""The inference server of the rollout `tiny`: our reference engine behind verl's Ray methods.

Token ids in, token ids and exact logprobs out. Like vLLM's server in verl: `abort_all_requests`
ends running requests with the tokens they have, and requests before `resume_generation` wait or are
rejected. No HTTP.
"""

import asyncio
import hashlib
import io
import time
from collections.abc import Sequence as Chunks
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import torch
from verl.workers.rollout.replica import TokenOutput

from prorl_service.inference.reference_engine.batcher import Batcher, Sequence
from prorl_service.inference.reference_engine.checkpoints import Served, WeightUpdate
from prorl_service.inference.reference_engine.kv import KVCache
from prorl_service.inference.reference_engine.model import Chunk, PackedModel
from prorl_service.inference.reference_engine.sampling import DrawParams
from prorl_service.inference.reference_engine.vision import Sight
from prorl_service.utils.tasks import TaskOwner

KV_TOKENS = 2**17
SILENT = {"logprobs": True, "n": 1, "repetition_penalty": 1.0, "min_p": 0.0, "detokenize": False}
"""Sampling parameters of which this server supports only one value."""


class _PacedModel(PackedModel):
    """A model whose steps take at least `step_s`, as a large model's do."""

    def __init__(self, directory: Path, step_s: float) -> None:
        self.step_s = step_s
        super().__init__(directory, torch.float32)

    def forward(self, chunks: Chunks[Chunk]) -> torch.Tensor:
        time.sleep(self.step_s)
        return super().forward(chunks)


def _encoded(picture: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


class TinyServer:
    """An async Ray actor; `resume_kv_cache` and its like have nothing to do on a CPU."""

    def __init__(
        self, rank: int, model: str, *, max_model_len: int, max_tokens: int, step_s: float = 0.0
    ) -> None:
        self.rank = rank
        self.max_model_len = max_model_len
        self.default_max_tokens = max_tokens
        self.global_steps = 0
        paced = _PacedModel(Path(model), step_s)
        torch.set_num_threads(paced.suitable_threads())
        self.batcher = Batcher(paced, KV_TOKENS)
        self._weights = Served(paced.module)
        self.batcher.version = str(self.global_steps)
        self._background = TaskOwner()
        self._blocked = False
        self._rejecting = False
        self._asleep = False

    async def start(self) -> None:
        self._background.start(self.batcher.run(), name="batcher")

    async def stop(self) -> None:
        await self._background.close()

    # --- generation -----------------------------------------------------------------------------

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        **others: Any,
    ) -> TokenOutput:
        """Raises `ValueError` for requests that the engine cannot serve. Cancelling stops
        sampling. `prompt_logprobs`: 0 for those of the prompt's own tokens, by a teacher."""
        unknown = [name for name, value in others.items() if value is not None]
        if video_data or unknown:
            raise ValueError(f"no video can be shown; unsupported: {unknown}")
        ids, sight = self._seen(list(prompt_ids), image_data or [])
        params = dict(sampling_params)
        of_prompt = await self._prompt_logprobs(ids, params.pop("prompt_logprobs", None))
        sequence = self._sequence(ids, params)
        sequence.sight = sight
        if self._rejecting:
            sequence.finish_reason = "abort"
        else:
            await self.batcher.generate(sequence)
        versions = sequence.versions or [str(self.global_steps)]
        return TokenOutput(
            token_ids=sequence.output_ids,
            log_probs=sequence.logprobs,
            stop_reason="aborted" if sequence.finish_reason == "abort" else "completed",
            extra_fields={
                "global_steps": int(versions[-1]),
                "num_cached_tokens": sequence.cached_tokens,
                **of_prompt,
            },
        )

    async def _prompt_logprobs(self, ids: list[int], count: int | None) -> dict[str, Any]:
        """Returns each token's next one and its logprob, as VeRL's vLLM server does: the last has
        none. Raises `ValueError` for the most likely `count` tokens."""
        if count is None:
            return {}
        if count:
            raise ValueError(f"prompt_logprobs={count}: only 0 is supported")

        model, tokens = self.batcher.model, torch.tensor([ids])

        @torch.inference_mode()
        def compute() -> list[list[float]]:
            logits = model.module(
                input_ids=tokens,
                position_ids=torch.arange(len(ids))[None],
                use_cache=False,
                chunks=[Chunk(KVCache(model.kv_layout, capacity=len(ids)), ids)],
            ).logits[:, :-1]
            found = logits.float().log_softmax(-1).gather(2, tokens[:, 1:, None])[0]
            return [*found.tolist(), [0.0]]

        following = [[id_] for id_ in [*ids[1:], 0]]
        return {"prompt_ids": following, "prompt_logprobs": await asyncio.to_thread(compute)}

    def _seen(self, ids: list[int], pictures: list[Any]) -> tuple[list[int], Sight | None]:
        """Raises `ValueError`. `pictures`: PIL's."""
        if not pictures:
            return ids, None
        if (vision := self.batcher.model.vision) is None:
            raise ValueError("the model sees no pictures")
        return vision.expanded(ids, [_encoded(one) for one in pictures])

    def _sequence(self, prompt_ids: list[int], params: dict[str, Any]) -> Sequence:
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise ValueError(
                f"{len(prompt_ids)} tokens leave no room in a context of {self.max_model_len}"
            )
        stop = frozenset(params.pop("stop_token_ids", None) or ())
        if not params.pop("ignore_eos", False):
            stop |= self.batcher.model.eos_token_ids
        seed = params.pop("seed", None)
        sequence = Sequence(
            prompt_ids=prompt_ids,
            max_tokens=max(1, min(room, params.pop("max_tokens", self.default_max_tokens))),
            params=DrawParams(
                temperature=params.pop("temperature", 1.0),
                top_p=params.pop("top_p", 1.0),
                top_k=max(0, params.pop("top_k", 0)),
            ),
            rng=SystemRandom() if seed is None else Random(seed),
            stop_token_ids=stop,
            session_id=None,
        )
        strange = {key: value for key, value in params.items() if SILENT.get(key) != value}
        if strange:
            raise ValueError(f"unsupported sampling parameters: {strange}")
        return sequence

    # --- pauses ---------------------------------------------------------------------------------

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """`reject_request`: reject later requests rather than queue them: nothing resumes soon."""
        self._blocked, self._rejecting = True, reject_request
        await self.batcher.pause("abort")

    async def resume_generation(self) -> None:
        self._blocked = self._rejecting = False
        self._resume_if_allowed()

    async def sleep(self) -> None:
        """Returns when running requests have ended."""
        self._asleep = True
        await self.batcher.pause("wait")

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Resumes once the cache wakes up: weights wake before their update, the cache after it."""
        if tags is None or "kv_cache" in tags:
            self._asleep = False
            self._resume_if_allowed()

    def _resume_if_allowed(self) -> None:
        if not self._blocked and not self._asleep:
            self.batcher.resume()

    async def clear_kv_cache(self) -> None:
        """Does nothing: a change of weights clears the cache."""

    release_kv_cache = resume_kv_cache = clear_kv_cache

    # --- weights --------------------------------------------------------------------------------

    async def update_weights(self, checkpoint: str, global_steps: int | None) -> None:
        """Loads a safetensors file; raises `UnfitCheckpoint` unless it is all of the model."""
        update = WeightUpdate(self._weights)
        await asyncio.to_thread(update.add, Path(checkpoint))
        update.check_complete()
        await self.batcher.change_weights(update.apply)
        if global_steps is not None:
            await self.set_global_steps(global_steps)
        message = f"weights of step {self.global_steps}: {self._digest()}"
        print(f"tiny server {self.rank}, {message}", flush=True)  # Ray forwards it

    def _digest(self) -> str:
        parameters = self.batcher.model.module.parameters()
        data = b"".join(parameter.numpy().tobytes() for parameter in parameters)
        return hashlib.sha256(data).hexdigest()[:16]

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps
        self.batcher.version = str(global_steps)
