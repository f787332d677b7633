"""Settings of TRL's trainers: each has one class, and what the service can do reaches it."""

import dataclasses
import inspect
from itertools import combinations
from typing import Any

import pytest
import trl
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import GenerationConfig
from trl import GRPOConfig

from prorl_service.schemas import Sampling
from prorl_trl import settings
from prorl_trl.settings import sampling_of, warnings_of, warnings_of_model

CPU: dict[str, Any] = {"output_dir": "unused", "use_cpu": True, "bf16": False}


def config(**options: Any) -> GRPOConfig:
    return GRPOConfig(**CPU | options)


# --- classes ------------------------------------------------------------------------------------


def test_every_setting_of_the_installed_trl_has_a_class() -> None:
    """A release with a new field fails here: say in `settings` what becomes of it."""
    found = settings.classified()
    unknown = [
        f"{kind}.{name} of trl {trl.__version__}"
        for kind, classes in found.items()
        for name, label in classes.items()
        if label == "unclassified"
    ]
    assert unknown == []
    fields = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    assert found["GRPOConfig"].keys() == fields
    assert len(fields) > 150
    arguments = list(inspect.signature(trl.GRPOTrainer.__init__).parameters)[1:]
    assert list(found["GRPOTrainer"]) == arguments


def test_no_setting_has_two_classes() -> None:
    assert not any(one & other for one, other in combinations(settings.FIELDS.values(), 2))


def test_a_setting_that_nobody_has_classified_is_named_if_it_is_used() -> None:
    @dataclasses.dataclass
    class LaterConfig(GRPOConfig):  # type: ignore[misc]
        beam_width: int = 1
        stop_words: list[str] = dataclasses.field(default_factory=list)

    assert list(warnings_of(LaterConfig(**CPU))) == []
    [message] = warnings_of(LaterConfig(**CPU, stop_words=["END"]))
    assert "LaterConfig has stop_words=['END'], a setting that prorl_trl does not know" in message
    assert settings.class_of("beam_width") == "unclassified"


@pytest.mark.parametrize("name", ["min_p", "repetition_penalty", "vllm_structured_outputs_regex"])
def test_what_the_engines_are_not_asked_for_is_refused(name: str) -> None:
    value: Any = "a+" if name.endswith("regex") else 0.5
    with pytest.raises(ValueError, match=rf"GRPOConfig has {name}=.*remove it"):
        sampling_of(config(**{name: value}), None)


def test_settings_of_the_model_that_trls_own_engine_would_obey_are_named() -> None:
    """TRL gives its own engines the sampling settings of its configuration instead."""
    known = GenerationConfig(temperature=0.6, top_p=0.95, top_k=20, do_sample=True, eos_token_id=2)
    assert list(warnings_of_model(known)) == []
    assert list(warnings_of_model(None)) == []
    returned = GenerationConfig(output_attentions=False, return_dict_in_generate=True)
    assert list(warnings_of_model(returned)) == []
    [message] = warnings_of_model(GenerationConfig(no_repeat_ngram_size=3))
    assert "no_repeat_ngram_size=3" in message


# --- what reaches the service -------------------------------------------------------------------


def test_without_settings_the_service_samples_as_the_trainer_computes() -> None:
    assert sampling_of(config(), None) == Sampling()
    assert sampling_of(config(temperature=0.7), None) == Sampling(temperature=0.7)


def test_settings_with_an_equal_are_taken_over() -> None:
    asked = config(
        chat_template_kwargs={"enable_thinking": False},
        top_p=0.9,
        generation_kwargs={"top_k": 7, "seed": 3, "min_p": 0.0, "repetition_penalty": None},
    )
    expected = Sampling(thinking=False, top_p=0.9, top_k=7, seed=3)
    assert sampling_of(asked, None) == expected
    merged = sampling_of(asked, Sampling(max_tokens_per_turn=8, top_k=7))
    assert merged == expected.model_copy(update={"max_tokens_per_turn": 8})


def test_settings_of_the_asynchronous_trainer_are_taken_over() -> None:
    from trl.experimental.async_grpo import AsyncGRPOConfig

    asked = AsyncGRPOConfig(**CPU, chat_template_kwargs={"enable_thinking": True})
    assert sampling_of(asked, None) == Sampling(thinking=True)
    with pytest.raises(ValueError, match=r"has thinking=False, chat_template_kwargs .* has True"):
        sampling_of(asked, Sampling(thinking=False))


def some_of(**values: list[float]) -> st.SearchStrategy[dict[str, Any]]:
    """Returns a strategy of dictionaries with some of the keys."""
    optional = {name: st.sampled_from(several) for name, several in values.items()}
    return st.fixed_dictionaries({}, optional=optional)


TEMPERATURES = [0.5, 1.0]


@given(
    options=some_of(top_p=[0.5, 0.9], top_k=[5, 20], temperature=TEMPERATURES),
    extra=some_of(top_p=[0.5, 0.9], top_k=[5, 20], temperature=TEMPERATURES, seed=[1, 2]),
    given_=some_of(top_p=[0.5, 0.9, 1.0], top_k=[0, 5, 20], temperature=TEMPERATURES, seed=[1, 2]),
)
def test_whoever_asks_gets_it_and_contradictions_are_refused(
    options: dict[str, Any], extra: dict[str, Any], given_: dict[str, Any]
) -> None:
    """Three places may ask for a value: the configuration, its extra options and `sampling`."""
    asked = config(**options, generation_kwargs=extra)
    places = [{"temperature": asked.temperature} | options, extra, given_]
    values = {name: {one[name] for one in places if name in one} for one in places for name in one}
    if any(len(different) > 1 for different in values.values()):
        with pytest.raises(ValueError, match="make them equal"):
            sampling_of(asked, Sampling(**given_))
    else:
        expected = {name: next(iter(same)) for name, same in values.items()}
        assert sampling_of(asked, Sampling(**given_)) == Sampling(**expected)


@given(name=st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1), value=st.just(2))
def test_options_that_are_not_known_to_be_neutral_are_refused(name: str, value: int) -> None:
    assume(name not in ("temperature", "seed"))
    with pytest.raises(ValueError, match=f"generation_kwargs has {name}=2: "):
        sampling_of(config(generation_kwargs={name: value}), None)
    with pytest.raises(ValueError, match=f"chat_template_kwargs has {name}=2: "):
        sampling_of(config(chat_template_kwargs={name: value}), None)


@pytest.mark.parametrize("options", [{"stop": ["END"]}, {"do_sample": False}, {"min_p": 0.1}])
def test_options_that_change_sampling_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"generation_kwargs has .*remove it"):
        sampling_of(config(generation_kwargs=options), None)
