"""GRPO training over two services, each with an engine of its own: the option `url` names both."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.schemas import TERMINAL_STATES, Rollout, RolloutState
from prorl_trl import ProRLRollout
from tests.trl.test_dynamic import MIX, STEPS
from tests.trl.training import SERVICE_OPTIONS, TWO_TURNS, logged, make_trainer

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*rollout_func.*experimental:UserWarning",
        "ignore:.*gradient_checkpointing.*:FutureWarning",
    ),
    pytest.mark.processes,
]


@pytest.fixture
def urls(policy: Path, tmp_path: Path) -> Iterator[list[str]]:
    with ExitStack() as stack:
        engines = [
            stack.enter_context(local.engine(policy, log=tmp_path / f"engine-{name}.log"))
            for name in "ab"
        ]
        yield [
            stack.enter_context(
                local.service([one.url], log=tmp_path / "service.log", options=SERVICE_OPTIONS)
            ).url
            for one in engines
        ]


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_steps_take_rollouts_of_both_cells_and_give_weights_to_both(
    urls: list[str], policy: Path, tmp_path: Path, *, is_dynamic: bool
) -> None:
    observed: list[Rollout] = []
    rollouts = ProRLRollout(
        ",".join(urls), dynamic_sampling=is_dynamic, observe=observed.extend, **TWO_TURNS
    )
    trainer = make_trainer(rollouts, policy, tmp_path, faults=MIX, options=STEPS)
    trainer.train()
    assert len({one.rollout_id for one in observed}) == 4 * 8
    if is_dynamic:
        assert logged(trainer, "frac_reward_zero_std") == [0] * 4
    else:
        assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4
    ended = 0
    for url in urls:
        with RolloutClient(url) as client:
            status = client.status()
        assert status.policy_version == rollouts._pushes.newest
        assert set(status.rollouts) <= TERMINAL_STATES
        here = status.ended.get(RolloutState.DONE, 0)
        assert here or not is_dynamic  # a draw of two groups takes one of each
        ended += here
    assert ended >= 4 * 4
