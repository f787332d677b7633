"""Rows of NeMo Gym data sets as tasks: the conversation, the tools, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from prorl_service.client.nemo_gym import chat_messages, messages_of, task_of, tasks_in, tools_of
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "it"}'}


def row(given: Any = "Hi", **parameters: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": given, **parameters}, "expected": 3}


def test_instructions_and_developers_are_the_system_and_parts_of_text_are_lines() -> None:
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    items = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": parts}]
    messages = messages_of(row(items, instructions="Be short."))
    assert [(one.role, one.content) for one in messages] == [
        ("system", "Be short."),
        ("system", "Be kind."),
        ("user", "one\ntwo"),
    ]


def test_what_the_assistant_thinks_says_and_calls_is_one_message() -> None:
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "So"}],
    }
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
        said,
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {"type": "function_call_output", "call_id": "c2", "output": "seen, too"},
    ]
    user, assistant, *answers = messages_of(row(items))
    assert user.content == "Hi"
    assert (assistant.reasoning_content, assistant.content) == ("Hm", "So")
    assert [call.id for call in assistant.tool_calls] == ["c1", "c2"]
    assert assistant.tool_calls[0].function.arguments == {"at": "it"}
    assert [(one.tool_call_id, one.content) for one in answers] == [
        ("c1", "seen"),
        ("c2", "seen, too"),
    ]


def test_tools_are_functions_unless_the_row_wants_none() -> None:
    assert [tool["name"] for tool in tools_of(row(tools=[TOOL]))] == ["look"]
    assert tools_of(row(tools=[TOOL], tool_choice="none")) == []
    bare = {"type": "function", "name": "look"}
    assert tools_of(row(tools=[bare]))[0]["parameters"] == {"type": "object", "properties": {}}


def image(kind: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": kind, "image_url": "http://x"}]}]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (row(image("input_image")), r"input\.0: parts of type 'input_image' are not supported"),
    (row(image("input_audio")), r"'input_audio'"),
    (row([{"type": "computer_call"}]), r"items of type 'computer_call' are not supported"),
    (row([{"role": "critic", "content": "no"}]), "the role 'critic' is not supported"),
    (row([{"role": "user", "content": None}]), "its content must be text"),
    (row([]), "it must be text or a list of items"),
    (row(["Hi"]), r"input\.0: it must be an object"),
    (row([{**CALL, "arguments": "{"}]), r"responses_create_params\.input: .*arguments"),
    (row(tools=[{"type": "web_search"}]), r"tools\.0: tools of type 'web_search'"),
    (row(tools=[{**TOOL, "name": "../admin"}]), r"'\.\./admin' cannot be the name of a tool"),
    (row(tools=[{**TOOL, "name": "verify"}]), "'verify' cannot be the name of a tool"),
    (row(tools=[{**TOOL, "parameters": "any"}]), "must be a JSON schema"),
    (row(tool_choice="required"), 'tool_choice: "required" is not supported'),
    (row(previous_response_id="resp_1"), "previous_response_id: it is not supported"),
    (
        row(metadata={"audio_data": "data:audio/wav;base64,U"}),
        r"metadata\.audio_data: audio is not",
    ),
    ({"task_id": {}, "task_input": {}}, "no object 'responses_create_params'"),
]


@pytest.mark.parametrize(("bad", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_what_cannot_be_run_is_refused_by_name(bad: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        task_of(bad, server="gym")


def test_a_task_has_the_whole_row_and_an_id_of_it() -> None:
    one, other = task_of(row("Hi"), server="gym"), task_of(row("Ho"), server="gym")
    assert one.data == {"server": "gym", "row": row("Hi")}
    assert one.task_id.startswith("gym-")
    assert one.task_id != other.task_id
    assert one == task_of(row("Hi"), server="gym")
    assert task_of(row("Hi"), server="gym", task_id="mine").task_id == "mine"


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{json.dumps(row('Hi'))}\n\n{json.dumps(row('Ho'))}\n")
    assert [task.messages[0].content for task in tasks_in(file, server="gym")] == ["Hi", "Ho"]
    file.write_text(f"{json.dumps(row('Hi'))}\n{json.dumps(row(image('input_image')))}\n")
    with pytest.raises(InvalidRequest, match=r"line 2: .*'input_image'"):
        tasks_in(file, server="gym")
    file.write_text("{")
    with pytest.raises(InvalidRequest, match="line 1: it is not JSON"):
        tasks_in(file, server="gym")


def test_messages_for_a_data_set_are_read_back_as_they_were() -> None:
    task = task_of(row([{"role": "user", "content": "Hi"}, CALL]), server="gym")
    dumped = chat_messages(task)
    assert dumped[1]["tool_calls"][0]["function"]["arguments"] == '{"at": "it"}'
    assert [Message.model_validate(message) for message in dumped] == task.messages
