"""SFT rows of real rollouts, and TRL's SFTTrainer on them as they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from prorl_service.agents.registry import AgentRegistry
from prorl_service.exports import sft
from prorl_service.exports.output import write_rows
from prorl_service.exports.sources import records
from prorl_service.exports.transcript import ExportRecord, Transcriber
from prorl_service.tokens.chat import ChatFormat
from tests.exports.made_rollouts import HOSTILE, SCRIPTS, Made, two_steps

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def rows(made: Made, model_chat: ChatFormat) -> dict[str, list[sft.Row]]:
    """Those of the first rollout for each script, by its name."""
    transcriber = Transcriber(model_chat)
    firsts = {name: made.of(name)[0] for name in SCRIPTS}
    return {name: [*sft.rows(ExportRecord(one), transcriber)] for name, one in firsts.items()}


def test_a_row_has_reasoning_calls_results_and_tools_in_openais_form(
    rows: dict[str, list[sft.Row]],
) -> None:
    [row] = rows["two calls"]
    system, question, first, *results, last = row["messages"]
    assert system["role"] == "system"
    assert question == {"role": "user", "content": "Do two calls: 12 + 30?"}
    assert first["reasoning_content"] == "I had better look."
    assert first["content"] == "Let me see."
    calls = [call["function"] for call in first["tool_calls"]]
    assert calls == [
        {"name": "bash", "arguments": {"command": command}} for command in ("echo 12", "echo 30")
    ]
    assert [call["id"] for call in first["tool_calls"]] == [one["tool_call_id"] for one in results]
    assert [one["content"] for one in results] == ["12", "30"]
    assert last["content"] == "The sum is \\boxed{42}."
    assert [tool["function"]["name"] for tool in row["tools"]] == ["bash"]
    assert (row["exact"], row["whole"], row["reward"], row["turns"]) == (True, True, 1.0, 2)


def test_exact_rows_render_to_the_tokens_that_were_sampled(
    rows: dict[str, list[sft.Row]], made: Made, model_chat: ChatFormat
) -> None:
    [row] = rows["two calls"]
    trajectory = made.of("two calls")[0].trajectory
    assert trajectory is not None
    [segment] = trajectory.segments
    text = model_chat.text(row["messages"], row["tools"], generation=False)
    assert model_chat.encode(text.rstrip()) == segment.prompt_ids + segment.response_ids
    # Qwen3's template gives a last turn without reasoning an empty one.
    assert not any(row["exact"] for row in rows["letters"])
    assert all(row["whole"] for some in rows.values() for row in some)


def test_a_broken_call_stays_text_and_its_answer_a_message(
    rows: dict[str, list[sft.Row]],
) -> None:
    [row] = rows["broken call"]
    broken, answer, call, result, _ = row["messages"][2:]
    assert broken == {"role": "assistant", "content": SCRIPTS["broken call"][0]}
    assert answer["role"] == "tool"
    assert answer["content"].startswith("Format error: ")
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]


def test_answers_that_no_call_asked_for_are_read_from_the_tokens(
    rows: dict[str, list[sft.Row]],
) -> None:
    [row] = rows["letters"]
    assert [(one["role"], one["content"]) for one in row["messages"]] == [
        ("user", "Do letters: 12 + 30?"),
        ("assistant", "Hello"),
        ("tool", "go on"),
        ("assistant", "World"),
    ]
    assert row["tools"] == []


def test_each_segment_is_a_row(rows: dict[str, list[sft.Row]]) -> None:
    first, second = rows["forgetful"]
    assert [one["segment"] for one in (first, second)] == [0, 1]
    assert [one["content"] for one in second["messages"]][1:] == ["2 turns so far", "Three"]
    assert rows["failing"] == []


def test_tool_output_forges_no_turn_when_a_trainer_renders_it(
    rows: dict[str, list[sft.Row]], model_chat: ChatFormat
) -> None:
    [row] = rows["hostile"]
    [output] = [one["content"] for one in row["messages"] if one["role"] == "tool"]
    assert "<|" not in output
    assert output.replace("\u200b", "") == HOSTILE
    ids = model_chat.encode(model_chat.text(row["messages"], row["tools"], generation=False))
    ends = sum(id_ == model_chat.end_of_turn_id for id_ in ids)
    assert ends == len(row["messages"])


def test_the_agents_own_prompt_gives_the_same_rows_as_the_tokens(
    made: Made, model_chat: ChatFormat
) -> None:
    agents = AgentRegistry()
    transcriber = Transcriber(model_chat, lambda task: agents.make(task).prompt())
    for record in records([str(made.journal)]):
        if record.rollout.agent != "math":
            continue
        assert record.task is not None
        read = [*sft.rows(ExportRecord(record.rollout), Transcriber(model_chat))]
        assert [*sft.rows(record, transcriber)] == read != []


def test_an_agents_prompt_that_differs_from_the_sampled_one_is_not_used(
    made: Made, model_chat: ChatFormat
) -> None:
    agents = AgentRegistry()

    def changed(task: Any) -> Any:
        prompt = agents["math"](task).prompt()
        return type(prompt)(prompt.messages[1:], prompt.tools)

    [first, *_] = records([str(made.journal)])
    [row] = sft.rows(first, Transcriber(model_chat, changed))
    assert row["messages"][0]["role"] == "system"


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_trls_sft_trainer_trains_on_the_file_as_it_is(
    ending: str, rows: dict[str, list[sft.Row]], made: Made, tmp_path: Path
) -> None:
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import SFTTrainer

    file = tmp_path / f"rows.{ending}"
    exported = [row for some in rows.values() for row in some]
    assert write_rows(exported, file, sft.COLUMNS) == len(exported)
    kind = "json" if ending == "jsonl" else "parquet"
    dataset = load_dataset(kind, data_files=str(file), split="train", cache_dir=str(tmp_path))
    for row, loaded in zip(exported, dataset, strict=True):
        assert json.dumps(loaded["messages"]) == json.dumps(row["messages"])
        assert json.dumps(loaded["tools"]) == json.dumps(row["tools"])
    trainer = SFTTrainer(
        model=str(made.model),
        args=two_steps(tmp_path),
        train_dataset=dataset,
    )
    tokenizer = AutoTokenizer.from_pretrained(made.model)
    for row, trained in zip(exported, trainer.train_dataset, strict=True):
        text = tokenizer.decode(trained["input_ids"])
        rendered = tokenizer.apply_chat_template(
            row["messages"], tools=row["tools"] or None, tokenize=False
        )
        assert text == rendered
        assert '"command": "' in text or not row["tools"]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 2
    assert all(loss > 0 for loss in losses)
