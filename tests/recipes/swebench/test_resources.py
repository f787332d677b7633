"""The calculator's formulas against numbers worked out by hand, and what it reads."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.tokens.ledger import Chain
from recipes.common.training.memory import ModelShape
from recipes.swebench.prepare import Image, Manifest
from recipes.swebench.resources.costs import Costs, read_costs
from recipes.swebench.resources.formulas import TOKEN_BYTES, Run, check, needs

COSTS = Costs(
    turn_cpu_ms=100,
    turn_overhead_s=1,
    service_mb=50,
    service_mb_per_rollout=1,
    image_mb=100,
    sandbox_mb=2,
    grading_s=10,
)
RUN = Run(
    ModelShape(1e9, layers=10, kv_heads=2, head_size=100),
    batch=4,
    n=2,
    turns=10,
    mean_turns=10,
    model_s=8,
    context=1000,
    nodes=2,
    test_runs=2,
    test_mb=1000,
    images=5,
    image_mb=200,
    gpus=4,
    gpu_gb=10,
    tensor_parallel=2,
    gpu_share=0.5,
)


def test_a_run_of_all_rollouts_at_once_matches_hand_calculation() -> None:
    found = needs(RUN, COSTS)
    # A turn: 8 s model, 1 s overhead, two runs of the tests in ten turns: 11 s. A rollout: 110 s.
    assert found.rollouts == 8
    assert found.step_s == 10 * 11 + 10
    # Processor: 10 x 0.1 s and three runs of 10 s, in 110 s, eight times.
    assert found.cores == pytest.approx(8 * 31 / 110)
    # 8 in RUN, 8 x 10 / 110 in EVAL, 16 ahead on each of two nodes.
    assert found.sandboxes == 8 + 1 + 32
    # On a node: at rest, and four rollouts with 1000 tokens of 23 bytes.
    assert found.service_mb == pytest.approx(50 + 4 * 1.023)
    # Two services, the images of four groups, sandboxes, and 8 x 30 / 110 runs of tests.
    assert found.memory_gb == pytest.approx((2 * 54.092 + 400 + 82 + 3000) / 1000)
    assert found.disk_gb == 1.0
    assert found.slot_use == 1.0
    assert found.engine_calls == pytest.approx(8 * 8 / 11)
    # 4 GPUs x 10 GB x 0.5 less two engines of 2 GB; 8 kB a token, 8 MB a sequence.
    assert found.engine_room == 2000


def test_oversubscription_cuts_the_longest_rollouts() -> None:
    # 2 to 10 turns, evenly spread: half end within 6 turns, and the step ends then.
    found = needs(replace(RUN, mean_turns=6, oversubscription=2), COSTS)
    assert found.rollouts == 16
    turn_s = 8 + 1 + 20 / 6
    assert found.step_s == pytest.approx(6 * turn_s + 10)
    # 16 rollouts of 5 turns on average, cut at 6.
    assert found.slot_use == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("slots", "turns", "use"),
    [
        (4, 10, 48 / 80),  # one for each: it waits for the longest
        (3, 10, 48 / 60),  # six for eight: still the longest
        (1, 24, 1.0),  # two for eight: 48 turns, 24 each
    ],
)
def test_slots_decide_how_long_a_step_takes(slots: int, turns: float, use: float) -> None:
    found = needs(replace(RUN, mean_turns=6, slots=slots), COSTS)
    assert found.step_s == pytest.approx(turns * (8 + 1 + 20 / 6) + 10)
    assert found.slot_use == pytest.approx(use)


def test_the_bytes_of_a_token_match_the_ledger() -> None:
    chain = Chain([1])
    chain.append([2], [0.0], [3])
    prompt = EncodedPrompt([151_642, 151_643], before=EncodedPrompt([151_642]))
    assert prompt.json() == b"[151642,151643]"
    arrays = (chain.ids, chain._logprobs, chain._versions, prompt._ids)
    assert sum(one.itemsize for one in arrays) + len(",151643") == TOKEN_BYTES


def test_settings_that_do_not_fit_together_are_refused() -> None:
    check(RUN)
    with pytest.raises(InvalidRequest, match="mean-turns"):
        check(replace(RUN, mean_turns=4))
    with pytest.raises(InvalidRequest, match="gpus"):
        check(replace(RUN, gpus=3))


def results(directory: Path, **files: Any) -> Path:
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def load_row(who: str, at_once: int, latency_ms: int, rss_mb: float) -> dict[str, Any]:
    figures = {"cpu_ms": 2.0, "children_ms": 1.5, "added_ms_p50": 20.0, "rss_mb": rss_mb}
    return {"who": who, "at_once": at_once, "latency_ms": latency_ms, **figures}


LOAD = {
    "rows": [
        load_row("ours, process", 1, 100, 100.0),
        load_row("ours, apptainer", 64, 1000, 0.0),
        load_row("ours, process", 1024, 100, 611.5),
    ]
}
SIF = {"part": "many", "who": "ours, apptainer SIF", "what": "thinking"}
TOOLS = {
    "rows": [{**SIF, "at_once": 1, "pss_mb": 52.0}, {**SIF, "at_once": 256, "pss_mb": 2.1953125}]
}
OFFLINE = {"headline": {"grading_s_per_instance_p50": 1.25}}


def test_costs_are_read_from_measurements(tmp_path: Path) -> None:
    read = read_costs(results(tmp_path, load=LOAD, tools=TOOLS, swe_offline=OFFLINE))
    assert read == Costs(
        turn_cpu_ms=3.5,
        turn_overhead_s=0.02,
        service_mb=99.5,
        service_mb_per_rollout=0.5,
        image_mb=50.0,
        sandbox_mb=2.0,
        grading_s=1.25,
    )


def test_a_missing_measurement_is_named(tmp_path: Path) -> None:
    results(tmp_path, load=LOAD, tools=TOOLS)
    with pytest.raises(ProRLError, match=r"there is no .*swe_offline\.json") as error:
        read_costs(tmp_path)
    assert "--grading-s" in error.value.hint
    assert read_costs(tmp_path, grading_s=3).grading_s == 3
    with pytest.raises(ProRLError, match="has no row"):
        read_costs(results(tmp_path, load={"rows": []}), grading_s=3)


def command(*arguments: str) -> str:
    program = [sys.executable, "-m", "recipes.swebench.resources", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    return f"{done.returncode} {done.stdout}{done.stderr}"


@pytest.mark.processes
def test_the_command_prints_what_is_needed(tmp_path: Path) -> None:
    # Uses the repository's own measurements and a prepared data set.
    images = {"a": Image(digest="sha256:1", bytes=10**9), "b": Image(digest="sha256:2", bytes=0)}
    manifest = Manifest(
        dataset="verified",
        source="",
        revision="",
        split="",
        graded_by="recorder",
        rows_read=2,
        instances=2,
        rejected={},
        tests_left_out=0,
        admitted=False,
        images=images,
        complete=True,
        versions={},
    )
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    said = command("--grading-s", "2", "--prepared", str(tmp_path), "--nodes", "4")
    assert said.startswith("0 ")
    assert "2 of 500 MB" in said
    assert "rollouts of a step" in said
    assert "there is no" in command("--grading-s", "2", "--prepared", str(tmp_path / "absent"))
    assert "2 prorl: model: must be one of qwen3_4b" in command("--model", "x")
