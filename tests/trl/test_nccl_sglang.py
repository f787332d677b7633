"""Weights that a trainer broadcasts to a real SGLang on a CPU through the service, with gloo in the
place of NCCL: `scripts/test-sglang`."""

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prorl_service.client.weights_copy import WeightsCopy
from prorl_service.inference.engines import sglang_answers
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import BackendSpec, WeightsReport
from prorl_trl.nccl import Broadcaster
from prorl_trl.weights import PolicyWeights, send
from tests import sglang_engine
from tests.inference.contract import TOLERANCE, Engine, ask, error, prompt
from tests.server.application import Settings, serving
from tests.trainers import trainer


@pytest.mark.processes
@pytest.mark.skipif(not sglang_engine.ENVIRONMENT, reason="run scripts/test-sglang")
async def test_sglang_receives_what_the_trainer_broadcasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sglang_answers, "_can_receive", lambda answer: True)
    monkeypatch.setitem(sglang_engine.SGLANG_ENVIRONMENT, "SGLANG_PLUGINS", "none of ours")
    checkpoints = [tmp_path / f"checkpoint-{seed}" for seed in range(3)]
    for seed, checkpoint in enumerate(checkpoints):
        build_tiny_model(checkpoint, seed=seed)
    broadcaster = Broadcaster()

    def push(url: str, checkpoint: Path) -> WeightsReport:
        weights = PolicyWeights(load_file(checkpoint / "model.safetensors"))
        with trainer(url) as client:
            return send(client, weights, broadcaster, WeightsCopy())

    with sglang_engine.sglang(checkpoints[0], log=tmp_path / "log.sglang") as process:
        settings = Settings(backends=(BackendSpec(url=process.url),), sandbox="process")
        engine = Engine(process.url, checkpoints[0], "sglang")
        async with serving(settings) as url, engine.backend() as backend:
            await backend.describe()
            for checkpoint in checkpoints[1:]:
                report = await asyncio.to_thread(push, url, checkpoint)
                assert (len(report.applied), report.pending) == (1, [])
                answer = await ask(backend, prompt(30))
                assert error(checkpoint, prompt(30), answer) < TOLERANCE
                assert set(answer.policy_versions) == {report.version}
