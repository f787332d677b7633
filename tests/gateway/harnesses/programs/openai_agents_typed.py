"""An agent on openai-agents whose answer is an object, and which has to call a tool first."""

import sys

from agents import Agent, ModelSettings, Runner, function_tool
from pydantic import BaseModel


class Answer(BaseModel):
    text: str


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


agent = Agent(
    name="agent",
    tools=[multiply],
    model="policy",
    model_settings=ModelSettings(tool_choice="required"),
    output_type=Answer,
)
print(Runner.run_sync(agent, sys.argv[1]).final_output.text)
