"""A kind of engine that the service does not know, written against `engines/base.py` alone.

Routes and fields are like SGLang's, as far as rollouts and weights from a directory need them.
"""

from dataclasses import replace
from typing import Any

import orjson

from prorl_service.errors import BackendRejected
from prorl_service.inference.engines import base

MODES = {"keep": "retract", "abort": "abort"}


class ThirdEngine(base.Engine):
    kind = "third"
    owned_by = "third"

    async def describe(self, info: base.EngineInfo) -> base.EngineInfo:
        label = await self.http.ask("GET", "/model_info", lambda one: one["weight_version"])
        return replace(info, label=label)

    async def intake(self, info: base.EngineInfo) -> base.Intake:
        return base.Intake(logprobs_mode="processed")

    async def generate(self, call: base.EngineCall) -> base.Generation:
        if call.sampling.top_p < 1 or call.sampling.top_k:
            raise BackendRejected("its logprobs are not renormalised over the tokens kept")
        params = {
            "max_new_tokens": call.max_tokens,
            "temperature": call.sampling.temperature,
            "sampling_seed": call.seed,
            "stop_token_ids": call.stop_token_ids,
        }
        ids = orjson.Fragment(call.prompt.json())
        body = {"input_ids": ids, "sampling_params": params, "return_logprob": True}
        return await self.http.ask("POST", "/generate", self._read, json=body)

    def _read(self, answer: Any) -> base.Generation:
        meta, versions = answer["meta_info"], list[int]()
        for label, start, end in meta["weight_versions"]:
            versions += [base.version_of(label) or 0] * (end - start)
        return base.checked(
            base.Generation(
                token_ids=answer["output_ids"],
                logprobs=[logprob for logprob, *_ in meta["output_token_logprobs"]],
                policy_versions=versions,
                finish_reason=meta["finish_reason"]["type"],
                cached_tokens=meta["cached_tokens"],
                backend=self.http.backend_id,
                labels=frozenset(label for label, *_ in meta["weight_versions"]),
            )
        )

    async def pause(self, mode: base.PauseMode) -> None:
        await self.http.tell("/pause_generation", {"mode": MODES[mode]})

    async def resume(self) -> None:
        await self.http.tell("/continue_generation", {})

    async def transfer(
        self, source: base.WeightSource, info: base.EngineInfo, intake: base.Intake
    ) -> base.Transfer:
        if not isinstance(source, base.WeightDirectory):
            raise BackendRejected(f"{self.http.url} takes weights from directories alone")
        return FromDisk(self, source.path)


class FromDisk(base.Transfer):
    def __init__(self, engine: ThirdEngine, path: str) -> None:
        self._http, self._path = engine.http, path

    async def swap(self, label: str) -> None:
        body = {"model_path": self._path, "weight_version": label}
        await self._http.tell("/update_weights_from_disk", body)
