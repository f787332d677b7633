"""Servers that the tests of a module share."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.agents.nemo_gym import gym_servers
from tests.agents.nemo_gym.gym_servers import NAMES


@pytest.fixture(scope="session")
def gyms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Returns the URL of each server by its name."""
    directory = tmp_path_factory.mktemp("gyms")
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(gym_servers.starting(name, directory)) for name in NAMES
        }
        for server in servers.values():
            gym_servers.until_up(server)
        yield {name: server.url for name, server in servers.items()}
