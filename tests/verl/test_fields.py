"""Settings of VeRL: each field has one class, and what would be ignored is refused or warned of."""

import re
from copy import deepcopy
from itertools import chain
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from prorl_verl import checks, fields
from prorl_verl.checks import BadConfiguration, check_configuration
from prorl_verl.settings import SECTIONS, sampling_of, settings_of
from tests.verl.test_hydra import VERL_CONFIG
from tests.verl.test_settings import CONFIG, config

ADDED = {
    "prorl",
    "data.sampler",
    "data.datagen",
    "reward.reward_kwargs",
    "actor_rollout_ref.rollout.custom",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
}
"""Names that users add to VeRL's configuration."""
DRAWING = {"algorithm__filter_groups__enable": True}


ENGINES = ("dp", "megatron", "torchtitan", "veomni")
"""Values of VeRL's `model_engine`."""


@pytest.fixture(scope="module")
def stock() -> dict[str, Any]:
    """Returns VeRL's own sections, with what a run has to set."""
    needed = ["actor_rollout_ref.model.path=m", "actor_rollout_ref.rollout.name=vllm"]
    with initialize_config_dir(str(VERL_CONFIG), version_base=None):
        composed = compose("ppo_trainer", [*needed, "algorithm.adv_estimator=grpo"])
    names = [name for name in SECTIONS if name in composed]
    resolved = {name: OmegaConf.to_container(composed[name], resolve=True) for name in names}
    return {**resolved, "prorl": CONFIG["prorl"]}


def with_field(base: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    changed = deepcopy(base)
    *nodes, key = name.split(".")
    node = changed
    for one in nodes:
        node[one] = node.get(one) or {}
        node = node[one]
    node[key] = value
    return changed


def others_than(neutral: Any) -> list[Any]:
    """Returns values of the neutral one's type and of others, none of which is neutral."""
    values = [True, 7, "other", {"key": 5}]
    return [one for one in values if one != neutral]


def test_every_field_of_verl_has_one_class() -> None:
    with initialize_config_dir(str(VERL_CONFIG), version_base=None):
        every = [compose("ppo_trainer", [f"model_engine={engine}"]) for engine in ENGINES]
    leaves = (fields.leaves(OmegaConf.to_container(one)) for one in every)
    names = {name for name, _ in chain.from_iterable(leaves)}
    assert [name for name in names if fields.entry_of(name) is None] == []
    entries = {entry for name in names if (entry := fields.entry_of(name)) is not None}
    assert {fields.KINDS[entry] for entry in entries} == {"read", "harmless", "refused", "warned"}
    listed = [name for name, _ in fields.LISTED]
    assert len(listed) == len(set(listed)) == len(fields.KINDS)
    assert {*listed} - entries == ADDED


def test_a_field_that_a_new_release_adds_has_no_class(stock: dict[str, Any]) -> None:
    for node in ("actor_rollout_ref.rollout", "data", "algorithm", "trainer.v1.sampler", "reward"):
        newer = with_field(stock, f"{node}.added", 3)
        assert fields.entry_of(f"{node}.added") is None
        assert [*checks.ignored(newer)] == [
            f"{node}.added=3 may have no effect: rollout=prorl does not know this setting"
        ]
        assert [*checks.ignored(with_field(stock, f"{node}.added", None))] == []


def test_verls_defaults_are_neither_refused_nor_warned_of(stock: dict[str, Any]) -> None:
    check_configuration(stock, settings_of(stock))
    assert [*checks.ignored(stock)] == []
    drawing = with_field(stock, "algorithm.filter_groups.enable", True)
    drawing = with_field(drawing, "trainer.v1.sampler.custom_sampler.name", "DynamicSampler")
    assert [*checks.ignored(drawing)] == []


@pytest.mark.parametrize("name", fields.REFUSED)
def test_every_value_but_the_neutral_one_is_refused_by_name(
    name: str, stock: dict[str, Any]
) -> None:
    for value in others_than(fields.REFUSED[name][0]):
        changed = with_field(stock, name, value)
        with pytest.raises(BadConfiguration) as refused:
            check_configuration(changed, settings_of(changed))
        said = rf"{name}(\.key)?=.* has no effect with rollout=prorl"
        assert re.fullmatch(said, refused.value.message)
        assert refused.value.hint


@pytest.mark.parametrize("name", [*fields.WARNED, *fields.WARNED_IF_DRAWN])
def test_every_value_but_the_neutral_one_is_warned_of_by_name(
    name: str, stock: dict[str, Any]
) -> None:
    stock = with_field(stock, "algorithm.filter_groups.enable", True)
    stock = with_field(stock, "trainer.v1.sampler.custom_sampler.name", "DynamicSampler")
    neutral = {**fields.WARNED, **fields.WARNED_IF_DRAWN}[name][0]
    for value in others_than(neutral):
        changed = with_field(stock, name, value)
        assert [line for line in checks.ignored(changed) if line.startswith(name)]


def test_settings_of_verls_own_filter_are_its_own() -> None:
    name = "algorithm__filter_groups__max_inflight_gen_batches"
    of_verl = config(**{name: 3}, trainer__v1__sampler={"custom_sampler": {"name": None}})
    assert [*checks.ignored(of_verl)] == []
    (line,) = checks.ignored(config(**{name: 3}, **DRAWING))
    assert line.startswith("algorithm.filter_groups.max_inflight_gen_batches=3 has no effect")


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_is_taken_over_from_the_template_options_of_verl(thinking: bool) -> None:
    asked = config(data__apply_chat_template_kwargs={"enable_thinking": thinking})
    settings = settings_of(asked)
    check_configuration(asked, settings)
    for validate in (True, False):
        assert sampling_of(asked, settings, validate=validate).thinking is thinking
    other = {**asked, "prorl": {**asked["prorl"], "thinking": not thinking}}
    with pytest.raises(BadConfiguration, match=r"contradicts prorl\.thinking"):
        check_configuration(other, settings_of(other))


@given(
    st.dictionaries(st.text(min_size=1), st.booleans(), min_size=1, max_size=3).filter(
        lambda options: set(options) != {"enable_thinking"}
    )
)
def test_other_template_options_are_refused_by_name(options: dict[str, bool]) -> None:
    asked = config(data__apply_chat_template_kwargs=options)
    others = sorted(set(options) - {"enable_thinking"})
    with pytest.raises(BadConfiguration) as refused:
        check_configuration(asked, settings_of(asked))
    assert f"data.apply_chat_template_kwargs.{others[0]}=" in refused.value.message


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logits"])
@pytest.mark.parametrize("place", ["", "engine_kwargs.vllm."])
def test_logprobs_of_another_distribution_are_refused(
    place: str, mode: str, stock: dict[str, Any]
) -> None:
    asked = with_field(stock, f"actor_rollout_ref.rollout.{place}logprobs_mode", mode)
    with pytest.raises(BadConfiguration, match=f"{place}logprobs_mode={mode}"):
        check_configuration(asked, settings_of(asked))
    fine = with_field(
        stock, f"actor_rollout_ref.rollout.{place}logprobs_mode", "processed_logprobs"
    )
    check_configuration(fine, settings_of(fine))
