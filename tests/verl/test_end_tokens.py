"""Base models, whose end-of-text token is not the token that ends a turn in their chat template."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from prorl_service import local
from prorl_service.client import AsyncRolloutClient
from prorl_service.client.engine_gateway import Gateway
from prorl_service.client.trainable import checked, failure_of
from prorl_service.schemas import FinishReason, Group, Message, Rollout, Sampling, Task
from prorl_verl.engines import Engines
from prorl_verl.rows import rows_of
from tests.trl.base_model import END_OF_TEXT, END_OF_TURN, with_split_eos
from tests.verl.counting_server import client_of, counting
from tests.verl.test_lent_engines import KEY

OPTIONS = ["--sandbox", "process", "--agent", "tests.verl.turns_agent:OneTurnAgent"]
SAID = 5
"""Tokens of the answer before its end."""


@pytest.fixture(scope="module")
def base_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = with_split_eos(tiny_model, tmp_path_factory.mktemp("base") / "model")
    assert AutoTokenizer.from_pretrained(model).eos_token == END_OF_TEXT
    return model


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Any, Engines]]:
    with counting(1) as (server,):
        yield server, Engines(client_of(server), max_in_flight=8)


@pytest.mark.parametrize("room", [SAID + 1, SAID + 9], ids=["the last token", "room is left"])
@pytest.mark.parametrize("end", [END_OF_TURN, END_OF_TEXT])
async def test_an_answer_that_ends_is_whole_and_trained_on(
    server: tuple[Any, Engines], base_model: Path, tmp_path: Path, end: str, room: int
) -> None:
    rollout = await answer_of(server, base_model, tmp_path, end=end, room=room)
    assert rollout.trajectory is not None
    assert rollout.trajectory.finish_reason is FinishReason.FINISHED
    (row,) = rows_of(rollout, max_response_tokens=99)
    assert len(row.response_ids) == sum(row.response_mask) == SAID + 1
    assert row.metrics["cut_off"] == 0


async def test_an_answer_without_its_end_is_cut_off(
    server: tuple[Any, Engines], base_model: Path, tmp_path: Path
) -> None:
    rollout = await answer_of(server, base_model, tmp_path, end=END_OF_TURN, room=SAID)
    (row,) = rows_of(rollout, max_response_tokens=99)
    assert (len(row.response_ids), row.metrics["cut_off"]) == (SAID, 1)


async def answer_of(
    server: tuple[Any, Engines], model: Path, directory: Path, *, end: str, room: int
) -> Rollout:
    """Returns a rollout whose answer of `SAID` tokens and `end` may have `room` tokens."""
    actor, engines = server
    tokenizer = AutoTokenizer.from_pretrained(model)
    end_id, eos_id = tokenizer.convert_tokens_to_ids([end, END_OF_TEXT])
    words = tokenizer.encode("a b c d e f g h", add_special_tokens=False)[:SAID]
    await actor.set.remote(says=[*words, end_id, *words], eos_id=eos_id)
    gateway = Gateway(engines, model="m", root=str(model), max_model_len=256, api_key=KEY)
    port = await gateway.start("127.0.0.1", 0)
    with local.service([], log=directory / "log", options=OPTIONS) as service:
        async with AsyncRolloutClient(service.url) as client:
            await client.add_backend(f"http://127.0.0.1:{port}", str(model), api_key=KEY)
            task = Task(
                task_id="t", agent="one-turn", messages=[Message(role="user", content="go")]
            )
            sampling = Sampling(max_tokens_per_turn=room)
            await client.submit([Group(group_id="g", task=task, sampling=sampling)])
            (rollout,) = await client.wait(["g.0"], 60)
    await gateway.stop()
    own = checked(rollout, engine=f"127.0.0.1:{port}", versions=engines.versions)
    assert failure_of(own) is None
    return own
