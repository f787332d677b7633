"""Requests and answers of `/inference/v1/generate`, with vLLM's names.

Unlike vLLM, this engine refuses unknown keys: a sampling option that is silently ignored would give
rollouts of a policy other than the one asked for.
"""

import base64
import time
import uuid
from itertools import groupby
from random import Random
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from prorl_service.inference.engines.vllm_routes import TIMES
from prorl_service.inference.reference_engine.batcher import Sequence
from prorl_service.inference.reference_engine.model import PackedModel
from prorl_service.inference.reference_engine.sampling import DrawParams
from prorl_service.inference.reference_engine.vision import Sight, VisionTower
from prorl_service.net.fetching import Offer

TokenId = Annotated[int, Field(ge=0)]


class RefusedRequest(Exception):
    """The request cannot be served as it is; answered in vLLM's error format."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, status=status, kind=kind, param=param)


def error_body(message: str, *, status: int, kind: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SamplingBody(_Strict):
    """`max_tokens` defaults to the room left in the context, and is cut to it."""

    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, description="0 and -1 keep the whole vocabulary.")
    seed: int | None = None
    stop_token_ids: list[TokenId] = []
    stop: list[str] = Field([], description="Accepted; the engine samples on, callers cut.")
    ignore_eos: bool = False
    logprobs: Literal[0] | None = Field(None, description="0: that of the sampled token.")
    n: Literal[1] = 1
    detokenize: bool = Field(False, description="Accepted; no text is ever returned.")


class PicturePart(_Strict):
    type: Literal["image_url"]
    url: str = Field(pattern="^data:[^,]*;base64,")

    @property
    def content(self) -> bytes:
        """Raises `ValueError`."""
        return base64.b64decode(self.url.partition(",")[2], validate=True)


class GenerateBody(_Strict):
    token_ids: list[TokenId] = Field(min_length=1)
    content_parts: list[PicturePart] = Field(
        [], description="A picture for each placeholder among the ids, in their order."
    )
    return_token_ids: bool = Field(False, description="Tell the prompt as the model sees it.")
    sampling_params: SamplingBody
    model: str | None = None
    request_id: str = Field(default_factory=lambda: uuid.uuid4().hex)

    def sequence(
        self, model: PackedModel, *, max_model_len: int, session_id: str | None
    ) -> Sequence:
        """Raises `RefusedRequest` for a prompt that does not fit the context or the vocabulary, and
        for pictures that cannot be seen."""
        if (largest := max(self.token_ids)) >= model.vocab_size:
            raise RefusedRequest(f"Token id {largest} is out of vocabulary")
        ids, sight = self._seen(model.vision)
        params, length = self.sampling_params, len(ids)
        if length >= max_model_len:
            raise RefusedRequest(
                f"The prompt (length {length}) plus at least 1 output token is longer than the "
                f"maximum model length of {max_model_len}."
            )
        room = max_model_len - length
        return Sequence(
            prompt_ids=ids,
            sight=sight,
            max_tokens=min(params.max_tokens or room, room),
            params=DrawParams(params.temperature, params.top_p, max(params.top_k, 0)),
            rng=Random(params.seed),
            stop_token_ids=frozenset(params.stop_token_ids)
            | (frozenset() if params.ignore_eos else model.eos_token_ids),
            session_id=session_id,
        )

    def _seen(self, vision: VisionTower | None) -> tuple[list[int], Sight | None]:
        if not self.content_parts:
            return self.token_ids, None
        if vision is None:
            raise RefusedRequest("This model sees no pictures", param="content_parts")
        try:
            return vision.expanded(self.token_ids, [one.content for one in self.content_parts])
        except ValueError as error:
            raise RefusedRequest(str(error), param="content_parts") from error

    def answer(self, sequence: Sequence, model: PackedModel, *, model_id: str) -> dict[str, Any]:
        seen = {"prompt_token_ids": _padded(sequence.prompt_ids, model)}
        output_ids = sequence.output_ids
        return {
            "request_id": f"generate-tokens-{self.request_id}",
            "model": model_id,
            "created": int(time.time()),
            "usage": _usage(sequence),
            **(seen if self.return_token_ids else {}),
            TIMES: sequence.times.model_dump(),
            "choices": [
                {
                    "index": 0,
                    "finish_reason": sequence.finish_reason,
                    "stop_reason": _stop_reason(sequence, model.eos_token_ids),
                    "token_ids": output_ids,
                    "weight_versions": _version_spans(sequence.versions),
                    "logprobs": self._logprobs(output_ids, sequence.logprobs),
                }
            ],
        }

    def _logprobs(self, token_ids: list[int], logprobs: list[float]) -> dict[str, Any] | None:
        if self.sampling_params.logprobs is None:
            return None
        pairs = zip(token_ids, logprobs, strict=True)
        return {"content": [{"token_id": token, "logprob": logprob} for token, logprob in pairs]}


class FileToFetch(BaseModel):
    """A file under a name that no other file has; what else vLLM's plug-in is told is ignored."""

    path: str
    size: int
    url: str = Field(pattern="^https?://")
    base: str = ""

    def offer(self) -> Offer:
        return Offer(self.path, self.size, self.url, self.base)


def _padded(ids: list[int], model: PackedModel) -> list[int]:
    return ids if model.vision is None else model.vision.padded(ids)


def _usage(sequence: Sequence) -> dict[str, Any]:
    prompt, total = len(sequence.prompt_ids), len(sequence.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": total - prompt,
        "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens},
    }


def _stop_reason(sequence: Sequence, eos: frozenset[int]) -> int | None:
    last = sequence.token_ids[-1]
    return last if sequence.finish_reason == "stop" and last not in eos else None


def _version_spans(versions: list[str]) -> list[dict[str, Any]]:
    """Returns spans [start, end) of output tokens, each sampled by one version of the weights."""
    spans: list[dict[str, Any]] = []
    for version, run in groupby(versions):
        start = spans[-1]["end"] if spans else 0
        spans.append({"version": version, "start": start, "end": start + len(list(run))})
    return spans
