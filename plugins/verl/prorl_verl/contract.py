"""Parts of VeRL and TransferQueue that the plug-in relies on, looked for before they are used.

VeRL changes: a release that renames what is used here is refused with the name, before a stack
trace appears in a Ray worker's log.
"""

import importlib
import inspect
from importlib.metadata import version
from typing import Any

from packaging.specifiers import SpecifierSet

from prorl_service.errors import ProRLError

SUPPORTED = SpecifierSet(">=0.9,<0.10")

PARAMETERS: dict[str, set[str]] = {
    "verl.workers.rollout.llm_server:LLMServerClient._acquire_server": {"request_id", "extra"},
    "verl.workers.rollout.llm_server:LLMServerClient._release_server": {"server_id", "request_id"},
    "verl.workers.rollout.llm_server:LLMServerClient._vllm_request_id": {"request_id"},
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.sample": {
        "global_steps",
        "partition_id",
        "batch_size",
    },
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.__init__": {"refill_fn", "sampler_kwargs"},
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._add_prompts_to_generate": {"num_prompts"},
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._update_actor": {"batch", "metrics"},
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._update_actor": {"batch"},
    "verl.trainer.ppo.ray_trainer:compute_advantage": {"data"},
    "verl.experimental.agent_loop:AgentLoopManager.create": set(),
    "verl.utils.tensordict_utils:list_of_dict_to_tensordict": {"list_of_dicts"},
    "verl.utils.tracking:Tracking.log": {"data", "step", "backend"},
    "verl.experimental.reward_loop.reward_loop:RewardLoopWorker.compute_score": {"data"},
    "transfer_queue:async_kv_put": {"key", "partition_id", "tag"},
    "transfer_queue:async_kv_batch_put": {"keys", "partition_id", "fields", "tags"},
    "transfer_queue:kv_batch_get": {"keys", "partition_id", "select_fields"},
    "transfer_queue:kv_batch_put": {"keys", "partition_id", "fields", "tags"},
    "transfer_queue:kv_clear": {"keys", "partition_id"},
    "transfer_queue:close": set(),
}
FIELDS: dict[str, set[str]] = {
    "verl.workers.rollout.replica:TokenOutput": {
        "token_ids",
        "log_probs",
        "stop_reason",
        "extra_fields",
    },
    "verl.experimental.agent_loop.agent_loop:AgentLoopOutput": {
        "prompt_ids",
        "response_ids",
        "response_mask",
        "response_logprobs",
        "reward_score",
        "num_turns",
        "metrics",
        "extra_fields",
    },
}


class IncompatibleVeRL(ProRLError):
    """The installed VeRL is not one that the plug-in supports."""


def check_version() -> None:
    """Raises `IncompatibleVeRL`."""
    installed = version("verl")
    if not SUPPORTED.contains(installed, prereleases=True):
        raise IncompatibleVeRL(
            f"rollout=prorl supports verl{SUPPORTED}, but verl {installed} is installed",
            hint=f"pip install 'verl{SUPPORTED}'",
        )


def check() -> None:
    """Raises `IncompatibleVeRL`, with all that is missing."""
    check_version()
    missing = [
        *(lost for name, wanted in PARAMETERS.items() for lost in _lost_parameters(name, wanted)),
        *(lost for name, wanted in FIELDS.items() for lost in _lost_fields(name, wanted)),
    ]
    if missing:
        raise IncompatibleVeRL(
            f"verl {version('verl')} has changed what rollout=prorl relies on: "
            + ", ".join(missing),
            hint="install the newest prorl-service, or verl 0.9.1, with which it was tested",
        )


def _lost_parameters(name: str, wanted: set[str]) -> list[str]:
    found = _find(name)
    if found is None:
        return [name]
    if not wanted:
        return []
    known = set(inspect.signature(inspect.unwrap(found)).parameters)
    return [f"{name}({parameter}=)" for parameter in sorted(wanted - known)]


def _lost_fields(name: str, wanted: set[str]) -> list[str]:
    found = _find(name)
    if found is None:
        return [name]
    return [f"{name}.{field}" for field in sorted(wanted - set(found.model_fields))]


def _find(name: str) -> Any:
    """Returns None for what is not there. Raises `IncompatibleVeRL` for what cannot be imported."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or module).partition(".")[0] == module.partition(".")[0]:
            return None
        raise IncompatibleVeRL(
            f"{module} needs {error.name}, which is not installed", hint=f"pip install {error.name}"
        ) from None
    except ImportError:
        return None
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
