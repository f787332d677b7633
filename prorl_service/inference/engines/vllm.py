"""vLLM: refused if it is too old, lacks a flag, or gives logprobs that training cannot use;
bracketed if its answers do not say which weights sampled a token.

A gateway to engines of vLLM counts as one. See `vllm_releases` for what each release has.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar, Self

from prorl_service.errors import BackendRejected
from prorl_service.inference.engines import logprobs
from prorl_service.inference.engines import vllm_releases as releases
from prorl_service.inference.engines.base import (
    Broadcast,
    EngineCall,
    EngineInfo,
    Generation,
    Intake,
    PauseMode,
    Transfer,
    WeightDirectory,
    WeightFile,
    WeightSource,
)
from prorl_service.inference.engines.http import EngineHttp, NotOffered
from prorl_service.inference.engines.vllm_bracket import Bracket
from prorl_service.inference.engines.vllm_releases import (
    SHARES_NCCL_SETTINGS,
    SWAPS_ADAPTERS,
    Release,
)
from prorl_service.inference.engines.vllm_routes import GENERATE, Reload, VllmRoutes
from prorl_service.inference.engines.vllm_transfers import (
    NO_PLUGIN,
    FetchAdapter,
    PluginFetch,
    Receive,
)
from prorl_service.schemas import LogprobsMode

PLUGIN = "prorl"
"""Name of our weight-transfer backend in vLLM."""
NCCL = "nccl"
"""Name of vLLM's own backend for weights that a trainer broadcasts."""
NO_ADAPTERS = (
    "start vLLM with `--enable-lora --max-lora-rank R` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or "
    "merge adapters into the model"
)
NEEDS_NCCL = (
    "it takes weights by NCCL: install vLLM 0.28 or newer next to the trainer, which needs a GPU, "
    "and start all engines alike; or start them with prorl-vllm"
)
NEEDS_MODE = f"start vLLM with `--logprobs-mode {logprobs.PROCESSED}`"
UNKNOWN_MODE = (
    "the logprobs of %s may not be of the distribution that it samples from: it does not say, and "
    "a probe shows nothing. If it is vLLM, start it with `--logprobs-mode processed_logprobs`"
)
NO_SEEDS = "%s gets no seeds: vLLM on a CPU may end at a seeded call with a long prompt"
SERVER_INFO = "/server_info?config_format=json"


class VllmEngine(VllmRoutes):
    kind = "vllm"
    owned_by = "vllm"
    hints: ClassVar = {HTTPStatus.NOT_FOUND: "weight updates need vLLM with VLLM_SERVER_DEV_MODE=1"}

    def __init__(self, http: EngineHttp) -> None:
        super().__init__(http)
        self._release: Release | None = None
        """None: a build without a number, or a gateway."""
        self._bracket: Bracket | None = None
        """Bracket of an engine whose answers have no versions."""
        self._generates = False
        """True once `GENERATE` was found: vLLM may log an error each time it is tried."""
        self._has_plugin = False
        self._takes_seeds = True
        self._adapters: Mapping[str, str] = {}

    @property
    def needs_probes(self) -> bool:
        return self._bracket is not None

    @property
    def sees(self) -> bool:
        return self._is_from(releases.SEES)

    async def describe(self, info: EngineInfo) -> EngineInfo:
        await self._check_release()
        self._adapters = info.adapters
        info = await super().describe(info)
        if self._bracket is not None and not info.is_paused:
            self._bracket.open()  # it may have been started again since an update failed
        if self._release is not None and self._release < releases.LABELS_WEIGHTS:
            needed = f"vLLM {releases.shown(releases.LABELS_WEIGHTS)}"
            return replace(info, needs_for_label=needed)
        return info

    async def _check_release(self) -> None:
        release: Release | None = None
        with suppress(BackendRejected):  # gateways lack this route
            release = await self.http.ask("GET", "/version", _read_release)
        if problem := releases.problem(release):
            raise BackendRejected(f"{self.http.url}: {problem}")
        if warning := releases.warning(release):
            self.http.warn(f"%s: {warning}")
        if release is None or release >= releases.REPORTS_VERSIONS:
            self._bracket = None
        elif self._bracket is None:
            self._bracket = Bracket(super().label, self.process)
        if release is not None and release >= releases.NEEDS_SCALE_OUT and not self._generates:
            await self._check_route()
        self._release = release

    async def _check_route(self) -> None:
        try:
            await self.http.tell(GENERATE, {})
        except NotOffered as error:
            raise BackendRejected(f"{self.http.url}: start vLLM with --enable-scale-out") from error
        except BackendRejected:  # the empty request
            self._generates = True

    async def label(self) -> str:
        if self._bracket is None:
            return await super().label()
        self._bracket.label = await self._bracket.label_now()
        return self._bracket.label

    async def process(self) -> str:
        return await self.http.ask("GET", SERVER_INFO, _read_process)

    # --- calls ----------------------------------------------------------------------------------

    async def generate(self, call: EngineCall) -> Generation:
        if call.seed is not None and not self._takes_seeds:
            self.http.warn(NO_SEEDS)
            call = replace(call, seed=None)
        if self._bracket is None:
            return await self.sample(call)
        return await self._bracket.generate(self.sample, call)

    async def pause(self, mode: PauseMode) -> None:
        if self._bracket is None:
            await super().pause(mode)
        else:
            await self._bracket.close(lambda: VllmRoutes.pause(self, "abort"))

    async def resume(self) -> None:
        await super().resume()
        if self._bracket is not None:
            self._bracket.open()

    async def probe_logprobs(self, vocab_size: int) -> LogprobsMode:
        mode = await logprobs.probed(self.http.url, self._probe, vocab_size, NEEDS_MODE)
        if mode == "unknown":
            self.http.warn(UNKNOWN_MODE)
        return mode

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
        body: dict[str, Any] = {"token_ids": prompt, "sampling_params": params}
        if self.model is not None:
            body["model"] = self.model
        headers = {"X-Session-ID": "prorl-probe"}
        try:
            return await self.http.ask("POST", GENERATE, _read_logprobs, json=body, headers=headers)
        except BackendRejected:
            return []

    # --- weights --------------------------------------------------------------------------------

    async def intake(self, info: EngineInfo) -> Intake:
        server = _ServerInfo()
        with suppress(BackendRejected):  # vLLM has this route in its development mode only
            server = await self.http.ask("GET", SERVER_INFO, _ServerInfo.read)
        self._has_plugin, self._takes_seeds = server.backend == PLUGIN, not server.is_cpu
        if mode := server.logprobs_mode or info.logprobs_mode:
            logprobs.require_processed(self.http.url, mode, NEEDS_MODE)
        intake = Intake(
            server.dtype,
            "",
            server.max_lora_rank if self._has_plugin and self._is_from(SWAPS_ADAPTERS) else 0,
            logprobs_mode="processed" if mode else None,
            takes_seeds=self._takes_seeds,
        )
        if not server.is_known or self._has_plugin:
            return intake
        if server.backend != NCCL or not self._is_from(SHARES_NCCL_SETTINGS):
            return replace(intake, needs_for_files=NO_PLUGIN)
        workers = await self.http.ask(
            "GET", "/get_world_size", lambda answer: int(answer["world_size"])
        )
        return replace(intake, needs_for_files=NEEDS_NCCL, workers=workers)

    def _is_from(self, first: Release) -> bool:
        return self._release is None or self._release >= first

    async def transfer(self, source: WeightSource, info: EngineInfo, intake: Intake) -> Transfer:
        if isinstance(source, WeightDirectory):
            whole = await asyncio.to_thread(source.only_file)
            if whole is None or not self._has_plugin:
                return Reload(self, source)
            return PluginFetch(self, WeightFile(whole))
        if isinstance(source, Broadcast):
            return Receive(self, source)
        intake.require_files(self.http.url)
        if not source.is_adapter:
            return PluginFetch(self, source)
        if intake.max_lora_rank == 0:
            raise BackendRejected(f"{self.http.url} takes no LoRA adapters", hint=NO_ADAPTERS)
        return FetchAdapter(self, source, info.adapters)

    async def join_group(self, init_info: Mapping[str, Any]) -> None:
        await self.http.tell("/init_weight_transfer_engine", {"init_info": init_info})

    async def took(self, label: str, model: str | None = None) -> None:
        with suppress(NotOffered):  # before 0.27 the bracket keeps the label
            await super().took(label, model)
        self.model = model
        if self._bracket is not None:
            self._bracket.took(label)
        if model is None:
            for name in self._adapters:  # their base model was replaced
                await self.http.tell("/v1/unload_lora_adapter", {"lora_name": name})


@dataclass(frozen=True, slots=True)
class _ServerInfo:
    """What vLLM says of its configuration. The defaults are those of one that says nothing."""

    is_known: bool = False
    backend: str | None = None
    """Weight-transfer backend."""
    dtype: str | None = None
    max_lora_rank: int = 0
    logprobs_mode: str | None = None
    is_cpu: bool = False

    @classmethod
    def read(cls, answer: Any) -> Self:
        config, environment = answer["vllm_config"], answer.get("vllm_env") or {}
        model, lora = config["model_config"], config.get("lora_config") or {}
        may_load = environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING")
        return cls(
            is_known=True,
            backend=(config.get("weight_transfer_config") or {}).get("backend"),
            dtype=str(model["dtype"]).removeprefix("torch."),
            max_lora_rank=int(lora.get("max_lora_rank", 0)) if may_load else 0,
            logprobs_mode=model.get("logprobs_mode"),
            is_cpu="cpu" in (config.get("device_config") or {}).values(),
        )


def _read_release(answer: Any) -> Release | None:
    return releases.release_of(answer["version"])


def _read_process(answer: Any) -> str:
    """Returns the instance id, which vLLM derives from the time of its start."""
    process = answer["vllm_config"]["instance_id"]
    if type(process) is not str or not process:
        raise ValueError(f"instance_id {process!r}")
    return process


def _read_logprobs(answer: Any) -> list[float]:
    """Returns what may be something else, such as logits."""
    return [float(entry["logprob"]) for entry in answer["choices"][0]["logprobs"]["content"]]
