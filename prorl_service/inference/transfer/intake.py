"""Weights that an inference engine takes, as it reports: ours with its model, vLLM by
`/server_info`. `ways` knows how the weights are then transferred.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prorl_service.errors import BackendRejected
from prorl_service.inference.releases import SHARES_NCCL_SETTINGS, SWAPS_ADAPTERS, Release

PLUGIN = "prorl"
"""Name of our weight-transfer backend in vLLM."""
NCCL = "nccl"
"""Name of vLLM's own backend for weights that a trainer broadcasts."""
ANY_RANK = 2**31 - 1
NO_PLUGIN = (
    'start vLLM (0.25 or newer) with `--weight-transfer-config \'{"backend": "prorl"}\'` and '
    "prorl-vllm installed, or pass weights through a directory that both see"
)
NO_ADAPTERS = (
    "start vLLM with `--enable-lora --max-lora-rank R` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or "
    "merge adapters into the model"
)


NEEDS_NCCL = (
    "it takes weights by NCCL: install vLLM 0.28 or newer next to the trainer, which needs a GPU, "
    "and start all engines alike; or start them with prorl-vllm"
)


class Way(StrEnum):
    """Ways in which an engine gets weights that it does not find in a directory."""

    PUSHED = "a file, pushed"
    FETCHED = "a file, fetched by prorl-vllm"
    BROADCAST = "broadcast by NCCL"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Intake:
    way: Way = Way.UNKNOWN
    dtype: str | None = None
    """Type that the engine computes in, by torch's name; None if the engine does not report it."""
    max_lora_rank: int = 0
    """Largest rank of an adapter that the engine puts on its model; 0: it takes no adapters."""
    workers: int = 0
    """Number of the engine's processes in a broadcast; 0: it takes no broadcasts."""
    logprobs_mode: str | None = None
    """Mode of its logprobs, by vLLM's name; None if the engine does not report it."""
    takes_seeds: bool = True
    """False for an engine that a seeded call may end: vLLM on a CPU, for a prompt that it computes
    in parts (vLLM 0.32)."""

    def require_files(self, url: str) -> None:
        """Raises `BackendRejected` if the engine takes no files."""
        if self.way in (Way.NONE, Way.BROADCAST):
            hint = NEEDS_NCCL if self.way is Way.BROADCAST else NO_PLUGIN
            raise BackendRejected(f"{url} takes no files of weights from trainers", hint=hint)

    def require_adapters(self, url: str) -> None:
        """Raises `BackendRejected` if the engine takes no adapters."""
        if self.max_lora_rank == 0:
            raise BackendRejected(f"{url} takes no LoRA adapters", hint=NO_ADAPTERS)


def of_vllm(server_info: Any, release: Release | None) -> Intake:
    """Reads the answer of `/server_info?config_format=json`. Raises like the readers in
    `answers`."""
    config, environment = server_info["vllm_config"], server_info.get("vllm_env") or {}
    backend = (config.get("weight_transfer_config") or {}).get("backend")
    lora = config.get("lora_config") or {}
    is_new = release is None or release >= SWAPS_ADAPTERS
    allows = environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING")
    takes_adapters = is_new and backend == PLUGIN and allows
    dtype = config["model_config"]["dtype"]
    return Intake(
        _way(backend, release),
        str(dtype).removeprefix("torch."),
        int(lora.get("max_lora_rank", 0)) if takes_adapters else 0,
        logprobs_mode=config["model_config"].get("logprobs_mode"),
        takes_seeds="cpu" not in (config.get("device_config") or {}).values(),
    )


def _way(backend: str | None, release: Release | None) -> Way:
    if backend == PLUGIN:
        return Way.FETCHED
    takes_broadcasts = release is None or release >= SHARES_NCCL_SETTINGS
    return Way.BROADCAST if backend == NCCL and takes_broadcasts else Way.NONE
