"""A few cheats on each shape of verifier, as `bench.harbor_guard` tries all of them."""

import pytest

from prorl_service.agents.harbor.directory.checks import ORACLE
from tests.agents.harbor.guard.cheats import CHEATS
from tests.agents.harbor.guard.probing import measure

pytestmark = [pytest.mark.processes, pytest.mark.slow]
WIN_IN_PLACE = {
    "module in the user's site": 5,
    "modules in the current directory": 1,
    "link through links": 6,
    "link in the place of /logs": 7,
}
"""Numbers of shapes on which a cheat wins without a guard."""


async def test_no_cheat_gains_and_each_is_one() -> None:
    rewards, won = await measure({name: CHEATS[name] for name in WIN_IN_PLACE})
    for probe, by_shape in rewards.items():
        assert set(by_shape.values()) == {1.0 if probe == ORACLE else 0.0}, (probe, by_shape)
    assert {name: len(shapes) for name, shapes in won.items()} == WIN_IN_PLACE
