import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.math import MathAgent
from prorl_service.rewards.pool import ScoringPool
from prorl_service.sandbox.kinds.process import ProcessSandboxProvider
from prorl_service.schemas import FinishReason
from prorl_service.testing import ScriptedGenerator
from prorl_service.tokens.chat import ChatFormat
from prorl_trl.convert import task_of
from recipes.common.training import imitation
from recipes.common.training.imitation import tool_call
from recipes.demo.demonstrations import Demonstration, demonstrations
from recipes.demo.tasks import FORMAT_REWARD, Instance, instances
from recipes.demo.train import dataset_row
from recipes.demo.warm_start import VOCAB_SIZE
from tests.agents.attempts import attempt_of


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    directory: Path = tmp_path_factory.mktemp("demo-model")
    texts = imitation.texts_of(
        [one.transcript() for one in demonstrations(300, seed=0)], VOCAB_SIZE
    )
    imitation.build(directory, texts, vocab_size=VOCAB_SIZE, seed=0)
    return ChatFormat.load(directory)


@pytest.fixture(scope="module")
def scoring() -> Iterator[ScoringPool]:
    pool = ScoringPool()
    yield pool
    asyncio.run(pool.close())


def test_instances_depend_only_on_the_seed() -> None:
    assert instances("train", 20, seed=1) == instances("train", 20, seed=1)
    assert instances("train", 20, seed=1) != instances("train", 20, seed=2)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_splits_share_no_sum_and_no_file_content(seed: int) -> None:
    def keys(split: list[str]) -> set[frozenset[str]]:
        """Returns the numbers of each sum in any order, and the content of each file."""
        return {
            frozenset(numbers) if family == "add" else frozenset(numbers[1:])
            for family, *numbers in (name.split("-") for name in split)
        }

    train = [instance.name for instance in instances("train", 720, seed=seed)]
    heldout = [instance.name for instance in instances("heldout", 180, seed=seed)]
    assert len(keys(train)) == len(train) == 1440
    assert len(keys(heldout)) == len(heldout) == 360
    assert not keys(train) & keys(heldout)


def test_a_dataset_row_carries_its_task() -> None:
    for instance in instances("train", 2, seed=0):
        prompt = dataset_row(instance.task())["prompt"]
        assert task_of(prompt, default_agent=None) == instance.task()


@pytest.mark.processes
@pytest.mark.parametrize("instance", instances("heldout", 3, seed=0), ids=lambda x: x.name)
async def test_demonstrations_are_what_the_service_records(
    instance: Instance, chat: ChatFormat, scoring: ScoringPool
) -> None:
    """The real agent in a real shell gets the same output, the same tokens and the right score."""
    for attempt in (instance.right, *instance.wrong):
        demonstration = Demonstration(instance, attempt)
        call = tool_call("bash", {"command": attempt.command})
        generator = ScriptedGenerator.of_texts([call, attempt.output], chat)
        agent, rollout = (
            MathAgent(instance.task()),
            context(demonstration, generator, chat, scoring),
        )
        async with rollout.attempt.sandboxes, rollout.attempt.resources:
            await agent.init(rollout)
            reason = await agent.run(rollout)
        verdict = await agent.eval(rollout)

        assert reason is FinishReason.FINISHED
        assert rollout.turns[0].tool_calls[0].output == attempt.output
        recorded = rollout.attempt.sampled.trajectory(reason).segments[0]
        expected = demonstration.transcript().segment(chat)
        assert recorded.prompt_ids == expected.prompt_ids
        assert recorded.response_ids == expected.response_ids
        assert recorded.loss_mask == expected.loss_mask
        assert verdict.reward == (1.0 if attempt is instance.right else FORMAT_REWARD)


def context(
    demonstration: Demonstration,
    generator: ScriptedGenerator,
    chat: ChatFormat,
    scoring: ScoringPool,
) -> RolloutContext:
    task = demonstration.instance.task()
    prompt = MathAgent(task).prompt()
    attempt = attempt_of(
        chat,
        generator,
        ProcessSandboxProvider(),
        task=task,
        prompt_ids=chat.prompt_ids(prompt.messages, tools=prompt.tools),
        max_model_len=512,
        scoring=scoring,
    )
    return RolloutContext(attempt)


def test_tokens_span_the_template_but_digits_stay_single(chat: ChatFormat) -> None:
    for example in demonstrations(50, seed=3):
        segment = example.transcript().segment(chat)
        assert len(segment.prompt_ids) <= 24
        assert sum(segment.loss_mask) <= 20
        for id_ in segment.prompt_ids + segment.response_ids:
            text = chat.decode([id_])
            assert len(text) == 1 or not any(character.isdigit() for character in text)
