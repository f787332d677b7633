"""Figures of harnesses among a trainer's metrics."""

from prorl_service.client.trainable import component_means


def test_they_have_a_name_of_their_own() -> None:
    rollouts = [{"correct": 1.0, "harness_calls": 4.0}, {"correct": 0.0, "harness_calls": 8.0}]
    means = component_means(rollouts)
    assert means == {"prorl/reward/correct": 0.5, "prorl/harness/calls": 6.0}
