"""SGLang: its routes, and what it is not asked for.

Weights come from a directory that SGLang reads, or as a file that our plug-in (plugins/sglang)
fetches into a directory of its own; without the plug-in by NCCL, too. Calls with `top_p` or `top_k`
are refused: SGLang reports the logprobs of the distribution before these cut it. Seeds are left out
unless it samples by them. What depends on a release is in the table of neighbours.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, TypeVar

import orjson

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference import tensor_file
from prorl_service.inference.engines import logprobs
from prorl_service.inference.engines import sglang_answers as answers
from prorl_service.inference.engines.base import (
    ADAPTER_PREFIX,
    Broadcast,
    Engine,
    EngineCall,
    EngineGauges,
    EngineInfo,
    Generation,
    Intake,
    PauseMode,
    Progress,
    Transfer,
    WeightDirectory,
    WeightFile,
    WeightSource,
    checked,
    require,
)
from prorl_service.inference.engines.handout import handed_out
from prorl_service.inference.engines.http import EngineHttp, NotOffered
from prorl_service.inference.engines.versions import expanded, labels_of, read_label
from prorl_service.neighbours import neighbours
from prorl_service.schemas import LogprobsMode

T = TypeVar("T")

PART = "an engine of the service"
"""What needs SGLang, in the table of neighbours."""
GENERATE = "/generate"
PLUGIN = "/prorl"
"""Route of our plug-in that says what the engine computes in."""
NO_PLUGIN = (
    "install prorl-service next to SGLang, which loads its plug-in, or pass weights through a "
    "directory that both see"
)
NO_SEEDS = (
    "%s gets no seeds: SGLang samples by them only with --enable-deterministic-inference, which "
    "needs a GPU"
)
NO_TRUNCATION = "leave top_p and top_k at 1 and 0, or serve the model with vLLM"
NO_ADAPTERS = (
    "start SGLang with `--enable-lora --max-lora-rank R --lora-target-modules all`, or merge "
    "adapters into the model"
)
PART_ELEMENTS = 2**28
"""Most elements in one part of a broadcast, unless one tensor has more: SGLang holds a part beside
its weights."""
NEEDS_MODE = "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"


class SglangEngine(Engine):
    kind = "sglang"
    owned_by = "sglang"

    def __init__(self, http: EngineHttp) -> None:
        super().__init__(http)
        self.adapter: str | None = None
        """Name of the adapter in calls."""
        self._takes_seeds = False
        self._context = 0

    async def describe(self, info: EngineInfo) -> EngineInfo:
        is_paused = await self._is_paused()
        server = await self.http.ask("GET", "/server_info", answers.SglangInfo.read)
        self._check_release(server.version)
        self._takes_seeds, self._context = server.is_deterministic, server.context
        return replace(
            info,
            model=server.model,  # /v1/models names the directory of the last update
            root=server.root,
            max_model_len=server.context,
            label=await self.http.ask("GET", "/model_info", read_label),
            is_paused=is_paused,
        )

    async def _is_paused(self) -> bool:
        """Returns True, too, for an engine out of reach: the next question to it will fail."""
        try:
            await self.http.ask("GET", "/ready", lambda _: None)
        except BackendUnavailable:
            return True
        return False

    def _check_release(self, version: str) -> None:
        sglang = neighbours()["sglang"]
        if not sglang.supports(version, PART):
            known = sglang.range(PART)
            raise BackendRejected(f"{self.http.url} is SGLang {version}, not {known}")

    async def check_health(self) -> None:
        # SGLang's /health samples, and fails while it is paused.
        await self.http.ask("GET", "/ping", lambda _: None)

    async def load(self) -> EngineGauges:
        gauges = await self.http.ask("GET", "/v1/loads", answers.read_gauges)
        with suppress(NotOffered):  # without --enable-metrics
            gauges.preemptions = await self.http.ask_text("/metrics", answers.read_retractions)
        return gauges

    # --- calls ----------------------------------------------------------------------------------

    async def generate(self, call: EngineCall) -> Generation:
        sampling = call.sampling
        if sampling.top_p < 1 or sampling.top_k > 0:
            raise BackendRejected(
                f"{self.http.url} gives no exact logprobs with top_p {sampling.top_p:g} and top_k "
                f"{sampling.top_k}",
                hint=NO_TRUNCATION,
            )
        if call.seed is not None and not self._takes_seeds:
            self.http.warn(NO_SEEDS)
            call = replace(call, seed=None)
        params = {
            # More than fit are an error.
            "max_new_tokens": min(call.max_tokens, max(1, self._context - len(call.prompt))),
            "temperature": sampling.temperature,
            "sampling_seed": call.seed,
            "stop_token_ids": call.stop_token_ids,
            "stop": call.stop,
        }
        prompt = orjson.Fragment(call.prompt.json())
        return await self._sample(prompt, params, partial(self._read, len(call.prompt)))

    async def _sample(self, prompt: Any, params: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
        if self.adapter is not None:
            body["lora_path"] = self.adapter
        return await self.http.ask("POST", GENERATE, read, json=body)

    def _read(self, prompt_length: int, answer: Any) -> Generation:
        ids, meta = answer["output_ids"], answer["meta_info"]
        length, entries = meta["prompt_tokens"], meta["output_token_logprobs"]
        spans = meta["weight_versions"] if ids else []
        require(length == prompt_length, f"{length} prompt_tokens for {prompt_length} ids")
        require([token for _, token, _ in entries] == ids, "logprobs of other ids")
        return checked(
            Generation(
                token_ids=ids,
                logprobs=[float(logprob) for logprob, _, _ in entries],
                policy_versions=expanded(spans, len(ids)),
                finish_reason=meta["finish_reason"]["type"],
                cached_tokens=meta["cached_tokens"],
                backend=self.http.backend_id,
                labels=labels_of(spans),
                times=answers.read_times(meta),
            )
        )

    async def pause(self, mode: PauseMode) -> None:
        # What is retracted is prefilled again, with the new weights.
        mode_here = "retract" if mode == "keep" else mode
        await self.http.tell("/pause_generation", {"mode": mode_here})

    async def resume(self) -> None:
        await self.http.tell("/continue_generation", {})

    async def probe_logprobs(self, vocab_size: int) -> LogprobsMode:
        """Looks for raw logprobs; if a probe shows nothing, the engine's default holds."""
        await logprobs.probed(self.http.url, self._probe, vocab_size, NEEDS_MODE)
        return "processed"

    async def _probe(self, prompt: list[int], temperature: float) -> list[float]:
        params = {"temperature": temperature, "max_new_tokens": logprobs.PROBED_TOKENS}
        entries = await self._sample(
            prompt, params, lambda answer: answer["meta_info"]["output_token_logprobs"]
        )
        return [float(logprob) for logprob, _, _ in entries]

    # --- weights --------------------------------------------------------------------------------

    async def intake(self, info: EngineInfo) -> Intake:
        server = await self.http.ask("GET", "/server_info", answers.SglangInfo.read)
        intake = Intake(server.dtype, NO_PLUGIN, takes_seeds=server.is_deterministic)
        try:
            dtype = await self.http.ask("GET", PLUGIN, lambda answer: str(answer["dtype"]))
        except NotOffered:
            return replace(intake, workers=server.workers)
        return replace(intake, dtype=dtype, needs_for_files="", max_lora_rank=server.max_lora_rank)

    async def transfer(self, source: WeightSource, info: EngineInfo, intake: Intake) -> Transfer:
        if isinstance(source, Broadcast):
            return ReceiveParts(self, info, source)
        if isinstance(source, WeightDirectory):
            whole = await asyncio.to_thread(source.only_file)
            if whole is None or intake.needs_for_files:
                return LoadDirectory(self, info, source.path)
            return LoadFile(self, info, WeightFile(whole))
        intake.require_files(self.http.url)
        if not source.is_adapter:
            return LoadFile(self, info, source)
        if intake.max_lora_rank == 0:
            raise BackendRejected(f"{self.http.url} takes no LoRA adapters", hint=NO_ADAPTERS)
        return LoadAdapter(self, info, source)

    async def join_group(self, init_info: Mapping[str, Any]) -> None:
        info = dict(init_info)
        if replaced := info.pop("replaced", ""):
            with suppress(BackendRejected):  # it joins for the first time
                await self.http.tell("/destroy_weights_update_group", {"group_name": replaced})
        await self.http.tell("/init_weights_update_group", info)

    async def process(self) -> str:
        return await self.http.ask("GET", "/server_info", answers.read_process)


class SglangTransfer(Transfer):
    def __init__(self, engine: SglangEngine, info: EngineInfo) -> None:
        self._engine = engine
        self._http = engine.http
        self._loaded = info.adapters

    @property
    def pause_mode(self) -> PauseMode:
        # A frozen call would continue with the adapter that it named.
        return "keep" if self._engine.adapter is None else "abort"

    async def _load_model(self, directory: str, label: str) -> None:
        body = {"model_path": directory, "weight_version": label}
        await self._http.tell("/update_weights_from_disk", body)

    async def _use(self, adapter: str | None) -> None:
        """Has calls name that adapter, and removes the others."""
        self._engine.adapter = adapter
        for name in self._loaded:
            await self._http.tell("/unload_lora_adapter", {"lora_name": name})


class LoadDirectory(SglangTransfer):
    """Has the engine load a checkpoint's directory."""

    def __init__(self, engine: SglangEngine, info: EngineInfo, directory: str) -> None:
        super().__init__(engine, info)
        self._directory = directory

    async def swap(self, label: str) -> None:
        await self._load_model(self._directory, label)
        await self._use(None)


class LoadFile(SglangTransfer):
    """Has our plug-in fetch the file of a whole model, while the engine samples."""

    def __init__(self, engine: SglangEngine, info: EngineInfo, file: WeightFile) -> None:
        super().__init__(engine, info)
        self._file = file
        self._directory = ""

    async def prepare(self, on_progress: Progress) -> None:
        header = await asyncio.to_thread(tensor_file.read, self._file.path)
        more = {"shapes": header.shapes, "adapter_config": header.adapter_config}

        async def take(offer: Mapping[str, Any]) -> str:
            return await self._http.ask(
                "POST", f"{PLUGIN}/fetch", answers.read_directory, json={**offer, **more}
            )

        self._directory = await handed_out(self._file, self._http.url, on_progress, take)

    async def swap(self, label: str) -> None:
        await self._put(label)
        await self._http.tell(f"{PLUGIN}/release")

    async def _put(self, label: str) -> None:
        await self._load_model(self._directory, label)
        await self._use(None)


class LoadAdapter(LoadFile):
    """Has the engine put a LoRA adapter on its model. Each has a name of its own."""

    @property
    def pause_mode(self) -> PauseMode:
        return "abort"

    async def _put(self, label: str) -> None:
        name = f"{ADAPTER_PREFIX}{secrets.token_hex(4)}"
        body = {"lora_name": name, "lora_path": self._directory}
        await self._http.tell("/load_lora_adapter", body)
        await self._http.tell("/update_weight_version", {"new_version": label})
        await self._use(name)


class ReceiveParts(SglangTransfer):
    """Has the engine's workers take part in a trainer's broadcast."""

    def __init__(self, engine: SglangEngine, info: EngineInfo, source: Broadcast) -> None:
        super().__init__(engine, info)
        self._source = source
        try:
            self._parts = list(_parts(source.manifest))
        except (KeyError, TypeError, ValueError) as error:
            raise BackendRejected(f"update_info is not for SGLang: {error!r}") from error

    async def meet(self) -> None:
        await self._source.meet()

    async def swap(self, label: str) -> None:
        *parts, last = self._parts
        await self._http.tell("/begin_weight_update", {})
        try:
            for part in (*parts, {**last, "weight_version": label}):
                await self._http.tell("/update_weights_from_distributed", part)
        except BackendError:
            await self._http.tell("/end_weight_update", {})
            raise
        await self._http.tell("/end_weight_update", {})
        await self._use(None)


def _parts(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Splits a broadcast into requests. Raises `KeyError`, `TypeError`, `ValueError`."""
    names, dtypes, shapes = manifest["names"], manifest["dtypes"], manifest["shapes"]
    require(len(names) == len(dtypes) == len(shapes) > 0, "names, dtypes and shapes do not match")
    start = elements = 0
    for end, shape in enumerate(shapes):
        elements += prod(shape)
        if elements > PART_ELEMENTS and end > start:
            yield _part(manifest, slice(start, end))
            start, elements = end, prod(shape)
    yield _part(manifest, slice(start, None))


def _part(manifest: Mapping[str, Any], place: slice) -> dict[str, Any]:
    lists = {key: manifest[key][place] for key in ("names", "dtypes", "shapes")}
    return {**lists, "group_name": manifest["group_name"]}
