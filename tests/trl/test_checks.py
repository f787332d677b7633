"""Trainers and options that would train wrongly, refused before they begin."""

from pathlib import Path
from typing import Any

import pytest
from trl import GRPOTrainer

from prorl_service import neighbours
from prorl_service.neighbours import UntestedRelease
from prorl_service.schemas import Sampling
from prorl_trl import ProRLRollout, checks
from prorl_trl.async_rollouts import ProRLRolloutWorker, ProRLWeightTransfer
from tests.trl.training import make_trainer


@pytest.mark.parametrize(
    ("attributes", "options", "message"),
    [
        ({"tools": [print]}, {}, "remove `tools` and"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, {}, "vllm_mode='server'"),
        ({}, {"temperature": 0.7}, "temperature 1, the trainer computes its logprobs at 0.7"),
        (
            {"environments": [object()], "environment_factories": {None: list}},
            {},
            "environment_factory",
        ),
    ],
)
def test_trainers_that_would_train_wrongly_are_refused(
    idle_url: str,
    policy: Path,
    tmp_path: Path,
    attributes: dict[str, Any],
    options: dict[str, Any],
    message: str,
) -> None:
    trainer = make_trainer(ProRLRollout(idle_url), policy, tmp_path, options=options)
    for name, value in attributes.items():
        setattr(trainer, name, value)
    with pytest.raises(ValueError, match=message):
        checks.check_trainer(trainer, Sampling())


@pytest.mark.parametrize(
    ("options", "sampling", "message"),
    [
        ({"vllm_importance_sampling_mode": "sequence_mask"}, Sampling(), "token_truncate"),
        ({"mask_truncated_completions": True}, Sampling(), "overlong='mask'"),
        ({"max_tool_calling_iterations": 3}, Sampling(), r"Limits\(max_turns="),
        ({}, Sampling(top_k=5), "bias importance ratios"),
    ],
)
def test_settings_that_are_rarely_intended_give_a_warning(
    idle_url: str,
    policy: Path,
    tmp_path: Path,
    options: dict[str, Any],
    sampling: Sampling,
    message: str,
) -> None:
    trainer = make_trainer(ProRLRollout(idle_url), policy, tmp_path, options=options)
    with pytest.warns(UserWarning, match=message):
        checks.warn_about(trainer, sampling, deadline_s=1800)


def test_hooks_that_trl_dropped_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def _generate(self: GRPOTrainer, prompts: list[Any]) -> None:
        self.rollout_func(prompts, self)

    monkeypatch.setattr(GRPOTrainer, "_generate", _generate)
    with pytest.raises(RuntimeError, match=r"no longer reads \['_last_loaded_step'"):
        checks.check_hooks("correct for the engine's logprobs")


def test_an_unsupported_trl_is_named(idle_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "version", lambda package: "1.15.0")
    with pytest.raises(UntestedRelease, match=r"trl 1\.15\.0 is installed"):
        ProRLRollout(idle_url)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"importance_sampling": "on"}, "importance_sampling='on': .*'auto' or 'off'"),
        ({"overlong": "Mask"}, "overlong='Mask': .*'mask' or 'keep'; .*SoftPunishment"),
        ({"overlong": "drop"}, "overlong='drop'"),
        ({"segments": "all"}, "segments='all': .*'refuse', 'longest' or 'last'"),
        ({"on_failure": "ignore"}, "on_failure='ignore': .*'unscorable' or 'raise'"),
        ({"wire": "msgpack"}, "wire='msgpack': .*'packed' or 'json'"),
        ({"dynamic_sampling": "yes"}, "dynamic_sampling='yes': .*boolean; .*SamplerSpec"),
        ({"deadline_s": 0}, "deadline_s=0: .*greater than 0"),
        ({"limits": 5}, "limits=5: .*Limits"),
        ({"limits": {"max_turn": 5}}, "limits={'max_turn': 5}"),
        ({"weights": "strem"}, "weights='strem': use 'auto'"),
        ({"observe": "print"}, "observe='print': .*callable"),
    ],
)
def test_a_refused_option_lists_its_allowed_values(
    idle_url: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ProRLRollout(idle_url, **options)


def test_the_asynchronous_trainers_parts_check_the_same_options(idle_url: str) -> None:
    unknown: Any = "Mask"
    with pytest.raises(ValueError, match=r"overlong='Mask': .*'mask' or 'keep'"):
        ProRLRolloutWorker(idle_url, None, None, overlong=unknown)
    with pytest.raises(ValueError, match="deadline_s=-1"):
        ProRLWeightTransfer(idle_url, deadline_s=-1)
