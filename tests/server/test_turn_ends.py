"""Turns that a model ends with a token other than its template's, through the service."""

import json
import shutil
from pathlib import Path

import pytest

from prorl_service.schemas import BackendSpec, FinishReason
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.server.application import Settings, connected, finished, group
from tests.server.conftest import CALL

pytestmark = pytest.mark.processes

END_OF_TEXT = "<|endoftext|>"


@pytest.fixture(params=["generation_config.json names it", "only the engine knows it"])
def model(
    request: pytest.FixtureRequest, tiny_model: Path, chat: ChatFormat, tmp_path: Path
) -> Path:
    directory = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    if request.param.startswith("generation_config"):
        eos = [chat.end_of_turn_id, *chat.encode(END_OF_TEXT)]
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return directory


async def test_a_right_answer_is_right_whichever_token_ends_it(
    model: Path, chat: ChatFormat
) -> None:
    """Runs a rollout of a call and an unboxed answer; both turns end with `<|endoftext|>`. The ids
    stay as they were sampled."""

    def answer(prompt: list[int]) -> list[int]:
        text = "4711" if "<tool_response>" in chat.decode(prompt) else CALL
        return chat.encode(text + END_OF_TEXT)

    async with StubEngine(model, answer) as engine:
        settings = Settings(backends=(BackendSpec(url=engine.url),), sandbox="bubblewrap")
        async with connected(settings) as client:
            asked = group()
            data = asked.task.data | {"answer_format": "plain"}
            task = asked.task.model_copy(update={"data": data})
            (rollout,) = await finished(client, asked.model_copy(update={"task": task}))
    assert (rollout.error, rollout.reward) == (None, 1.0)
    assert rollout.trajectory is not None
    assert rollout.trajectory.finish_reason is FinishReason.FINISHED
    assert [turn.text for turn in rollout.trajectory.turns] == [CALL, "4711"]
    (segment,) = rollout.trajectory.segments
    call, last = chat.encode(CALL + END_OF_TEXT), chat.encode("4711" + END_OF_TEXT)
    assert segment.response_ids[: len(call) + 1] == [*call, chat.end_of_turn_id]
    assert segment.loss_mask[: len(call) + 1] == [1] * len(call) + [0]
    assert segment.response_ids[-len(last) :] == last
    assert segment.loss_mask[-len(last) :] == [1] * len(last)
