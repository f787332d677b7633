"""Checks of the configuration and the service before any work starts.

They run in the command's own process before Ray starts (`start`), and where the manager is made,
for programs with an entry point of their own.
"""

from collections.abc import Mapping
from typing import Any

from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.schemas import BackendState
from prorl_verl import ignored
from prorl_verl.settings import Settings, max_model_len, training_id

FIRST_CONTACT_S = 10.0


class BadConfiguration(ProRLError):
    """The configuration would train wrongly, or not at all."""


def check_configuration(config: Mapping[str, Any], settings: Settings) -> None:
    """Raises `BadConfiguration`."""
    checks = (
        _check_ignored,
        _check_save,
        _check_reward,
        _check_filter,
        _check_lengths,
        _check_sampling,
    )
    for check in checks:
        check(config, settings)


def _check_ignored(config: Mapping[str, Any], _: Settings) -> None:
    for setting, hint in ignored.contradictions(config):
        raise BadConfiguration(f"{setting} has no effect with rollout=prorl", hint=hint)
    data = config["data"]
    files = [data.get("train_files"), data.get("val_files")]
    if named := set[str]().union(*(ignored.agent_loops(one) for one in files if one)):
        raise BadConfiguration(
            f"column agent_name: {', '.join(sorted(named))}: agent loops of VeRL do not run with "
            "rollout=prorl",
            hint="remove the column, and name agents of the service by prorl.agent or a column "
            "'prorl'",
        )


def _check_save(config: Mapping[str, Any], settings: Settings) -> None:
    if settings.save and (settings.agent_loop or not config["trainer"]["use_v1"]):
        raise BadConfiguration(
            "prorl.save has no effect with prorl.agent_loop=true and with trainer.use_v1=False",
            hint="use the V1 trainer, which is VeRL's default, or set trainer.rollout_data_dir",
        )


def _check_reward(config: Mapping[str, Any], settings: Settings) -> None:
    reward = config["reward"]
    if reward["reward_model"]["enable"]:
        raise BadConfiguration(
            "reward.reward_model.enable=True would score rollouts that the service has scored",
            hint="switch it off, or score in an agent of the service",
        )
    function, manager = reward["custom_reward_function"]["path"], reward["reward_manager"]
    is_stock = (manager["source"], manager["name"]) == ("register", "naive")
    if (function or not is_stock) and (settings.agent_loop or not config["trainer"]["use_v1"]):
        raise BadConfiguration(
            "reward.custom_reward_function and reward.reward_manager have no effect with "
            "prorl.agent_loop=true and with trainer.use_v1=False",
            hint="use the V1 trainer, which is VeRL's default, or score in an agent of the service",
        )
    if function and _draws(config):
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


def _draws(config: Mapping[str, Any]) -> bool:
    """Returns whether groups are drawn from a sampler of the service."""
    is_filtered = config["algorithm"]["filter_groups"]["enable"]
    return bool(is_filtered and config["trainer"]["v1"]["sampler"]["custom_sampler"]["name"])


def _check_filter(config: Mapping[str, Any], settings: Settings) -> None:
    trainer = config["trainer"]
    if not config["algorithm"]["filter_groups"]["enable"]:
        return
    if not trainer["use_v1"]:
        raise BadConfiguration(
            "algorithm.filter_groups.enable has no effect with trainer.use_v1=False",
            hint="use the V1 trainer, which is VeRL's default",
        )
    if settings.agent_loop and trainer["v1"]["sampler"]["custom_sampler"]["name"]:
        raise BadConfiguration(
            "prorl.agent_loop=true sees no groups, and cannot sample them dynamically",
            hint="set trainer.v1.sampler.custom_sampler.name=null for VeRL's own filter",
        )
    mode = trainer["v1"]["trainer_mode"]
    if mode == "separate_async" and trainer["v1"][mode]["hybrid_rollout"]["enable_switch"]:
        raise BadConfiguration(
            "dynamic sampling does not tell VeRL how many groups are ready, which "
            "trainer.v1.separate_async.hybrid_rollout.enable_switch needs",
            hint="switch one of the two off",
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


def check_service(config: Mapping[str, Any], settings: Settings) -> None:
    """Raises `ServiceCallError` for a service that does not answer or refuses our token, and
    `BadConfiguration` for one that others use, or that lacks the agent."""
    with RolloutClient(settings.url, token=settings.token(), retry_s=FIRST_CONTACT_S) as client:
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
