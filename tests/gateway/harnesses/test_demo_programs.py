"""The demo's programs: what its demonstrations say a rollout is, is what a rollout is."""

import asyncio
from pathlib import Path

import pytest

from prorl_service.agents.registry import AgentRegistry
from prorl_service.testing import play
from prorl_service.tokens.chat import ChatFormat
from recipes.demo.demonstrations import Demonstration
from recipes.demo.programs import PROGRAMS, form_of
from recipes.demo.tasks import instances

pytestmark = [pytest.mark.processes, pytest.mark.harnesses, pytest.mark.slow]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_demonstration_has_the_tokens_of_a_rollout(
    name: str, tiny_model: Path, chat: ChatFormat
) -> None:
    form = form_of(name)
    agent = AgentRegistry()["harness"]
    for instance in instances("heldout", 1, seed=0):
        told = form.transcript(Demonstration(instance, instance.right))
        task = PROGRAMS[name].task(instance)
        run = asyncio.run(play(agent, task, told.replies, tokenizer=tiny_model))
        assert run.reward == 1.0
        assert run.rollout.trajectory is not None
        [segment] = run.rollout.trajectory.segments
        expected = told.segment(chat)
        assert segment.prompt_ids == expected.prompt_ids
        assert segment.response_ids == expected.response_ids
        assert segment.loss_mask == expected.loss_mask
