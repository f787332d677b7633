"""Checks of the configuration and the service before any work starts.

They run in the command's own process before Ray starts (`start`), and where the manager is made,
for programs with an entry point of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.schemas import BackendState
from prorl_verl import fields
from prorl_verl.settings import (
    REWARD_METRICS,
    Settings,
    draws,
    max_model_len,
    template_options,
    training_id,
)

FIRST_CONTACT_S = 10.0
AGENT_LOOPS = (None, "prorl", "single_turn_agent")
"""Values of the column `agent_name` that contradict nothing: ours, and VeRL's default."""
PROCESSED = "processed_logprobs"
ROW_METRICS = ("reward", "acc", "overlong_penalty", "cut_off")
"""Metrics of a row that VeRL's own filter can use."""


class BadConfiguration(ProRLError):
    """The configuration would train wrongly, or not at all."""


def check_configuration(config: Mapping[str, Any], settings: Settings) -> None:
    """Raises `BadConfiguration`."""
    checks = (
        _check_ignored,
        _check_agent_loops,
        _check_template,
        _check_reward,
        _check_filter,
        _check_lengths,
        _check_sampling,
    )
    for check in checks:
        check(config, settings)


def ignored(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each setting without an effect, and for each that is unknown here."""
    table = {**fields.WARNED, **(fields.WARNED_IF_DRAWN if draws(config) else {})}
    for setting, hint in fields.contradictions(config, table):
        yield f"{setting} has no effect with rollout=prorl: {hint}"
    for setting in fields.unknown(config):
        yield f"{setting} may have no effect: rollout=prorl does not know this setting"


def _check_ignored(config: Mapping[str, Any], _: Settings) -> None:
    for setting, hint in fields.contradictions(config, fields.REFUSED):
        raise BadConfiguration(f"{setting} has no effect with rollout=prorl", hint=hint)


def _check_agent_loops(config: Mapping[str, Any], _: Settings) -> None:
    data = config["data"]
    files = [data.get("train_files"), data.get("val_files")]
    if named := set[str]().union(*(_agent_loops(one) for one in files if one)):
        raise BadConfiguration(
            f"column agent_name: {', '.join(sorted(named))}: agent loops of VeRL do not run with "
            "rollout=prorl",
            hint="remove the column, and name agents of the service by prorl.agent or a column "
            "'prorl'",
        )


def _agent_loops(files: str | Sequence[str]) -> set[str]:
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


def _check_template(config: Mapping[str, Any], settings: Settings) -> None:
    options = template_options(config)
    if others := sorted(set(options) - {"enable_thinking"}):
        raise BadConfiguration(
            f"data.apply_chat_template_kwargs.{others[0]}={options[others[0]]} has no effect with "
            "rollout=prorl, which takes enable_thinking only",
            hint="save the tokenizer with a template that has it as its default",
        )
    thinking = options.get("enable_thinking")
    if thinking not in (None, settings.thinking):
        raise BadConfiguration(
            f"data.apply_chat_template_kwargs.enable_thinking={thinking} contradicts "
            f"prorl.thinking={settings.thinking}",
            hint="set one of the two",
        )


def _check_reward(config: Mapping[str, Any], settings: Settings) -> None:
    reward = config["reward"]
    function, manager = reward["custom_reward_function"]["path"], reward["reward_manager"]
    if function and draws(config):
        raise BadConfiguration(
            "dynamic sampling uses the service's rewards, which "
            "reward.custom_reward_function.path replaces",
            hint="set trainer.v1.sampler.custom_sampler.name=null for VeRL's own filter, which "
            "uses yours, or score in an agent of the service",
        )
    if settings.overlong and manager["name"] == "dapo":
        raise BadConfiguration(
            "prorl.overlong and reward.reward_manager.name=dapo would both punish long rollouts",
            hint="set one: the former counts sampled tokens, the latter tool output as well",
        )


def _check_filter(config: Mapping[str, Any], _: Settings) -> None:
    if not config["algorithm"]["filter_groups"]["enable"]:
        return
    _check_metric(config)
    modes = config["trainer"]["v1"]
    mode = modes["trainer_mode"]
    if (
        draws(config)
        and mode == "separate_async"
        and modes[mode]["hybrid_rollout"]["enable_switch"]
    ):
        raise BadConfiguration(
            "dynamic sampling does not tell VeRL how many groups are ready, which "
            "trainer.v1.separate_async.hybrid_rollout.enable_switch needs",
            hint="switch one of the two off",
        )


def _check_metric(config: Mapping[str, Any]) -> None:
    metric, reward = config["algorithm"]["filter_groups"]["metric"], config["reward"]
    if not metric:
        raise BadConfiguration(
            "algorithm.filter_groups.enable needs algorithm.filter_groups.metric",
            hint="set it to acc, the service's reward",
        )
    if metric == "seq_final_reward" and config["algorithm"].get("use_kl_in_reward"):
        raise BadConfiguration(
            "algorithm.filter_groups.metric=seq_final_reward is known after "
            "algorithm.use_kl_in_reward has its effect, which is after groups are filtered",
            hint="set it to acc, the service's reward",
        )
    is_ours = not reward["custom_reward_function"]["path"]
    if is_ours and not draws(config) and metric not in ROW_METRICS:
        raise BadConfiguration(
            f"algorithm.filter_groups.metric={metric} is not in the rows that VeRL's filter sees",
            hint=f"what works: {', '.join(ROW_METRICS)}; dynamic sampling takes "
            f"{', '.join(REWARD_METRICS)} and components of the agent's reward",
        )


def _check_lengths(config: Mapping[str, Any], settings: Settings) -> None:
    data, actor = config["data"], config["actor_rollout_ref"]["actor"]
    longest = min(data["max_prompt_length"] + data["max_response_length"], max_model_len(config))
    # VeRL splits a sequence over this many GPUs.
    gpus = actor.get("ulysses_sequence_parallel_size") or 1
    room = actor["ppo_max_token_len_per_gpu"]
    if actor["use_dynamic_bsz"] and room * gpus < longest:
        raise BadConfiguration(
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={room} has no room for one rollout "
            f"of {longest} tokens on {gpus} GPU(s)",
            hint="raise it, or lower data.max_prompt_length, data.max_response_length or "
            "actor_rollout_ref.rollout.max_model_len",
        )
    if settings.overlong and settings.overlong.max_tokens > data["max_response_length"]:
        raise BadConfiguration(
            f"prorl.overlong.max_tokens={settings.overlong.max_tokens} is never reached: "
            f"data.max_response_length={data['max_response_length']}"
        )


def _check_sampling(config: Mapping[str, Any], _: Settings) -> None:
    rollout = config["actor_rollout_ref"]["rollout"]
    if rollout["temperature"] <= 0:
        raise BadConfiguration(
            "actor_rollout_ref.rollout.temperature must be above 0: VeRL computes logprobs at it"
        )
    if not rollout["calculate_log_probs"]:
        raise BadConfiguration(
            "actor_rollout_ref.rollout.calculate_log_probs=False discards the engine's logprobs",
            hint="leave it on, which is VeRL's default",
        )
    if rollout["name"] == "sglang" and (rollout["top_p"] < 1 or rollout["top_k"] > 0):
        raise BadConfiguration(
            f"actor_rollout_ref.rollout.top_p={rollout['top_p']} and top_k={rollout['top_k']}: "
            "SGLang's logprobs are of the distribution before these cut it",
            hint="set them to 1 and -1, or set actor_rollout_ref.rollout.name=vllm",
        )
    engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    for where, one in (("", rollout), ("engine_kwargs.vllm.", engine)):
        mode = one.get("logprobs_mode") or PROCESSED
        if mode != PROCESSED:
            raise BadConfiguration(
                f"actor_rollout_ref.rollout.{where}logprobs_mode={mode}: the trainer would take "
                "them for logprobs of the distribution that was sampled from",
                hint=f"set it to {PROCESSED}, which is VeRL's default",
            )


def check_service(config: Mapping[str, Any], settings: Settings) -> None:
    """Raises `ServiceCallError` for a service that does not answer or refuses our token, and
    `BadConfiguration` for one that others use, or that lacks the agent."""
    with RolloutClient(**settings.client_options(retry_s=FIRST_CONTACT_S)) as client:
        status = client.status()
        for backend in status.backends:
            if backend.state is BackendState.DOWN:  # of a trainer that died
                client.remove_backend(backend.backend_id)
    held = status.training
    is_taken = held is not None and held.is_live and not settings.take_over
    if held is not None and is_taken and held.training.training_id != training_id(config):
        raise BadConfiguration(
            f"the service at {settings.url} trains for {held.training.user}, pid "
            f"{held.training.pid} on {held.training.host}, last heard of {held.silent_s:.0f} s ago",
            hint="start a service of its own for each training, or stop that one with "
            "prorl.take_over=true",
        )
    if settings.agent is not None and settings.agent not in status.agents:
        raise BadConfiguration(
            f"prorl.agent={settings.agent} is unknown; the service has: {', '.join(status.agents)}",
            hint="start the service with `--agent module:Class`",
        )
    up = [one for one in status.backends if one.state is not BackendState.DOWN]
    others = [one.url for one in up if one.training is None]  # the others leave with their training
    if others:
        raise BadConfiguration(
            f"the service at {settings.url} has other engines already: {', '.join(others)}",
            hint="they would sample rollouts, too; start a service without --backend for each "
            "training run",
        )
