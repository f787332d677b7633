"""An agent on pydantic-ai whose answer is an object, by the dialect in its environment."""

import os
import sys

from pydantic import BaseModel
from pydantic_ai import Agent


class Answer(BaseModel):
    text: str


agent = Agent(os.environ["TYPED_MODEL"], output_type=Answer)
print(agent.run_sync(sys.argv[1]).output.text)
