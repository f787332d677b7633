"""The end of a server when something goes wrong on the way."""

import gc
import logging
from collections.abc import Iterator

import pytest

from prorl_service.net.connections import Bounds
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.server.app import create_app
from prorl_service.server.run import Server, http_config
from prorl_service.server.settings import HttpOptions
from tests.server.application import Settings


@pytest.fixture(autouse=True)
def _same_gc() -> Iterator[None]:
    """Restores the settings of the garbage collector, which a server tunes."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.mark.slow
async def test_a_drain_that_fails_is_noticed_and_the_server_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drain(_: RolloutExecutor, budget_s: float) -> None:
        raise KeyError("a bug")

    async with Settings(sandbox="process").composing() as service:
        app = create_app(service, HttpOptions(), None)
        server = Server(service, http_config(app, Bounds(), port=0), HttpOptions(), None)
        server.should_exit = True
        with monkeypatch.context() as patch:
            patch.setattr(RolloutExecutor, "drain", drain)
            await server.serve()
    (record,) = (one for one in caplog.records if one.levelno >= logging.ERROR)
    assert "background task drain failed: KeyError('a bug')" in record.getMessage()
