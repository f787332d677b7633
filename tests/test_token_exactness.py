"""Token exactness from the engine's sampler to the client: a trainer gets what the policy sampled.

Runs against the reference engine and, with `scripts/test-vllm`, against vLLM.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from prorl_service import local
from prorl_service.schemas import (
    NOT_SAMPLED,
    Group,
    Limits,
    Rollout,
    Sampling,
    Segment,
)
from prorl_service.tokens.chat import ChatFormat
from tests import builders, real_engines
from tests.trainers import trainer

pytestmark = pytest.mark.processes

TEMPERATURE = 0.8


VERSION = 11


@pytest.fixture(params=real_engines.ENGINES)
def engine_url(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    with real_engines.engine(request.param, tiny_model, log=tmp_path / "engine.log") as engine:
        yield engine.url


def run_rollouts(engine_url: str, model: Path, tmp_path: Path) -> list[Rollout]:
    """Runs rollouts of a random model: turns cut off by length, format errors, several turns."""
    group = Group(
        group_id="noise",
        task=builders.task("noise", "Go on.", data={"answer": "1"}),
        n=16,
        sampling=Sampling(temperature=TEMPERATURE, max_tokens_per_turn=24, seed=1),
        limits=Limits(max_turns=4),
    )
    with (
        local.service([engine_url], log=tmp_path / "service.log") as service,
        trainer(service.url) as client,
    ):
        assert client.load_weights(str(model), after=VERSION - 1).pending == []
        client.submit([group])
        return client.wait(group.rollout_ids(), timeout_s=120)


def trainer_logprobs(model: torch.nn.Module, segment: Segment) -> torch.Tensor:
    """Returns float32[R]: logprobs of every response token under a plain forward pass."""
    ids = torch.tensor([segment.prompt_ids + segment.response_ids])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(segment.prompt_ids) - 1 : -1] / TEMPERATURE
    targets = torch.tensor(segment.response_ids)[:, None]
    logprobs: torch.Tensor = logits.log_softmax(-1).gather(1, targets)[:, 0]
    return logprobs


def test_a_trainer_computes_the_logprobs_it_was_given(
    engine_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    rollouts = run_rollouts(engine_url, tiny_model, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    chat = ChatFormat.load(tiny_model)
    turns, drifted = 0, 0
    for rollout in rollouts:
        assert rollout.trajectory is not None, rollout.error
        (segment,) = rollout.trajectory.segments
        mask = torch.tensor(segment.loss_mask, dtype=torch.bool)
        expected = trainer_logprobs(model, segment).where(mask, 0)
        assert (torch.tensor(segment.logprobs) - expected).abs().max() < 1e-4
        assert set(segment.policy_versions) <= {VERSION, NOT_SAMPLED}
        for turn in rollout.trajectory.turns:
            sampled = segment.response_ids[turn.start : turn.stop]
            assert segment.loss_mask[turn.start : turn.stop] == [1] * len(sampled)
            drifted += chat.encode(turn.text) != [
                token for token in sampled if token != chat.end_of_turn_id
            ]
            turns += 1
    assert turns > len(rollouts)
    assert drifted > 0.9 * turns  # otherwise, tokens encoded from text would pass, too
