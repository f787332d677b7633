"""The model of fleets in `bench.nodes`, where arithmetic says what it must give."""

import pytest

from bench.nodes.simulation import Costs, Shape, simulate

FREE = Costs(front_s=0.0, rest_s=0.0)


def test_slots_are_busy_while_nothing_costs_anything() -> None:
    found = simulate(Shape.even(4, 8, 3, 10.0), FREE, cores=2, least_s=2000)
    assert found.busy == pytest.approx(1, abs=1e-3)
    assert found.rollouts_per_s == pytest.approx(4 * 8 / 30, rel=0.05)


def test_a_front_does_one_thing_at_a_time() -> None:
    costs = Costs(front_s=0.05, rest_s=0.0)
    found = simulate(Shape.even(8, 16, 1, 0.5), costs, cores=None, least_s=30)
    assert found.rollouts_per_s == pytest.approx(1 / 0.05, rel=0.05)
    assert found.front_cores == pytest.approx(1, abs=0.05)


def test_processes_of_one_machine_share_its_cores() -> None:
    costs = Costs(front_s=0.01, rest_s=0.09)
    found = simulate(Shape.even(8, 16, 3, 0.1), costs, cores=2, least_s=200)
    assert found.rollouts_per_s == pytest.approx(2 / 0.1, rel=0.05)


def test_services_at_rest_cost_their_front_time() -> None:
    costs = Costs(front_s=0.0, rest_s=0.0, look_s=0.002)
    found = simulate(Shape.long_tailed(100, 1, 60.0), costs, cores=None)
    assert found.front_cores == pytest.approx(100 * 0.002, rel=0.1)
