"""`task.data` of the code agent: the hidden tests, and how a program is held to them.

The tests have the shape that APPS began with and most data sets of programming problems share.
"""

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from prorl_service.rewards.code.grade import Case

MAX_INPUT_BYTES = 15 << 20
"""Less than a message to a sandbox may have beside its payload."""


class CodeTests(BaseModel):
    """Without `fn_name` a program reads `inputs[i]` and prints `outputs[i]`: text, or its lines.

    With it, a function is called: an input is a list of arguments and an output its value, or both
    are text: JSON, each argument on a line of its own.
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
                    raise ValueError(f"its input takes {size} bytes in JSON")
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
    files: dict[str, str] = Field({}, description="Put into the working directory: path to text.")
    ipython: bool = Field(False, description="Offer IPython beside bash and the editor.")
    partial_credit: bool = Field(
        False, description="Reward the share of cases passed, and run all; else all or nothing."
    )
    tolerance: float | None = Field(
        None, gt=0, lt=1, description="Of numbers: absolute, relative where they are above 1."
    )
    time_limit_s: float = Field(6, gt=0, le=60, description="CPU time of a case.")
    total_time_limit_s: float = Field(
        60, gt=0, le=3600, description="CPU time of all cases; what is left then has failed."
    )
    memory_mb: int = Field(1024, ge=64, le=2048, description="Address space of a process.")


def _text(lines: Any) -> str:
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return "\n".join(lines)
    if isinstance(lines, str):
        return lines
    raise TypeError(f"text or lines of text are needed, not {lines!r:.100}")
