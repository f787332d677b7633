import pytest

from prorl_service.tokens.formats import ToolCall
from prorl_service.tools.base import Toolset, function_schema
from prorl_service.tools.ipython import IPython
from tests.sandbox.sandboxes import running


def test_the_schema_has_code_and_restart() -> None:
    parameters = function_schema(IPython())["function"]["parameters"]
    assert parameters["required"] == ["code"]
    assert set(parameters["properties"]) == {"code", "restart"}


@pytest.mark.processes
async def test_a_model_can_call_ipython() -> None:
    async with running("process") as sandbox:
        tools = Toolset([IPython()], sandbox, timeout_s=30)
        await tools.call(ToolCall("ipython", {"code": "x = 41"}))
        record = await tools.call(ToolCall("ipython", {"code": "x + 1"}))
        assert (record.output, record.is_error) == ("42", False)
        record = await tools.call(ToolCall("ipython", {"code": "'x' in dir()", "restart": True}))
        assert record.output == "False"
        record = await tools.call(ToolCall("ipython", {"kode": "1"}))
        assert record.is_error
