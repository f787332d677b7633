"""The dialogues about orders: their splits, their user, and demonstrations as the service records
them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.dialogue.agent import DialogueAgent
from prorl_service.agents.dialogue.user import STOP
from prorl_service.agents.services import OperatorServices
from prorl_service.net.chat_model import ChatModel, ChatModelConfig
from prorl_service.schemas import FinishReason
from prorl_service.testing import ScriptedGenerator
from prorl_service.tokens.chat import ChatFormat
from prorl_trl.convert import task_of
from recipes.common.training import imitation
from recipes.demo.train import dataset_row
from recipes.dialogue.demonstrations import VOCAB_SIZE, Demonstration, demonstrations
from recipes.dialogue.tasks import CONTEXT, LIMITS, Instance, instances
from recipes.dialogue.user import MODEL, answer, customer
from tests.agents.attempts import attempt_of


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    directory: Path = tmp_path_factory.mktemp("dialogue-model")
    texts = imitation.texts_of(
        [one.transcript() for one in demonstrations(300, seed=0)], VOCAB_SIZE
    )
    imitation.build(directory, texts, vocab_size=VOCAB_SIZE, seed=0)
    return ChatFormat.load(directory)


@pytest.fixture
async def user() -> AsyncIterator[ChatModel]:
    async with (
        customer() as endpoint,
        ChatModel(ChatModelConfig("user", endpoint.url, [MODEL])) as model,
    ):
        yield model


def test_instances_depend_only_on_the_seed() -> None:
    assert instances("train", 30, seed=1) == instances("train", 30, seed=1)
    assert instances("train", 30, seed=1) != instances("train", 30, seed=2)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_splits_share_no_order(seed: int) -> None:
    train = [one.number for one in instances("train", 720, seed=seed)]
    heldout = [one.number for one in instances("heldout", 180, seed=seed)]
    assert len({*train, *heldout}) == len(train) + len(heldout) == 900


def test_every_wish_is_allowed_in_some_orders_and_forbidden_in_others() -> None:
    kinds = {(one.family, one.order["state"]) for one in instances("train", 60, seed=0)}
    assert len(kinds) == 6
    for one in instances("train", 60, seed=0):
        assert (one.right.tool is None) == (one.order["state"] == "sent")
        assert one.right not in one.wrong
        assert len(one.wrong) == 3


def test_a_dataset_row_carries_its_task() -> None:
    for one in instances("train", 3, seed=0):
        assert task_of(dataset_row(one.task())["prompt"], default_agent=None) == one.task()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Which order?", "Order 140."),
        ("Done.", STOP),
        ("Sorry, it was sent.", STOP),
        ("What?", "I do not understand."),
    ],
)
def test_the_customer_knows_the_order_and_when_to_stop(said: str, expected: str) -> None:
    goal = "I want tea. The number of your order is 140."
    messages = [{"role": "system", "content": goal}, {"role": "user", "content": said}]
    assert answer(messages) == expected


@pytest.mark.processes
@pytest.mark.parametrize("one", instances("heldout", 9, seed=0), ids=lambda one: one.name)
async def test_demonstrations_are_what_the_service_records(
    one: Instance, chat: ChatFormat, user: ChatModel
) -> None:
    for act in (one.right, *one.wrong):
        transcript = Demonstration(one, act).transcript()
        agent = DialogueAgent(one.task())
        attempt = attempt_of(
            chat,
            ScriptedGenerator.of_texts(transcript.replies, chat),
            task=one.task(),
            prompt_ids=chat.prompt_ids(transcript.prompt.messages, tools=transcript.prompt.tools),
            max_model_len=CONTEXT,
            limits=LIMITS,
        )
        rollout = RolloutContext(attempt, OperatorServices(user=user))
        reason = await agent.run(rollout)
        verdict = await agent.eval(rollout)
        assert reason is FinishReason.FINISHED
        recorded, expected = (
            attempt.sampled.trajectory(reason).segments[0],
            transcript.segment(chat),
        )
        assert recorded.prompt_ids == expected.prompt_ids
        assert recorded.response_ids == expected.response_ids
        assert recorded.loss_mask == expected.loss_mask
        assert verdict.reward == float(act is one.right)
        assert len(recorded.response_ids) <= (LIMITS.max_response_tokens or 0)
