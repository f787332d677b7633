"""An engine that is away for a minute while rollouts are queued and in flight.

The service has its default settings; the engine is killed, and started again on the same port.
"""

import tempfile
import time
from pathlib import Path

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Group, Limits, Message, RolloutState, Task

OUTAGE_S = 60.0
GROUPS, GROUP_SIZE = 12, 8
WAIT_S = 600.0


def measure() -> dict[str, float]:
    """Returns counts of rollouts, and how many were begun more than once."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        build_tiny_model(directory / "model")
        port = local.free_port()
        log = directory / "engine.log"
        with (
            local.service([f"http://127.0.0.1:{port}"], log=directory / "service.log") as service,
            RolloutClient(service.url) as client,
        ):
            with local.engine(directory / "model", log=log, port=port) as engine:
                _until_known(client)
                client.submit(groups())
                _until_in_flight(client)
                engine.kill()
            time.sleep(OUTAGE_S)
            with local.engine(directory / "model", log=log, port=port):
                ids = [one for group in groups() for one in group.rollout_ids()]
                ended = client.wait(ids, WAIT_S)
    failed = [one for one in ended if one.state is not RolloutState.DONE]
    again = [one for one in ended if one.attempt > 1]
    return {
        "outage_s": OUTAGE_S,
        "outage_rollouts": len(ended),
        "outage_failed": len(failed),
        "outage_begun_again": len(again),
    }


def groups() -> list[Group]:
    return [_group(number) for number in range(GROUPS)]


def _group(number: int) -> Group:
    messages = [Message(role="user", content=f"What is {number} + 1?")]
    task = Task(task_id=f"t{number}", agent="math", messages=messages, data={"answer": "1"})
    limits = Limits(max_turns=1, max_response_tokens=1500)
    return Group(group_id=f"g{number}", task=task, n=GROUP_SIZE, limits=limits)


def _until_known(client: RolloutClient) -> None:
    while not any(one.state == "healthy" for one in client.backends()):
        time.sleep(0.1)


def _until_in_flight(client: RolloutClient) -> None:
    while not any(one.in_flight for one in client.backends()):
        time.sleep(0.01)
