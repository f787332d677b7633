"""`task.data` of the code agent: the hidden tests, and the limits of a program.

The tests have the format of APPS, which most data sets of programming problems share.
"""

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from prorl_service.rewards.code.grade import Case
from prorl_service.tools.registry import ToolNames

MAX_INPUT_BYTES = 15 << 20
"""Maximum size of an input as JSON: less than a sandbox accepts in the header of a message."""


class CodeTests(BaseModel):
    """Test cases. A program reads `inputs[i]` and prints `outputs[i]`: text, or its lines.

    If `fn_name` is given, that function is called: an input is a list of arguments and an
    output the function's value, or both are JSON text with each argument on its own line.
    """

    model_config = ConfigDict(extra="forbid")

    inputs: list[str | list[Any]] = Field(min_length=1)
    outputs: list[Any]
    fn_name: str | None = Field(None, pattern=r"^[A-Za-z_]\w*$")

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        if len(self.inputs) != len(self.outputs):
            raise ValueError(f"{len(self.inputs)} inputs, but {len(self.outputs)} outputs")
        for number in range(len(self.inputs)):
            try:
                size = len(json.dumps(self._case(number).input))
                if size > MAX_INPUT_BYTES:
                    raise ValueError(f"its input takes {size} bytes as JSON, which is too much")
            except (ValueError, TypeError) as error:
                raise ValueError(f"test {number} cannot be read: {error}") from error
        return self

    @property
    def cases(self) -> list[Case]:
        return [self._case(number) for number in range(len(self.inputs))]

    def _case(self, number: int) -> Case:
        given, expected = self.inputs[number], self.outputs[number]
        if self.fn_name is None:
            return Case(_text(given), _text(expected))
        if isinstance(given, str):
            given, expected = [json.loads(line) for line in given.split("\n")], json.loads(expected)
        return Case(json.dumps(given), expected, is_call=True)


class CodeData(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tests: CodeTests = Field(description="Never shown to the model or its program.")
    files: dict[str, str] = Field({}, description="Files of the working directory: text by path.")
    tools: ToolNames = ["bash", "str_replace_editor"]
    partial_credit: bool = Field(
        False, description="Run all cases and reward the share that passes; else all or nothing."
    )
    tolerance: float | None = Field(
        None, gt=0, lt=1, description="Tolerance for numbers: absolute up to 1, relative above."
    )
    time_limit_s: float = Field(6, gt=0, le=60, description="CPU time of a case.")
    total_time_limit_s: float = Field(
        60, gt=0, le=3600, description="CPU time of all cases; those not run by then have failed."
    )
    memory_mb: int = Field(1024, ge=64, le=2048, description="Address space of a process.")


def _text(lines: Any) -> str:
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return "\n".join(lines)
    if isinstance(lines, str):
        return lines
    raise TypeError(f"it must be text or lines of text, not {lines!r:.100}")
