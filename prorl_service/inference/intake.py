"""What an inference engine can be given. It says so itself: ours beside its model, vLLM by
`/server_info`. How it is then given weights `transfer` knows.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prorl_service.errors import BackendRejected

PLUGIN = "prorl"
"""Name of our weight-transfer backend in vLLM."""
ANY_RANK = 2**31 - 1
NO_PLUGIN = (
    'start vLLM (0.25 or newer) with `--weight-transfer-config \'{"backend": "prorl"}\'` and '
    "prorl-vllm installed, or give weights by a directory that both see"
)
NO_ADAPTERS = (
    "start vLLM with `--enable-lora --max-lora-rank R` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or "
    "let adapters be merged"
)


class FileWay(StrEnum):
    """How an engine gets a file of weights."""

    PUSHED = "pushed"
    FETCHED = "fetched by prorl-vllm"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Intake:
    files: FileWay = FileWay.UNKNOWN
    dtype: str | None = None
    """Type that the engine computes in, by torch's name; None: it does not say."""
    max_lora_rank: int = 0
    """Largest rank of an adapter that it puts on its model; 0: it takes none."""

    def require_files(self, url: str) -> None:
        """Raises `BackendRejected`."""
        if self.files is FileWay.NONE:
            raise BackendRejected(f"{url} takes no weights from trainers", hint=NO_PLUGIN)

    def require_adapters(self, url: str) -> None:
        """Raises `BackendRejected`."""
        if self.max_lora_rank == 0:
            raise BackendRejected(f"{url} takes no LoRA adapters", hint=NO_ADAPTERS)


def of_vllm(server_info: Any) -> Intake:
    """From what `/server_info?config_format=json` answers. Raises what reading it may raise."""
    config, environment = server_info["vllm_config"], server_info.get("vllm_env") or {}
    backend = (config.get("weight_transfer_config") or {}).get("backend")
    lora = config.get("lora_config") or {}
    takes_adapters = backend == PLUGIN and environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING")
    dtype = config["model_config"]["dtype"]
    return Intake(
        FileWay.FETCHED if backend == PLUGIN else FileWay.NONE,
        str(dtype).removeprefix("torch."),
        int(lora.get("max_lora_rank", 0)) if takes_adapters else 0,
    )
