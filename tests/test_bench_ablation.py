"""`bench.ablation`: ratios, validity of runs, modelled engines, and the signs of a quick run."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from bench.ablation import table, workload
from bench.ablation.model import Model
from bench.ablation.rows import ALL, ALL_SLOW, BALANCING, ROWS
from bench.ablation.running import Run
from bench.ablation.service import replaced
from bench.quiet import Quiet
from tests.programs import ran

QUIET, BUSY, DISTURBED = Quiet(0.5, 0.1), Quiet(0.71, 0.1), Quiet(0.6, 1.1)
FAST = 1e-3
"""Slowness of an engine that a test need not wait for."""
QUICK_TIMEOUT_S = 400


def _runs(rates: Sequence[float], quiet: Quiet = QUIET) -> list[Run]:
    return [Run(rate, 0.0, [1.0, 2.0, 3.0], quiet) for rate in rates]


def _table(balancing: list[Run] | None = None) -> dict[str, list[Run]]:
    runs = {row.name: _runs([1.0, 2.0, 4.0]) for row in ROWS}
    return runs if balancing is None else runs | {BALANCING: balancing}


def test_a_ratio_is_of_the_same_seed_and_the_row_has_their_median() -> None:
    runs = _table(balancing=_runs([0.5, 1.4, 2.4]))
    lines = [table.line(row, runs) for row in ROWS]
    (line,) = [one for one in lines if one["row"] == BALANCING]
    assert (line["ratio"], line["low"], line["high"]) == (0.6, 0.5, 0.7)
    assert (line["paper"], line["action_ms_mean"]) == (0.68, 2.0)
    figures = table.headline(lines)
    assert figures["without_balancing"] == 0.6
    assert (figures["without_bash"], figures["without_bash_paper"]) == (1.0, 0.78)


@pytest.mark.parametrize("quiet", [BUSY, DISTURBED])
def test_runs_on_a_busy_machine_are_no_result_and_named(quiet: Quiet) -> None:
    problems = table.problems(_table(balancing=_runs([0.5, 1.4, 2.4], quiet)))
    assert len(problems) == 3
    assert all(one.startswith(BALANCING) and "used" in one for one in problems)
    assert not table.problems(_table())


def test_a_row_that_is_faster_without_its_optimisation_has_the_wrong_sign() -> None:
    assert table.wrong_signs(ROWS, _table(balancing=_runs([1.04, 2.08, 4.16]))) == []
    (wrong,) = table.wrong_signs(ROWS, _table(balancing=_runs([1.2, 2.4, 4.8])))
    assert wrong == f"{BALANCING}: 1.20 of {ALL_SLOW}"


def test_every_row_names_switches_that_exist_and_a_base() -> None:
    for row in ROWS:
        with replaced(row.switches):
            pass
        assert row.base in (ALL, ALL_SLOW)


def test_a_rollout_is_the_same_whatever_its_sampler_is_called() -> None:
    one, other = "s:1f:c7:1.3", "t:2e:c7:1.3"
    assert workload.end(1, one) == workload.end(1, other)
    assert workload.command(1, one, 2) == workload.command(1, other, 2)
    assert workload.eval_s(1, one, 1.0) == 2 * workload.eval_s(1, other, 0.5)
    assert workload.eval_s(1, one, 1.0) != workload.eval_s(2, one, 1.0)


async def test_a_modelled_engine_keeps_prefixes_and_forgets_calls_that_were_given_up() -> None:
    model = Model(slowness=FAST)
    clock = asyncio.create_task(model.run())
    assert await model.sample("s", context=1000, tokens=100) == 0
    assert await model.sample("s", context=1200, tokens=100) == 1100
    assert await model.sample("other", context=1200, tokens=100) == 0
    given_up = asyncio.create_task(model.sample("s", context=10, tokens=10**9))
    await asyncio.sleep(0.1)
    given_up.cancel()
    with suppress(asyncio.CancelledError):
        await given_up
    assert not model.calls
    assert not model.queue
    clock.cancel()


@pytest.mark.on_demand
@pytest.mark.slow
@pytest.mark.processes
def test_no_row_of_a_quick_run_is_faster_without_its_optimisation() -> None:
    command = [sys.executable, "-m", "bench.ablation", "--quick"]
    done = ran(*command, cwd=Path(__file__).parents[1], timeout=QUICK_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
