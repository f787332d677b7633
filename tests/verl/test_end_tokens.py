"""Base models, whose end-of-text token is not the token that ends a turn in their chat template."""

import json
import shutil
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
from tests.verl.counting_server import client_of, counting
from tests.verl.test_lent_engines import KEY

OPTIONS = ["--sandbox", "process", "--agent", "tests.verl.turns_agent:OneTurnAgent"]
TEXT_END, TURN_END = "<|endoftext|>", "<|im_end|>"
SAID = 5
"""Tokens of the answer before its end."""


@pytest.fixture(scope="module")
def base_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the tiny model with another token as its only EOS in every file."""
    target = tmp_path_factory.mktemp("base") / "model"
    shutil.copytree(tiny_model, target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    end_id = tokenizer.convert_tokens_to_ids(TEXT_END)
    values = {"config.json": end_id, "generation_config.json": end_id}
    for name, eos in values.items():
        edit(target / name, eos_token_id=eos)
    edit(target / "tokenizer_config.json", eos_token=TEXT_END)
    assert AutoTokenizer.from_pretrained(target).eos_token == TEXT_END
    return target


def edit(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Any, Engines]]:
    with counting(1) as (server,):
        yield server, Engines(client_of(server), max_in_flight=8)


@pytest.mark.parametrize("room", [SAID + 1, SAID + 9], ids=["the last token", "room is left"])
@pytest.mark.parametrize("end", [TURN_END, TEXT_END])
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
    rollout = await answer_of(server, base_model, tmp_path, end=TURN_END, room=SAID)
    (row,) = rows_of(rollout, max_response_tokens=99)
    assert (len(row.response_ids), row.metrics["cut_off"]) == (SAID, 1)


async def answer_of(
    server: tuple[Any, Engines], model: Path, directory: Path, *, end: str, room: int
) -> Rollout:
    """Returns a rollout whose answer of `SAID` tokens and `end` may have `room` tokens."""
    actor, engines = server
    tokenizer = AutoTokenizer.from_pretrained(model)
    end_id, eos_id = tokenizer.convert_tokens_to_ids([end, TEXT_END])
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
