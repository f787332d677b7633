"""A curriculum over HTTP: what it passes over, what draws and metrics report, over a restart."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from prorl_service.client import AsyncRolloutClient, RolloutClient
from prorl_service.client.sampling import StepDraws
from prorl_service.schemas import Difficulty, Group
from prorl_service.schemas.sampling import Curriculum, DrawSpec, DrawState, SamplerSpec
from prorl_service.testing import StubEngine
from tests.server.application import Settings, serving
from tests.server.draws import INFORMATIVE, drawn, scored_settings
from tests.server.scored_agent import scored

SCORES = {0: (1, 1, 1, 1), 1: INFORMATIVE, 2: (0, 0, 0, 0)}
SPEC = SamplerSpec(curriculum=Curriculum(seed=3), groups_at_once=1)


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    return scored_settings(engine)


def levelled(number: int) -> Group:
    level = number % 3
    made = scored(f"g{number}", *SCORES[level], task_id=f"t{number}")
    difficulty = Difficulty(kind="sums", level=level)
    return made.model_copy(update={"task": made.task.model_copy(update={"difficulty": difficulty})})


async def test_metrics_of_a_step_show_each_difficulty(url: str) -> None:
    data = [levelled(number) for number in range(300)]

    def train() -> list[dict[str, float]]:
        draws, metrics = StepDraws("s", SPEC, iter(data), deadline_s=120), []
        with RolloutClient(url) as client:
            for number in range(4):
                draws.draw(client, f"d{number}", DrawSpec(target=6))
                metrics.append(draws.metrics())
        return metrics

    metrics = await asyncio.to_thread(train)
    for level, score in enumerate((1.0, 0.5, 0.0)):
        name = f"prorl/difficulty/sums/{level}"
        seen = [one for one in metrics if f"{name}/score" in one]
        assert seen
        assert {one[f"{name}/score"] for one in seen} == {score}
        assert {one[f"{name}/informative_share"] for one in seen} == {float(level == 1)}
    assert metrics[0]["prorl/sampling/informative_share"] < 0.7
    assert metrics[-1]["prorl/sampling/informative_share"] > 0.7
    assert metrics[-1]["prorl/sampling/passed_over"] > 0


@pytest.mark.slow
async def test_a_restart_changes_no_choice(settings: Settings, tmp_path: Path) -> None:
    """What is passed over depends on the order of ends: one group at a time has but one."""
    groups = [levelled(number) for number in range(120)]

    async def chosen(journal: Path, *, restarts: bool) -> list[tuple[str, str]]:
        own = replace(settings, journal=journal, resume=True)
        seen: list[tuple[str, str]] = []
        draws = [["a"], ["b"], ["c"]] if restarts else [["a", "b", "c"]]
        for names in draws:
            async with serving(own) as url, AsyncRolloutClient(url) as client:
                await client.create_sampler("s", SPEC)
                await client.add_candidates("s", groups, is_last=True)
                for name in names:
                    await client.open_draw("s", name, DrawSpec(target=5))
                    draw = await drawn(client)
                    assert draw.state is DrawState.COMPLETE
                    seen += [(one.candidate, "given") for one in draw.groups]
                    seen += [(one.candidate, one.reason) for one in draw.dropped]
        return seen

    restarted = await chosen(tmp_path / "one.sqlite", restarts=True)
    assert restarted == await chosen(tmp_path / "two.sqlite", restarts=False)
    assert {"given", "uninformative", "passed_over"} == {how for _, how in restarted}
