"""VeRL's settings for rollouts of its own, which mean nothing here and are refused by name.

Pure: imports no VeRL.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

AGENT_LOOPS = (None, "prorl", "single_turn_agent")
"""Values of the column `agent_name` that contradict nothing: ours, and VeRL's default."""

_ROLLOUT = "actor_rollout_ref.rollout"
_TURNS = "turns and tools are the agent's: see prorl.agent and prorl.limits"
_TOOLS = "tools belong to the service's agents: see docs/tools.md"
_TRACES = "log rollouts at the service, or set trainer.rollout_data_dir"
_SCORES = "the service scores; VeRL's way is reward.custom_reward_function.path"
_LEGACY = "VeRL 0.9 does not read it either: set reward."
_NO_SKIP = "a rollout of the service is never skipped: leave it off"

SETTINGS: dict[str, tuple[Any, str]] = {
    f"{_ROLLOUT}.multi_turn.enable": (False, _TURNS),
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": (None, _TURNS),
    f"{_ROLLOUT}.multi_turn.max_user_turns": (None, _TURNS),
    f"{_ROLLOUT}.multi_turn.num_repeat_rollouts": (None, f"set {_ROLLOUT}.n"),
    f"{_ROLLOUT}.multi_turn.tool_config_path": (None, _TOOLS),
    f"{_ROLLOUT}.multi_turn.function_tool_path": (None, _TOOLS),
    "data.tool_config_path": (None, _TOOLS),
    "data.function_tool_path": (None, _TOOLS),
    f"{_ROLLOUT}.agent.default_agent_loop": ("single_turn_agent", "set prorl.agent"),
    f"{_ROLLOUT}.agent.agent_loop_config_path": (None, "set prorl.agent"),
    f"{_ROLLOUT}.enable_rollout_routing_replay": (
        False,
        "rollouts of the service carry no expert routing decisions: leave it off",
    ),
    f"{_ROLLOUT}.ignore_eos": (False, "an end token ends a turn of the service: leave it off"),
    f"{_ROLLOUT}.trace.backend": (None, _TRACES),
    "distillation.enabled": (False, "rollouts of the service carry no logprobs of a teacher"),
    "skip.rollout.enable": (False, _NO_SKIP),
    "skip.rollout_tq.enable": (False, _NO_SKIP),
    "skip.async_rollout.enable": (False, _NO_SKIP),
    "reward.sandbox_fusion.url": (None, _SCORES),
    "custom_reward_function.path": (None, f"{_LEGACY}custom_reward_function.path"),
    "reward_model.reward_manager": (None, f"{_LEGACY}reward_manager.name"),
    "reward_model.enable": (None, f"{_LEGACY}reward_model.enable"),
}
"""Neutral value of each setting, and what to set instead of another value."""


def contradictions(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields `name=value` of each setting that would be ignored, and what to do."""
    for name, (neutral, hint) in SETTINGS.items():
        value = _find(config, name)
        if value not in (None, neutral):
            yield f"{name}={value}", hint


def _find(config: Mapping[str, Any], name: str) -> Any:
    found: Any = config
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def agent_loops(files: str | Sequence[str]) -> set[str]:
    """Returns VeRL's agent loops that local Parquet files name in their column `agent_name`."""
    named: set[str] = set()
    for file in [files] if isinstance(files, str) else files:
        if file.endswith(".parquet") and Path(file).is_file():
            named |= _named(file)
    return named


def _named(file: str) -> set[str]:
    if "agent_name" not in pq.read_schema(file).names:
        return set()
    column: pa.ChunkedArray = pq.read_table(file, columns=["agent_name"])["agent_name"]
    return {str(one) for one in column.unique().to_pylist() if one not in AGENT_LOOPS}
