"""Schemas as models see them, the registry, and the end of a rollout."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from prorl_service.errors import InvalidRequest
from prorl_service.sandbox.base import ToolResult
from prorl_service.testing import FakeSandbox
from prorl_service.tokens.formats import ToolCall
from prorl_service.tools import registry
from prorl_service.tools.base import Toolset, function_schema
from prorl_service.tools.registry import ToolRegistry


def sandbox(calls: list[Any]) -> FakeSandbox:
    def answer(name: str, arguments: Any) -> ToolResult:
        calls.append((name, dict(arguments)))
        return ToolResult("answered")

    return FakeSandbox(answer)


@pytest.mark.parametrize("name", ToolRegistry().names)
def test_schemas_are_plain_json_schema(name: str) -> None:
    function = function_schema(ToolRegistry()[name])["function"]
    assert function["name"] == name
    assert function["description"]
    for field in function["parameters"]["properties"].values():
        assert field["description"]
        assert "type" in field
        assert "anyOf" not in field
        assert field.get("default", ...) is not None


def test_the_editor_has_the_parameters_models_were_trained_with() -> None:
    parameters = function_schema(ToolRegistry()["str_replace_editor"])["function"]["parameters"]
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
    tools = Toolset([ToolRegistry()["str_replace_editor"]], sandbox(calls), timeout_s=1)
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
    names = ToolRegistry()
    tools = Toolset([names["bash"], names["submit"]], sandbox(calls), timeout_s=1)
    await tools.call(ToolCall("bash", {"command": "true"}))
    assert not tools.ended_rollout
    record = await tools.call(ToolCall("submit", {"message": "42"}))
    assert tools.ended_rollout
    assert record.arguments == {"message": "42"}
    assert len(calls) == 1
    refused = Toolset([names["submit"]], sandbox(calls), timeout_s=1)
    await refused.call(ToolCall("submit", {"answer": 42}))
    assert not refused.ended_rollout


class Offered:
    name = "offered"
    description = "Of a third party."
    arguments = None

    async def call(self, sandbox: Any, arguments: Any, *, timeout_s: float) -> ToolResult:
        return ToolResult("")


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Returns a module from which an installed package offers its tool."""
    module = ModuleType("third_party_tools")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = EntryPoint("offered", "third_party_tools:Tool", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    return module


def test_a_package_offers_a_tool_by_entry_point(offers: ModuleType) -> None:
    setattr(offers, "Tool", Offered)  # noqa: B010
    assert isinstance(ToolRegistry()["offered"], Offered)


def test_an_entry_point_that_is_no_tool_is_refused(offers: ModuleType) -> None:
    setattr(offers, "Tool", dict)  # noqa: B010
    with pytest.raises(InvalidRequest, match="third_party_tools:Tool is not a tool"):
        ToolRegistry()
