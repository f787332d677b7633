"""The routes and the JSON that vLLM and the reference engine have in common.

Weights come from a directory that the engine reads, or as a file that it fetches: where it shares
the service's file system it opens the file instead. See `vllm` for what depends on a release of
vLLM or on its flags.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from prorl_service.errors import BackendRejected
from prorl_service.inference import tensor_file
from prorl_service.inference.engines import vllm_metrics
from prorl_service.inference.engines.base import (
    Engine,
    EngineCall,
    EngineGauges,
    EngineInfo,
    EngineTimes,
    Generation,
    PauseMode,
    Progress,
    Transfer,
    WeightDirectory,
    WeightFile,
    checked,
    require,
)
from prorl_service.inference.engines.handout import handed_out
from prorl_service.inference.engines.versions import expanded, labels_of, read_label
from prorl_service.schemas.pictures import url_of
from prorl_service.tokens.pictures import PictureFormat

GENERATE = "/inference/v1/generate"
TIMES = "times"
"""Key of a call's `EngineTimes` in the reference engine's answers; vLLM's lack it."""


class VllmRoutes(Engine):
    model: str | None = None
    """Name of the model in calls; None: the engine's default."""

    @property
    def sees(self) -> bool:
        return True

    async def describe(self, info: EngineInfo) -> EngineInfo:
        with suppress(BackendRejected):  # vLLM has these routes in its development mode only
            info = replace(info, label=await self.label())
        with suppress(BackendRejected):
            info = await self.http.ask("GET", "/is_paused", partial(_read_pause, info))
        return info

    async def label(self) -> str:
        """Returns the label of the weights. Raises `BackendRejected` if there is none."""
        return await self.http.ask("GET", "/weight_info", read_label)

    async def load(self) -> EngineGauges | None:
        return await self.http.ask_text("/metrics", vllm_metrics.read)

    async def generate(self, call: EngineCall) -> Generation:
        return await self.sample(call)

    async def sample(self, call: EngineCall, label: str | None = None) -> Generation:
        """Makes one call. `label`: that of all tokens' weights; None if the answer has one for
        each."""
        sampling = call.sampling
        params = {
            "max_tokens": call.max_tokens,
            "seed": call.seed,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop_token_ids": call.stop_token_ids,
            "logprobs": 0,
            "detokenize": bool(call.stop),  # vLLM needs the text to find a stop in it
            **({"stop": call.stop} if call.stop else {}),
        }
        body = {**self._prompt(call), "sampling_params": params}
        if self.model is not None:
            body["model"] = self.model
        read = partial(self._read, call, label)
        headers = {"X-Session-ID": call.session_id}
        return await self.http.ask("POST", GENERATE, read, json=body, headers=headers)

    def _prompt(self, call: EngineCall) -> dict[str, Any]:
        """Pictures have one placeholder each, which the engine expands: vLLM would expand those of
        an expanded prompt again, and not tell."""
        if not call.pictures:
            return {"token_ids": orjson.Fragment(call.prompt.json())}
        parts = [{"type": "image_url", "url": url_of(one)} for one in call.pictures]
        ids = self._pictures.compact(call.prompt.ids)
        return {"token_ids": ids, "content_parts": parts, "return_token_ids": True}

    @property
    def _pictures(self) -> PictureFormat:
        assert self.chat is not None
        assert self.chat.pictures is not None
        return self.chat.pictures

    def _read(self, call: EngineCall, label: str | None, answer: Any) -> Generation:
        prompt_length = len(call.prompt)
        if call.pictures:
            seen = self._pictures.padded(call.prompt.ids)
            require(answer.get("prompt_token_ids") == seen, "it expands pictures in another way")
        choice = answer["choices"][0]
        ids, spans = choice["token_ids"], choice.get("weight_versions") or []
        usage = answer["usage"] if label is None else answer.get("usage")
        if label is not None:  # neither field is in the answers of all releases
            usage = usage or {"prompt_tokens": prompt_length}
            spans = spans or [{"version": label, "start": 0, "end": len(ids)}][: len(ids)]
        require(usage["prompt_tokens"] == prompt_length, f"usage {usage} for {prompt_length} ids")
        entries = choice["logprobs"]["content"] if ids else []
        times = answer.get(TIMES)
        return checked(
            Generation(
                token_ids=ids,
                logprobs=[float(entry["logprob"]) for entry in entries],
                policy_versions=expanded(spans, len(ids)),
                finish_reason=choice["finish_reason"],
                cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
                backend=self.http.backend_id,
                labels=labels_of(spans),
                times=None if times is None else EngineTimes(**times),
            )
        )

    async def pause(self, mode: PauseMode) -> None:
        await self.http.tell(f"/pause?mode={mode}&clear_cache=true")

    async def resume(self) -> None:
        await self.http.tell("/resume")

    async def took(self, label: str, model: str | None = None) -> None:
        """Labels weights that are in place; calls then name `model`."""
        await self.http.tell("/update_weight_version", {"new_version": label})
        self.model = model


class VllmTransfer(Transfer):
    model: str | None = None
    """Name of the model in calls that use these weights."""

    def __init__(self, engine: VllmRoutes) -> None:
        self._engine = engine
        self._http = engine.http

    @property
    def pause_mode(self) -> PauseMode:
        # A frozen call would continue with the model that it named.
        return "keep" if self.model == self._engine.model else "abort"

    async def swap(self, label: str) -> None:
        await self._replace()
        await self._engine.took(label, self.model)

    async def _replace(self) -> None:
        await self._http.tell("/start_weight_update")
        await self._http.tell("/update_weights", {"update_info": self._update_info()})
        await self._http.tell("/finish_weight_update", {})

    def _update_info(self) -> Mapping[str, Any]:
        return {}


class Reload(VllmTransfer):
    """Has the engine load a checkpoint's directory."""

    def __init__(self, engine: VllmRoutes, directory: WeightDirectory) -> None:
        super().__init__(engine)
        self._path = directory.path

    async def _replace(self) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": self._path}}
        await self._http.tell("/collective_rpc", reload)


class FetchFile(VllmTransfer):
    """Has the engine fetch a file while it samples, or open it."""

    def __init__(self, engine: VllmRoutes, file: WeightFile) -> None:
        super().__init__(engine)
        self._file = file

    async def prepare(self, on_progress: Progress) -> None:
        header = await asyncio.to_thread(tensor_file.read, self._file.path)
        more = self._info_of(header)

        async def take(offer: Mapping[str, Any]) -> None:
            body = {"init_info": {**offer, **more}}
            await self._http.tell("/init_weight_transfer_engine", body)

        await handed_out(self._file, self._http.url, on_progress, take)

    def _info_of(self, header: tensor_file.Header) -> dict[str, Any]:
        """Returns what the engine needs to know before it fetches."""
        return {"shapes": header.shapes}


def _read_pause(info: EngineInfo, answer: Any) -> EngineInfo:
    """Adds the state of pauses and loans; only a gateway reports loans."""
    return replace(info, is_paused=answer["is_paused"], is_lent=answer.get("is_lent", False))
