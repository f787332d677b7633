"""An agent on pydantic-ai, by Chat Completions."""

import subprocess
import sys

from pydantic_ai import Agent

agent = Agent("openai-chat:policy", instructions="Use the shell.")


@agent.tool_plain
def bash(command: str) -> str:
    """Run a command."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return done.stdout


print(agent.run_sync(sys.argv[1]).output)
