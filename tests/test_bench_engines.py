"""Engines that benchmarks bring: a service takes them, and sees that they can be trained on."""

from pathlib import Path

import pytest

from bench.load.engine_process import engine_program
from prorl_service.inference.pool import BackendPool
from prorl_service.schemas import BackendSpec

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("module", "arguments"), [("bench.load.engine", ["1"]), ("bench.ablation.engine", [])]
)
async def test_a_service_takes_the_engine(
    module: str, arguments: list[str], tiny_model: Path, tmp_path: Path
) -> None:
    with engine_program(module, str(tiny_model), *arguments) as url:
        async with BackendPool(tmp_path) as pool:
            added = await pool.add(BackendSpec(url=url))
    assert added.state == "healthy"
