"""Samples of a day and trainers' steps: bounded, in order, thinned without losing what matters,
kept over restarts; and who may report steps."""

import asyncio
import logging
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.client.policy import HeldPolicy
from prorl_service.net.callers import Role, TokenFile
from prorl_service.net.credentials import tokens_file
from prorl_service.schemas import PolicyClaim
from prorl_service.schemas.history import History, Load, TrainerStep
from prorl_service.shelf import history
from prorl_service.shelf.history import HistoryFile
from tests.server.application import Settings, serving
from tests.trainers import training

Samples = list[tuple[float, float]]
OWN = "the-token-of-the-owner"


async def sampled(file: HistoryFile, samples: Samples) -> None:
    for at, value in samples:
        empty = dict.fromkeys(Load)
        await file.add_sample(at, {**empty, Load.ENDED: value, Load.LAG: value})


# Clocks mostly go on, by up to an hour, and sometimes jump back.
steps = st.lists(st.tuples(st.floats(-50, 3600), st.floats(0, 100)), max_size=40)


@given(steps=steps, most=st.integers(1, 30), points=st.integers(2, 10))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_samples_are_bounded_in_order_and_thinned_to_means(
    steps: Samples, most: int, points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_SAMPLES", most)
    monkeypatch.setattr(history, "MAX_POINTS", points)
    samples, at = list[tuple[float, float]](), 1e9
    for after_s, value in steps:
        at += after_s
        samples.append((at, value))

    async def keep() -> History:
        file = HistoryFile(None)
        await sampled(file, samples)
        found = await file.samples(0)
        file.close()
        return found

    found, kept = asyncio.run(keep()), samples[-most:]
    assert found.at == sorted(found.at)
    assert len(found.at) <= points
    assert all(len(column) == len(found.at) for column in found.load.values())
    assert set(found.load[Load.CALLS]) <= {None}
    values = [value for _, value in kept]
    lags = [one for one in found.load[Load.LAG] if one is not None]
    assert max(lags, default=0) == pytest.approx(max(values, default=0), rel=1e-3)
    for mean in found.load[Load.ENDED]:
        assert mean is not None
        assert min(values) * 0.999 <= mean <= max(values) * 1.001
    if len(kept) <= points and len({round(at, 2) for at, _ in kept}) == len(kept):
        assert found.load[Load.ENDED] == pytest.approx([one for _, one in sorted(kept)], rel=1e-3)


async def test_a_days_samples_are_one_small_answer() -> None:
    file, began = HistoryFile(None), 1e9
    values = [float(number % 7) for number in range(2000)]
    await sampled(file, [(began + 10 * at, value) for at, value in enumerate(values)])
    found = await file.samples(0)
    assert 450 <= len(found.at) <= 500
    assert found.step_s == pytest.approx(40, rel=0.01)
    means = [one for one in found.load[Load.ENDED] if one is not None]
    assert sum(means) / len(means) == pytest.approx(3, abs=0.05)
    assert found.load[Load.LAG].count(6) > 250
    assert len((await file.samples(began + 19_900)).at) == 10
    file.close()


async def test_a_step_is_reported_in_parts_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_STEPS", 4)
    file = HistoryFile(None)
    for step in range(6):
        await file.add_step("run", step, TrainerStep(step=step, metrics={"loss": step, "kl": 1}))
    await file.add_step("run", 5, TrainerStep(step=5, metrics={"eval_loss": 7, "kl": 3}))
    await file.add_step("other", 5, TrainerStep(step=1, metrics={"loss": 9}))
    names, curves = await file.metrics("run", ["loss", "kl", "nothing"])
    assert (names, list(curves)) == (["eval_loss", "kl", "loss"], ["kl", "loss"])
    assert (curves["loss"].policy_versions, curves["loss"].values) == ([3, 4, 5], [3, 4, 5])
    assert curves["kl"].values == [1, 1, 3]
    assert (await file.metrics("nobody", ["loss"])) == ([], {})
    monkeypatch.setattr(history, "MAX_POINTS", 2)
    thinned = (await file.metrics("run", ["loss"]))[1]["loss"]
    assert (thinned.policy_versions, thinned.values) == ([3, 5], [3.5, 5])
    file.close()


# --- the file -----------------------------------------------------------------------------------


async def test_a_run_of_another_service_beside_it_is_found(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).touch()
    (tmp_path / "broken.history").write_bytes(b"not a database" * 100)
    first, second = HistoryFile(tmp_path / "first"), HistoryFile(tmp_path / "second")
    await first.add_step("night", 3, TrainerStep(step=4, metrics={"loss": 0.5}))
    names, curves = await second.metrics("night", ["loss"])
    assert (names, curves["loss"].values) == (["loss"], [0.5])
    for file in (first, second):
        file.close()


@pytest.mark.parametrize("content", [b"not a database" * 100, None])
async def test_a_file_that_cannot_be_used_stops_nothing(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "j.history"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    (tmp_path / "j").touch()
    file = HistoryFile(tmp_path / "j")
    await sampled(file, [(1e9, 1.0)])
    assert len((await file.samples(0)).at) == 1
    file.close()
    assert ("cannot be used" if content is None else "moved to j.history.damaged") in caplog.text


async def test_a_full_disk_costs_samples_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "j").touch()
    file = HistoryFile(tmp_path / "j")
    file._db.execute("PRAGMA max_page_count = 1")
    await sampled(file, [(1e9 + number, 1.0) for number in range(5000)])
    assert 0 < len((await file.samples(0)).at) <= 5000
    assert caplog.text.count("cannot be written") == 1
    file.close()


# --- a service ----------------------------------------------------------------------------------


async def until_sampled(client: AsyncRolloutClient, count: int) -> History:
    while len((found := await client.history()).at) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return found


@pytest.mark.processes
async def test_a_restart_keeps_both_and_an_unused_journal_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "SAMPLE_S", 0.05)
    began = time.time()
    own = Settings(sandbox="process", warm_sandboxes=0, run="night", journal=tmp_path / "j")
    async with serving(own) as url, AsyncRolloutClient(url, retry_s=0) as client:
        await until_sampled(client, 1)
    assert os.listdir(tmp_path) == []
    async with serving(own) as url, AsyncRolloutClient(url, training=training("a").key) as client:
        await client.claim_policy(PolicyClaim(training=training("a")))
        await client.report_step(TrainerStep(step=1, metrics={"loss": 0.5}))
        before = await until_sampled(client, 3)
        assert before.load[Load.RUN_RUNNING] == [0] * len(before.at)
        assert before.load[Load.CACHE_USE] == [None] * len(before.at)
    again = Settings(sandbox="process", warm_sandboxes=0, journal=tmp_path / "j", resume=True)
    async with serving(again) as url, AsyncRolloutClient(url, retry_s=0) as client:
        after = await until_sampled(client, len(before.at) + 1)
        assert after.at[: len(before.at)] == before.at
        assert (await client.history(before.at[-1])).at[0] == before.at[-1] > began
        found = await client.training(metrics=["loss", "nothing"])
        assert (found.run, found.metric_names) == ("night", ["loss"])
        assert found.metrics["loss"].values == [0.5]
        assert (await client.training(run="other")).metric_names == []


@pytest.mark.processes
async def test_only_the_policys_owner_reports_steps_and_readers_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(history, "SAMPLE_S", 0.05)
    path = tokens_file()
    assert path is not None
    tokens = TokenFile(path)
    step = TrainerStep(step=1, policy_version=4, metrics={"loss": 0.5})
    first, second = training("first"), training("second")
    async with serving(Settings(sandbox="process", warm_sandboxes=0, token=OWN)) as url:
        for role in (Role.READ, Role.SUBMIT):
            async with AsyncRolloutClient(url, token=tokens.add(role, role), retry_s=0) as named:
                await until_sampled(named, 1)
                with pytest.raises(ServiceCallError, match=f"role {role.value}") as refusal:
                    await named.report_step(step)
                assert refusal.value.http_status == 403
        async with (
            AsyncRolloutClient(url, token=OWN, training=first.key, retry_s=0) as owner,
            AsyncRolloutClient(url, token=OWN, training=second.key, retry_s=0) as other,
            AsyncRolloutClient(url, token=OWN, retry_s=0) as nobody,
        ):
            await nobody.report_step(step)  # no training has claimed the policy
            await owner.claim_policy(PolicyClaim(training=first))
            await owner.report_step(step.model_copy(update={"metrics": {"kl": 0.25}}))
            for stranger in (other, nobody):
                with pytest.raises(ServiceCallError, match="PolicyTaken"):
                    await stranger.report_step(step)
            found = await nobody.training(metrics=["kl"])
            assert found.metric_names == ["kl", "loss"]
            assert found.metrics["kl"].policy_versions == [4]


async def test_a_report_that_fails_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "prorl_service.client.policy")
    policy = HeldPolicy("http://127.0.0.1:9")
    policy.report(1, {"text": "x", "nothing": None, "nan": float("nan")})
    assert caplog.records == []
    policy.report(1, {"loss": 1.0})
    policy.report(2, {"loss": 1.0})
    policy.report(3, {"x" * 300: 1.0})
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]
