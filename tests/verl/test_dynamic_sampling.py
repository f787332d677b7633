"""Draws from a real service, as VeRL's trainer makes them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.sampling import AllGroupsFail
from prorl_service.schemas import Group, Message, Task
from prorl_service.schemas.sampling import SamplerSpec
from prorl_verl.dynamic import DynamicSampling
from prorl_verl.store import Prompt
from tests.faults.processes import port_to_come_back_to, stub_engine
from tests.verl.mix_agent import MixData

OPTIONS = ["--sandbox", "process", "--agent", "tests.verl.mix_agent:MixAgent", "--run-workers", "4"]


class Trainer:
    """Gives out prompts of which every third is informative."""

    def __init__(self, url: str, **spec: object) -> None:
        self.sampling = DynamicSampling(
            "run",
            SamplerSpec.model_validate(spec),
            lambda: RolloutClient(url, retry_s=60),
            deadline_s=60,
            draws_per_step=1,
        )
        self.given_out = 0
        self.drawn: list[str] = []
        self.dropped: list[str] = []

    def give_out(self, count: int) -> None:
        numbers = range(self.given_out, self.given_out + count)
        self.sampling.put(_prompt(number) for number in numbers)
        self.given_out += count

    def step(self, target: int) -> None:
        drawn, dropped = self.sampling.draw(target, version=0, refill=self.give_out)
        assert all(len(rollouts) == prompt.group.n for prompt, rollouts in drawn)
        self.drawn += [prompt.uid for prompt, _ in drawn]
        self.dropped += [prompt.uid for prompt in dropped]


def _prompt(number: int) -> Prompt:
    data = MixData(pauses_s=[0.0], is_informative=number % 3 == 0)
    messages = [Message(role="user", content="go")]
    task = Task(task_id=f"t{number}", agent="mix", messages=messages, data=data.model_dump())
    group = Group(group_id=f"group-{number}", task=task, n=2)
    return Prompt(f"uid-{number}", {}, group, 1, "train")


@pytest.fixture
def engine_url(tiny_model: Path) -> Iterator[str]:
    with stub_engine(tiny_model) as engine:
        yield engine.url


def test_every_prompt_is_drawn_or_dropped_once(engine_url: str, tmp_path: Path) -> None:
    with local.service([engine_url], log=tmp_path / "log", options=OPTIONS) as service:
        trainer = Trainer(service.url, oversubscription=1)
        for _ in range(3):
            trainer.give_out(2)
            trainer.step(2)
        trainer.step(1)
    numbers = [int(uid.partition("-")[2]) for uid in trainer.drawn]
    assert len(numbers) == len(set(numbers)) == 7
    assert all(number % 3 == 0 for number in numbers)
    assert not set(trainer.drawn) & set(trainer.dropped)
    assert len(set(trainer.dropped)) == len(trainer.dropped) > 0
    assert trainer.sampling.metrics()["prorl/sampling/failed"] == 0


def test_a_service_that_forgot_its_candidates_gets_them_again(
    engine_url: str, tmp_path: Path
) -> None:
    port = port_to_come_back_to()
    log = tmp_path / "log"
    with local.service([engine_url], log=log, port=port, options=OPTIONS) as service:
        trainer = Trainer(service.url, oversubscription=1)
        trainer.give_out(12)
        trainer.step(1)
        service.kill()
    with local.service([engine_url], log=log, port=port, options=OPTIONS):
        for _ in range(6):
            trainer.step(1)
    informative = {f"uid-{number}" for number in range(0, 12, 3)}
    assert informative <= set(trainer.drawn)  # not only the candidates after them


def test_a_draw_raises_if_all_groups_fail(engine_url: str, tmp_path: Path) -> None:
    with local.service([engine_url], log=tmp_path / "log", options=OPTIONS) as service:
        trainer = Trainer(service.url)
        trainer.sampling.put(_failing(number) for number in range(40))
        with pytest.raises(AllGroupsFail, match="groups failed"):
            trainer.step(1)


def _failing(number: int) -> Prompt:
    prompt = _prompt(number)
    limits = prompt.group.limits.model_copy(update={"run_timeout_s": 1e-6})
    group = prompt.group.model_copy(update={"limits": limits})
    return Prompt(prompt.uid, prompt.columns, group, 1, "train")
