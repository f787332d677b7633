"""The `prorl` node of a configuration, and what follows from VeRL's own settings."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from prorl_verl.checks import ROW_METRICS, BadConfiguration, check_configuration
from prorl_verl.settings import (
    REWARD_METRICS,
    draws,
    draws_per_step,
    group_size,
    max_model_len,
    sampler_spec,
    sampling_of,
    settings_of,
)
from tests.verl.data import row, write_rows

CONFIG: dict[str, Any] = {
    "prorl": {"url": "http://localhost:1", "tokenizer": "m", "agent": "math"},
    "data": {"max_prompt_length": 32, "max_response_length": 100, "train_batch_size": 6},
    "algorithm": {"adv_estimator": "grpo", "filter_groups": {"enable": False, "metric": "acc"}},
    "reward": {
        "reward_model": {"enable": False},
        "custom_reward_function": {"path": None},
        "reward_manager": {"source": "register", "name": "naive"},
    },
    "trainer": {
        "use_v1": True,
        "v1": {
            "trainer_mode": "sync",
            "sampler": {"custom_sampler": {"name": "DynamicSampler"}},
            "sync": {},
            "separate_async": {
                "hybrid_rollout": {"enable_switch": True},
                "parameter_sync_step": 4,
            },
        },
    },
    "actor_rollout_ref": {
        "actor": {"use_dynamic_bsz": False, "ppo_max_token_len_per_gpu": 64},
        "rollout": {
            "name": "vllm",
            "n": 8,
            "temperature": 0.9,
            "top_p": 0.95,
            "top_k": -1,
            "max_model_len": None,
            "prompt_length": 32,
            "response_length": 100,
            "calculate_log_probs": True,
            "val_kwargs": {"n": 2, "temperature": 0, "top_p": 1.0, "top_k": 5},
        },
    },
}


FUNCTION = {"reward__custom_reward_function__path": "f.py"}
DAPO = {"reward__reward_manager__name": "dapo"}


def config(**changes: Any) -> dict[str, Any]:
    """Returns `CONFIG` with changes; `a__b__c=1` sets the key `c` of the node `a.b`."""
    changed = deepcopy(CONFIG)
    for path, value in changes.items():
        *nodes, key = path.split("__")
        node = changed
        for name in nodes:
            node = node[name]
        node[key] = value
    return changed


def test_a_response_is_as_long_as_both_limits_allow() -> None:
    assert settings_of(CONFIG).limits.max_response_tokens == 100
    shorter = config(prorl__limits={"max_response_tokens": 40, "max_turns": 3})
    assert settings_of(shorter).limits.max_response_tokens == 40
    assert settings_of(shorter).limits.max_turns == 3
    longer = config(prorl__limits={"max_response_tokens": 400})
    assert settings_of(longer).limits.max_response_tokens == 100
    assert max_model_len(CONFIG) == 132
    assert max_model_len(config(actor_rollout_ref__rollout__max_model_len=90)) == 90


@pytest.mark.parametrize(
    "changes",
    [
        {"prorl__agnet": "math"},
        {"prorl__limits": {"max_turn": 3}},
        {"prorl__url": "localhost:8080"},
        {"prorl__url": "http://a:8080,b:8080"},
        {"prorl__overlong": {"max_tokens": 4, "buffer_tokens": 8}},
        {"prorl__dynamic_sampling": {"groups": 3}},
        {"prorl__dynamic_sampling": {"surplus": "kept"}},
        {"prorl__save": "rollouts"},
        {"prorl__gateway": {"max_in_flight": 0}},
    ],
)
def test_misspelt_and_impossible_options_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings_of(config(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward__reward_model__enable": True}, "reward_model"),
        (
            {**FUNCTION, "algorithm__filter_groups__enable": True},
            "uses the service's rewards, which reward.custom_reward_function.path replaces",
        ),
        ({**DAPO, "prorl__overlong": {"max_tokens": 8, "buffer_tokens": 4}}, "both punish"),
        (
            {
                "trainer__v1__trainer_mode": "separate_async",
                "algorithm__filter_groups__enable": True,
            },
            "enable_switch",
        ),
        ({"actor_rollout_ref__actor__use_dynamic_bsz": True}, "ppo_max_token_len_per_gpu=64"),
        (
            {
                "actor_rollout_ref__actor__use_dynamic_bsz": True,
                "actor_rollout_ref__actor__ulysses_sequence_parallel_size": 2,
            },
            "no room for one rollout of 132 tokens on 2 GPU",
        ),
        ({"actor_rollout_ref__rollout__temperature": 0}, "temperature"),
        ({"actor_rollout_ref__rollout__calculate_log_probs": False}, "calculate_log_probs"),
        ({"actor_rollout_ref__rollout__name": "sglang"}, r"top_p=0\.95 and top_k=-1: SGLang's"),
        ({"prorl__overlong": {"max_tokens": 400, "buffer_tokens": 8}}, "never reached"),
    ],
)
def test_settings_that_would_train_wrongly_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    check_configuration(CONFIG, settings_of(CONFIG))
    changed = config(**changes)
    with pytest.raises(BadConfiguration, match=message):
        check_configuration(changed, settings_of(changed))


def test_agent_loops_of_verl_in_the_data_are_refused(tmp_path: Path) -> None:
    rows = [row("a", index=0), row("b", index=1)]
    files = {}
    for name in ("tool_agent", "single_turn_agent", "prorl"):
        named = [one | {"agent_name": name} for one in rows]
        files[name] = str(write_rows(tmp_path / f"{name}.parquet", named))
    fine = config(data__train_files=[files["single_turn_agent"], files["prorl"]])
    check_configuration(fine, settings_of(fine))
    refused = config(data__train_files=files["prorl"], data__val_files=files["tool_agent"])
    with pytest.raises(BadConfiguration, match="column agent_name: tool_agent"):
        check_configuration(refused, settings_of(refused))


@pytest.mark.parametrize(
    "changes",
    [
        {"actor_rollout_ref__rollout__max_model_len": 64},
        {
            "actor_rollout_ref__rollout__max_model_len": 128,
            "actor_rollout_ref__actor__ulysses_sequence_parallel_size": 2,
        },
    ],
)
def test_a_smaller_engine_limit_or_more_gpus_make_room_for_a_rollout(
    changes: dict[str, Any],
) -> None:
    dynamic = config(actor_rollout_ref__actor__use_dynamic_bsz=True)
    with pytest.raises(BadConfiguration, match="ppo_max_token_len_per_gpu=64"):
        check_configuration(dynamic, settings_of(dynamic))
    fits = config(actor_rollout_ref__actor__use_dynamic_bsz=True, **changes)
    check_configuration(fits, settings_of(fits))


def test_training_and_validation_sample_as_verl_configures() -> None:
    settings = settings_of(config(prorl__thinking=False))
    train = sampling_of(CONFIG, settings, validate=False)
    assert (train.temperature, train.top_p, train.top_k, train.thinking) == (0.9, 0.95, 0, False)
    val = sampling_of(CONFIG, settings, validate=True)
    assert (val.temperature, val.top_p, val.top_k) == (0, 1.0, 5)
    assert [group_size(CONFIG, validate=validate) for validate in (False, True)] == [8, 2]


def test_draws_per_step_follow_verls_trainer_mode() -> None:
    assert draws_per_step(CONFIG) == 1
    assert draws_per_step(config(trainer__v1__trainer_mode="separate_async")) == 4


def test_synchronous_training_stays_on_policy_unless_asked_otherwise() -> None:
    spec = sampler_spec(CONFIG, settings_of(CONFIG), "sync")
    assert (spec.surplus, spec.max_staleness, spec.groups_ahead) == ("cancel", 0, 0)
    assert spec.oversubscription == 1.5
    assert spec.filter.metric == "reward"
    spec = sampler_spec(CONFIG, settings_of(CONFIG), "colocate_async")
    assert (spec.surplus, spec.max_staleness, spec.groups_ahead) == ("carry", 1, 6)
    assert spec.oversubscription is None
    asked = config(prorl__dynamic_sampling={"surplus": "carry", "max_staleness": None})
    spec = sampler_spec(asked, settings_of(asked), "sync")
    assert (spec.surplus, spec.max_staleness, spec.groups_ahead) == ("carry", 1, 0)
    assert spec.oversubscription is None


@pytest.mark.parametrize("metric", [*REWARD_METRICS, "correct"])
def test_verls_names_of_the_reward_are_the_services(metric: str) -> None:
    filtered = {"enable": True, "metric": metric}
    drawn = config(algorithm__filter_groups=filtered)
    check_configuration(drawn, settings_of(drawn))
    wanted = "correct" if metric == "correct" else "reward"
    assert sampler_spec(drawn, settings_of(drawn), "sync").filter.metric == wanted


@pytest.mark.parametrize("metric", ["score", "seq_reward", "seq_final_reward", "correct", "corect"])
def test_metrics_that_verls_own_filter_would_not_find_are_refused(metric: str) -> None:
    """VeRL would raise when the first groups have ended."""
    filtered = {"enable": True, "metric": metric}
    own = config(
        algorithm__filter_groups=filtered,
        trainer__v1__sampler__custom_sampler__name=None,
    )
    with pytest.raises(BadConfiguration, match=f"metric={metric}") as refused:
        check_configuration(own, settings_of(own))
    assert "what works: reward, acc, overlong_penalty, cut_off" in refused.value.hint
    for works in ROW_METRICS:
        own["algorithm"]["filter_groups"]["metric"] = works
        check_configuration(own, settings_of(own))


@pytest.mark.parametrize("sampler", ["DynamicSampler", None])
def test_a_filter_without_a_metric_is_refused(sampler: str | None) -> None:
    for metric in (None, ""):
        filtered = config(
            algorithm__filter_groups={"enable": True, "metric": metric},
            trainer__v1__sampler__custom_sampler__name=sampler,
        )
        with pytest.raises(BadConfiguration, match=r"needs algorithm\.filter_groups\.metric"):
            check_configuration(filtered, settings_of(filtered))


def test_rewards_after_a_penalty_cannot_be_filtered_on() -> None:
    late = config(
        algorithm__filter_groups={"enable": True, "metric": "seq_final_reward"},
        algorithm__use_kl_in_reward=True,
    )
    with pytest.raises(BadConfiguration, match="after groups are filtered"):
        check_configuration(late, settings_of(late))


def test_a_sampler_of_the_users_own_is_not_taken_for_ours() -> None:
    own = config(
        algorithm__filter_groups={"enable": True, "metric": "acc"},
        trainer__v1__sampler__custom_sampler__name="Mine",
    )
    check_configuration(own, settings_of(own))
    assert not draws(own)
    assert draws(config(algorithm__filter_groups__enable=True))
