"""Exports show the pictures that a policy saw: of a real one, and of one that plays a script."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from atif import Trajectory as AtifTrajectory

from prorl_service import local
from prorl_service.agents.registry import AgentRegistry
from prorl_service.client import AsyncRolloutClient
from prorl_service.exports import atif, sft, tokens
from prorl_service.exports.output import write_rows
from prorl_service.exports.transcript import ExportRecord, Transcriber
from prorl_service.schemas import BackendSpec, Group, Message, Rollout, Start
from prorl_service.schemas.pictures import canonical, url_of
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.pictures import PLACEHOLDER
from tests.exports.made_rollouts import two_steps
from tests.parts import trajectory_of
from tests.pictures import FILE, looking, png, processor_of, shown
from tests.server.application import Settings, serving

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ASKED, SEEN = png(seed=1), canonical(FILE.encode())
CALL = '<tool_call>\n{"name": "view_image", "arguments": {"path": "a.ppm"}}\n</tool_call>'
LAST = "<think>\n\n</think>\n\n1"
QUESTION = Message(role="user", content=f"In  {PLACEHOLDER} which?", pictures=[shown(ASKED, at=3)])


class SeeingEngine(StubEngine):
    """Plays the script, and says how it expands pictures."""

    def __init__(self, model: Path, chat: ChatFormat) -> None:
        assert chat.pictures is not None
        self.pictures = chat.pictures
        script = [chat.reply_ids(CALL), chat.reply_ids(LAST)]
        super().__init__(model, lambda prompt: script[len(self.shown(prompt)) - 1])

    def shown(self, prompt: list[int]) -> list[bytes]:
        return [ASKED, SEEN][: prompt.count(self.pictures.pad_id)]

    def _sampled(
        self, prompt: list[int], ids: list[int], limit: int, *, ends_turn: bool
    ) -> dict[str, Any]:
        seen = self.pictures.padded(self.pictures.expanded(prompt, self.shown(prompt)))
        answer = super()._sampled(seen, ids, limit, ends_turn=ends_turn)
        return {**answer, "prompt_token_ids": seen}


def group(name: str, **fields: Any) -> Group:
    asked = looking(name, **fields)
    asked.task.messages = [QUESTION]
    return asked


async def rollouts(url: str, groups: Sequence[Group]) -> list[Rollout]:
    own = Settings(backends=(BackendSpec(url=url),), sandbox="process")
    async with serving(own) as address, AsyncRolloutClient(address) as client:
        await client.submit(groups)
        return await client.wait([id_ for one in groups for id_ in one.rollout_ids()], 120)


async def played(model: Path, chat: ChatFormat) -> list[Rollout]:
    sampling = group("played").sampling.model_copy(update={"max_tokens_per_turn": None})
    async with SeeingEngine(model, chat) as engine:
        return await rollouts(engine.url, [group("played", n=4, sampling=sampling)])


@pytest.fixture(scope="module")
def chat(seeing_model: Path) -> ChatFormat:
    return ChatFormat.load(seeing_model)


@pytest.fixture(scope="module")
def scripted(seeing_model: Path, chat: ChatFormat) -> list[ExportRecord]:
    found = asyncio.run(played(seeing_model, chat))
    return [ExportRecord(one, group("played").task) for one in found]


@pytest.fixture(scope="module")
def sampled(seeing_model: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportRecord:
    """One whose first turn is the task's solution, and whose others are random."""
    asked = group("sampled", start=Start(share=1.0))
    with local.engine(seeing_model, log=tmp_path_factory.mktemp("logs") / "log") as engine:
        [found] = asyncio.run(rollouts(engine.url, [asked]))
    return ExportRecord(found, asked.task)


def part(content: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(content)}}


def check(row: sft.Row, record: ExportRecord, chat: ChatFormat) -> None:
    """The row's messages are whole, and as those of a task they give the same ids again."""
    question, call, result, *_ = row["messages"]
    rest = {"type": "text", "text": f" {chat.defuse(PLACEHOLDER)} which?"}
    assert question["content"] == [{"type": "text", "text": "In "}, part(ASKED), rest]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert result["content"] == [part(SEEN)]
    assert row["whole"]
    taken = [Message.model_validate(one) for one in row["messages"]]
    assert taken[0].pictures == QUESTION.pictures
    trajectory = trajectory_of(record.rollout)
    [segment], [first, second, *_] = trajectory.segments, trajectory.turns
    assert chat.prompt_ids(taken[:1], tools=row["tools"]) == segment.prompt_ids
    between, after = segment.response_ids[: second.start], segment.response_ids[first.stop - 1]
    assert chat.delta_ids([taken[2]], after=after) == between[first.stop :]


def test_rows_of_a_real_policy_show_what_it_saw(sampled: ExportRecord, chat: ChatFormat) -> None:
    [row] = sft.rows(sampled, Transcriber(chat), all_segments=True)
    check(row, sampled, chat)


def test_rows_that_follow_the_template_are_exact(
    scripted: list[ExportRecord], chat: ChatFormat, tiny_model: Path
) -> None:
    agents = AgentRegistry()
    for transcriber in (
        Transcriber(chat),
        Transcriber(chat, lambda task: agents.make(task).prompt()),
    ):
        [row] = sft.rows(scripted[0], transcriber)
        check(row, scripted[0], chat)
        assert (row["exact"], row["images"]) == (True, [])
    assert [*sft.rows(scripted[0], Transcriber(ChatFormat.load(tiny_model)))] == []


def test_a_row_whose_policy_sampled_the_placeholder_is_left_out(
    scripted: list[ExportRecord], chat: ChatFormat
) -> None:
    assert chat.pictures is not None
    spoilt = scripted[0].rollout.model_copy(deep=True)
    trajectory_of(spoilt).segments[0].response_ids[-2] = chat.pictures.pad_id
    assert [*sft.rows(ExportRecord(spoilt), Transcriber(chat))] == []


def test_pictures_that_a_file_lacks_are_not_made_up(
    scripted: list[ExportRecord], chat: ChatFormat
) -> None:
    lacking = scripted[0].rollout.model_copy(deep=True)
    trajectory_of(lacking).turns[0].tool_calls[0].pictures = []
    [row] = sft.rows(ExportRecord(lacking), Transcriber(chat))
    assert not row["whole"]
    assert not row["exact"]
    trajectory_of(lacking).pictures = {}
    assert [*sft.rows(ExportRecord(lacking), Transcriber(chat))] == []


def test_rows_of_tokens_have_no_pictures(scripted: list[ExportRecord]) -> None:
    assert [row for one in scripted for row in tokens.rows(one)] == []


@pytest.mark.parametrize("way", ["tokens", "task", "nothing"])
def test_documents_show_pictures(way: str, scripted: list[ExportRecord], chat: ChatFormat) -> None:
    record = scripted[0] if way == "task" else ExportRecord(scripted[0].rollout)
    [(_, document)] = atif.documents(record, Transcriber(chat if way == "tokens" else None))
    read = AtifTrajectory.model_validate_json(json.dumps(document))
    assert read.to_json_dict() == document
    [turn] = [one for one in document["steps"] if "observation" in one]
    image = {"type": "image", "source": {"media_type": "image/png", "path": url_of(SEEN)}}
    assert turn["observation"]["results"][0]["content"] == [image]
    prompt = {one["source"]: one["message"] for one in document["steps"]}
    if way == "nothing":
        assert "user" not in prompt
        assert [*document["extra"]["pictures"].values()] == [shown(ASKED).data]
    else:
        assert prompt["user"][1]["source"]["path"] == url_of(ASKED)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_trls_sft_trainer_sees_what_the_policy_saw(
    ending: str,
    scripted: list[ExportRecord],
    chat: ChatFormat,
    seeing_model: Path,
    tmp_path: Path,
) -> None:
    from datasets import load_dataset
    from trl import SFTTrainer

    assert chat.pictures is not None
    transcriber, file = Transcriber(chat), tmp_path / f"rows.{ending}"
    exported = [row for one in scripted for row in sft.rows(one, transcriber)]
    assert write_rows(exported, file, sft.columns(transcriber)) == 4
    kind = "json" if ending == "jsonl" else "parquet"
    dataset = load_dataset(kind, data_files=str(file), split="train", cache_dir=str(tmp_path))
    assert [*dataset["messages"]] == [row["messages"] for row in exported]
    processor = processor_of(seeing_model)
    render = processor.apply_chat_template
    processor.apply_chat_template = partial(render, tools=dataset[0]["tools"])
    trainer = SFTTrainer(
        str(seeing_model),
        two_steps(tmp_path, max_length=None),
        train_dataset=dataset,
        processing_class=processor,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    [segment] = trajectory_of(scripted[0].rollout).segments
    seen = chat.pictures.padded(segment.prompt_ids + segment.response_ids)
    assert batch["input_ids"][0, : len(seen)].tolist() == seen
    assert len(batch["image_grid_thw"]) == 4
    named = {name: one for name, one in trainer.model.named_parameters() if "visual" in name}
    before = {name: one.detach().clone() for name, one in named.items()}
    trainer.train()
    assert any(not torch.equal(one, before[name]) for name, one in named.items())
