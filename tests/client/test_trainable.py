"""What a trainer learns nothing from, and whose fault it is; figures of harnesses."""

from prorl_service.client.trainable import (
    blamed_on_engines,
    component_means,
    failure_of,
    outage_of,
)
from prorl_service.schemas import BackendState, Blame, Rollout, RolloutState
from tests import builders


def rollout(state: RolloutState) -> Rollout:
    return builders.rollout(state=state)


def test_no_engine_is_an_outage() -> None:
    assert (
        outage_of([builders.backend(BackendState.DOWN), builders.backend(BackendState.HEALTHY)])
        is None
    )
    assert outage_of([builders.backend(BackendState.UPDATING)]) is None
    down = outage_of([builders.backend(BackendState.DOWN, reason="connection refused")])
    assert down is not None
    assert (down.kind, down.blame, down.retryable) == ("BackendUnavailable", Blame.BACKEND, True)
    assert "http://e:1 (connection refused)" in down.message
    nothing = outage_of([])
    assert nothing is not None
    assert "no inference engine" in nothing.message


def test_rollouts_cancelled_in_an_outage_are_blamed_on_it() -> None:
    outage = outage_of([builders.backend(BackendState.DOWN, reason="gone")])
    cancelled = failure_of(blamed_on_engines(rollout(RolloutState.CANCELLED), outage))
    assert cancelled == outage
    late = failure_of(blamed_on_engines(rollout(RolloutState.CANCELLED), None))
    assert late is not None
    assert late.kind == "NotFinished"
    done = rollout(RolloutState.DONE)
    assert blamed_on_engines(done, outage) is done


def test_figures_of_harnesses_have_a_name_of_their_own() -> None:
    rollouts = [{"correct": 1.0, "harness_calls": 4.0}, {"correct": 0.0, "harness_calls": 8.0}]
    means = component_means(rollouts)
    assert means == {"prorl/reward/correct": 0.5, "prorl/harness/calls": 6.0}
