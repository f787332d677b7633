"""Clients say in which span groups are submitted, if there is one."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.schemas import Group, Message, Task
from tests.client.parents import SPAN, STEP, TRACE, Refusing, refusing, step

TASK = Task(task_id="t", agent="a", messages=[Message(role="user", content="Go.")])
GROUP = Group(group_id="g", task=TASK)


@pytest.fixture
def service() -> Iterator[Refusing]:
    with refusing() as running:
        yield running


def test_groups_and_candidates_are_submitted_with_the_current_span(service: Refusing) -> None:
    with RolloutClient(service.url) as client:
        with step(), pytest.raises(ServiceCallError):
            client.submit([GROUP])
        with step(is_sampled=False), pytest.raises(ServiceCallError):
            client.add_candidates("s", [GROUP.model_copy(update={"n": 2})])
    assert service.seen == [
        ("/v1/rollouts", STEP),
        ("/v1/samplers/s/groups", f"00-{TRACE:032x}-{SPAN:016x}-00"),
    ]


def test_without_a_span_there_is_no_header_and_others_calls_have_none(service: Refusing) -> None:
    with RolloutClient(service.url) as client:
        with pytest.raises(ServiceCallError):
            client.submit([GROUP])
        with step(), pytest.raises(ServiceCallError):
            client.acknowledge(["g"])
    assert [header for _, header in service.seen] == [None, None]


@pytest.mark.processes
def test_where_nothing_traces_the_client_imports_nothing_of_opentelemetry() -> None:
    program = (
        "import sys\n"
        "from prorl_service.client.async_http import parent_headers\n"
        "for name in [one for one in sys.modules if one.startswith('opentelemetry')]:\n"
        "    del sys.modules[name]\n"  # what others may have imported
        "assert parent_headers() == {}\n"
        "assert not [one for one in sys.modules if one.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
