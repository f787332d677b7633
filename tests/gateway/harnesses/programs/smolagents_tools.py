"""A ToolCallingAgent of smolagents, which forces calls and has stop texts."""

import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def multiply(a: int, b: int) -> int:
    """Multiply.

    Args:
        a: One factor.
        b: The other.
    """
    return a * b


model = OpenAIServerModel("policy", os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
print(ToolCallingAgent([multiply], model, verbosity_level=0).run(sys.argv[1]))
