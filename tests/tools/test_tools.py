"""Schemas as models see them, and the end of a rollout."""

import base64
import io
from typing import Any

import pytest
from PIL import Image

from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas.pictures import canonical
from prorl_service.testing import FakeSandbox
from prorl_service.tokens.formats import ToolCall
from prorl_service.tools.base import Tool, Toolset, function_schema
from prorl_service.tools.registry import tools_named
from tests.pictures import encoded
from tests.sandbox.sandboxes import running


def sandbox(calls: list[Any]) -> FakeSandbox:
    def answer(name: str, arguments: Any) -> ToolResult:
        calls.append((name, dict(arguments)))
        return ToolResult("answered")

    return FakeSandbox(answer)


NAMES = ("bash", "ipython", "str_replace_editor", "submit", "view_image")
BASH, IPYTHON, EDITOR, SUBMIT, VIEW = tools_named(NAMES)


@pytest.mark.parametrize("tool", [BASH, IPYTHON, EDITOR, SUBMIT, VIEW])
def test_schemas_are_plain_json_schema(tool: Tool) -> None:
    function = function_schema(tool)["function"]
    assert function["name"] == tool.name
    assert function["description"]
    for field in function["parameters"]["properties"].values():
        assert field["description"]
        assert "type" in field
        assert "anyOf" not in field
        assert field.get("default", ...) is not None


def test_the_editor_has_the_parameters_models_were_trained_with() -> None:
    parameters = function_schema(EDITOR)["function"]["parameters"]
    assert parameters["required"] == ["command", "path"]
    assert {name: field["type"] for name, field in parameters["properties"].items()} == {
        "command": "string",
        "path": "string",
        "file_text": "string",
        "old_str": "string",
        "new_str": "string",
        "insert_line": "integer",
        "view_range": "array",
    }


async def test_the_editor_sends_only_the_given_arguments() -> None:
    calls: list[Any] = []
    tools = Toolset([EDITOR], sandbox(calls), timeout_s=1)
    arguments = {"command": "view", "path": "/x", "view_range": [1, 2], "old_str": None}
    record = await tools.call(ToolCall("str_replace_editor", arguments))
    assert not record.is_error
    given = {"command": "view", "path": "/x", "view_range": [1, 2]}
    assert calls == [("str_replace_editor", given)]
    wrong = await tools.call(ToolCall("str_replace_editor", {"command": "delete", "path": "/x"}))
    assert wrong.is_error
    assert len(calls) == 1


async def test_submit_ends_the_rollout_without_the_sandbox() -> None:
    calls: list[Any] = []
    tools = Toolset([BASH, SUBMIT], sandbox(calls), timeout_s=1)
    await tools.call(ToolCall("bash", {"command": "true"}))
    assert not tools.ended_rollout
    record = await tools.call(ToolCall("submit", {"message": "42"}))
    assert tools.ended_rollout
    assert record.arguments == {"message": "42"}
    assert len(calls) == 1
    refused = Toolset([SUBMIT], sandbox(calls), timeout_s=1)
    await refused.call(ToolCall("submit", {"answer": 42}))
    assert not refused.ended_rollout


def test_the_schema_has_code_and_restart() -> None:
    parameters = function_schema(IPYTHON)["function"]["parameters"]
    assert parameters["required"] == ["code"]
    assert set(parameters["properties"]) == {"code", "restart"}


@pytest.mark.processes
async def test_a_model_can_call_ipython() -> None:
    async with running("process") as sandbox:
        tools = Toolset([IPYTHON], sandbox, timeout_s=30)
        await tools.call(ToolCall("ipython", {"code": "x = 41"}))
        record = await tools.call(ToolCall("ipython", {"code": "x + 1"}))
        assert (record.output, record.is_error) == ("42", False)
        record = await tools.call(ToolCall("ipython", {"code": "'x' in dir()", "restart": True}))
        assert record.output == "False"
        record = await tools.call(ToolCall("ipython", {"kode": "1"}))
        assert record.is_error


@pytest.mark.processes
async def test_a_picture_that_ipython_displays_is_shown() -> None:
    shown = canonical(encoded(Image.new("L", (8, 8))))
    code = f"import IPython.display as d\nd.Image({shown!r})"
    async with running("process") as sandbox:
        tools = Toolset([IPYTHON], sandbox, timeout_s=30)
        tools.shows_pictures = True
        record = await tools.call(ToolCall("ipython", {"code": code}))
    [found] = record.pictures
    with Image.open(io.BytesIO(base64.b64decode(found))) as picture:
        assert (picture.size, picture.mode) == ((8, 8), "RGB")


@pytest.mark.parametrize(
    ("path", "sees", "output", "pictures"),
    [
        ("a.gif", True, "", 1),
        ("a.gif", False, "[an image: left out, the model reads text only]", 0),
        ("a.png", True, "[left out: the picture cannot be read", 0),
        ("b.gif", True, "b.gif: ", 0),
    ],
)
@pytest.mark.parametrize("tool", ["view_image", "str_replace_editor"])
async def test_an_image_is_shown_to_a_policy_that_sees(
    path: str, sees: bool, output: str, pictures: int, tool: str
) -> None:
    grey = encoded(Image.new("P", (56, 56)), "GIF")
    files = sandbox([])
    files.files |= {"a.gif": grey, "a.png": b"text"}
    tools = Toolset([VIEW, EDITOR], files, timeout_s=1)
    tools.shows_pictures = sees
    command = {} if tool == "view_image" else {"command": "view"}
    record = await tools.call(ToolCall(tool, {"path": path, **command}))
    assert output in record.output
    assert len(record.pictures) == pictures
    for one in record.pictures:
        assert base64.b64decode(one) == canonical(grey)
