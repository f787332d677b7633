"""A CodeAgent of smolagents, whose steps are Python and end with a stop text."""

import os
import sys

from smolagents import CodeAgent, OpenAIServerModel

model = OpenAIServerModel("policy", os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
print(CodeAgent([], model, verbosity_level=0).run(sys.argv[1]))
