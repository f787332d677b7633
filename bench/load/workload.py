"""The load that every contender gets. Standard library only: peers have their own environment.

One rollout is ten calls of bash and a closing turn, eleven model calls, each answered after a fixed
latency. A model call carries its rollout's id in a header, so that the stub engine can follow it.
"""

TOOL_TURNS = 10
MODEL_CALLS = TOOL_TURNS + 1
COMMAND = "echo step && ls / | head -5"
THOUGHT = "Let me look at the root directory."
CLOSING = "The root directory has been listed."
SYSTEM = "You are a careful engineer. Use the shell, then say what you found."
TASK = "What is in the root directory?"
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
SESSION_HEADER = "X-Session-ID"
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in a persistent bash shell.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def is_output(text: str) -> bool:
    """Returns whether `text` holds what the command prints."""
    _, step, listing = text.partition("step\n")
    return bool(step) and "bin\n" in listing
