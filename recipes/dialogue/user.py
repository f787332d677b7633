"""A simulated user without a language model: it plays the customers of these tasks by code.

`python -m recipes.dialogue.user --port 8090` serves it as an OpenAI-compatible endpoint, for `prorl
try dialogue --user-url http://127.0.0.1:8090/v1 --user-model shop`; tests and trainings run it in
their own process (`customer()`).
"""

import re
import threading
from typing import Annotated

from cyclopts import Parameter

from prorl_service.agents.dialogue.user import STOP
from prorl_service.cli.program import run
from prorl_service.testing import StubApi
from prorl_service.testing.stubs import Messages

MODEL = "shop"
ASKED = "order?"
ENDS = ("Done", "Sorry")
_NUMBER = re.compile(r"The number of your order is (\d+)")


def answer(messages: Messages) -> str:
    """Names the order when it is asked for, and ends the conversation when the agent says that it
    is done or sorry."""
    said = messages[-1]["content"]
    if any(said.startswith(end) for end in ENDS):
        return STOP
    number = _NUMBER.search(messages[0]["content"])
    if ASKED in said and number is not None:
        return f"Order {number[1]}."
    return "I do not understand."


def customer(port: int = 0) -> StubApi:
    """Returns the endpoint, to be entered. `port` 0: any free one."""
    made = StubApi(answer, model=MODEL)
    made.port = port
    return made


def main(port: Annotated[int, Parameter(help="Port to listen on.")] = 8090) -> None:
    """Play the users of the shop until you press Ctrl-C."""
    with customer(port).in_thread() as served:
        print(f"--user-url {served.url}/v1 --user-model {MODEL}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    run(main)
