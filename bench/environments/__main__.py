"""Tasks and environments of others: `python -m bench.environments [PART...]`.

`harbor`: the examples' rewards by us and by Harbor itself, and what cheats gain. `dockerfiles`: the
corpus of shapes. `starts`: a sandbox's start under Harbor. `training`: a tiny policy learns from
Harbor tasks. `servers`: servers of NeMo Gym and OpenEnv that tests run. Parts that are not named
keep their figures. Needs what `make test-environments` installs. The whole takes half an hour.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import result
from bench.environments import harbor_training, starts
from bench.environments.dockerfiles.__main__ import measure
from bench.environments.dockerfiles.corpus import dockerfiles_ok, shapes
from bench.result import Part
from prorl_service.sandbox.images import ImageCache
from tests.agents.nemo_gym import gym_servers
from tests.harbor.template import MODES, template
from tests.openenv.processes import echo_server, ors_server
from tests.sandbox.images.debian import SMALL, debian_image

EXAMPLES = Path("examples/harbor")
BASE, IMAGE = "debian:bookworm-slim", "bench-debian"
HARBOR = Path(".venv-harbor/bin/python")
STEPS = 40
OPENENV = {"template of `openenv init`": echo_server, "made by `openenv import`": ors_server}
Row = Mapping[str, object]


def harbor() -> Part:
    """Checks the examples and the task that `harbor init` makes, filled in; and has Harbor itself
    grade the solutions and doing nothing."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        tasks = Path(directory, "tasks")
        asyncio.run(ImageCache().build(IMAGE, str(debian_image())))
        _on_local_base(tasks)
        for mode in MODES:
            template(HARBOR.with_name("harbor"), tasks, mode, base=f"local:{IMAGE}")
        checked = Path(directory, "checked.json")
        command = [sys.executable, "-m", "prorl_service.cli", "harbor", "check", str(tasks)]
        subprocess.run([*command, "-j", "4", "--json", str(checked)], check=True)
        ours = json.loads(checked.read_text())
        theirs = {agent: _by_harbor(tasks, agent) for agent in ("oracle", "nop")}
    rows: list[Row] = []
    equal = cheats = rewarded = 0
    for one in ours:
        rewards = {probe["name"]: probe["reward"] for probe in one["probes"]}
        name = one["task"].rpartition("/")[2]
        row = {
            "task": name,
            "oracle": rewards.pop("oracle"),
            "oracle, Harbor": theirs["oracle"].get(name),
            "nothing": rewards.pop("nothing"),
            "nothing, Harbor": theirs["nop"].get(name),
            "cheats": len(rewards),
            "cheats rewarded": sum(reward > 0 for reward in rewards.values()),
        }
        equal += row["oracle"] == row["oracle, Harbor"] and row["nothing"] == row["nothing, Harbor"]
        cheats += len(rewards)
        rewarded += int(str(row["cheats rewarded"]))
        rows.append(row)
    return rows, {
        "harbor_tasks": len(rows),
        "rewards_equal_harbor": equal,
        "cheats_tried": cheats,
        "cheats_rewarded": rewarded,
    }


def _on_local_base(tasks: Path) -> None:
    """Copies the examples, with an image of this machine as their base."""
    shutil.copytree(EXAMPLES, tasks)
    for file in tasks.rglob("Dockerfile"):
        text = file.read_text().replace(BASE, f"local:{IMAGE}")
        file.write_text(text.replace("debian:${RELEASE}", f"local:{IMAGE}"))


def _by_harbor(tasks: Path, agent: str) -> dict[str, float]:
    """Runs Harbor itself, with our sandboxes. Returns rewards by the names of tasks."""
    program = (
        "import json, sys; from pathlib import Path; from tests.harbor.jobs import Job;"
        f" found = Job(Path({str(tasks)!r}), agent={agent!r}).wait();"
        " print(json.dumps({name: trials[0].rewards for name, trials in found.items()}))"
    )
    done = subprocess.run(
        [str(HARBOR), "-c", program], check=True, capture_output=True, text=True, timeout=900
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: rewards["reward"] for name, rewards in found.items() if rewards}


def dockerfiles() -> Part:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)  # containers may be another user's
        outcomes = asyncio.run(measure(str(debian_image(SMALL)), [], Path(directory)))
    rows = [
        {
            "shape": one.shape,
            "builder": one.builder,
            "ok": one.ok,
            "seconds": one.seconds,
            "outcome": one.outcome.splitlines()[0],
        }
        for one in outcomes
    ]
    return list(rows), {"dockerfiles": len(shapes()), "dockerfiles_ok": dockerfiles_ok(outcomes)}


def measured_starts() -> Part:
    rows = starts.measured()
    found = {f"{row['environment']}, {row['state']}": row["p50_ms"] for row in rows}
    return list(rows), {"sandbox_start_p50_ms": found.get("ours, warm")}


def training() -> Part:
    learnt = harbor_training.learnt(Path("outputs/harbor"), steps=STEPS)
    harbor_training.draw(learnt, result.RESULTS / "environments.png")
    row = {
        "training tasks": learnt.tasks,
        "held-out success before": learnt.before,
        "after": learnt.after,
        "logprob_diff_max": learnt.logprob_diff_max,
    }
    return [row], {"harbor_success_before": learnt.before, "harbor_success_after": learnt.after}


def servers() -> Part:
    """Starts each server that tests run rollouts on, and asks it for its health."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for gym in gym_servers.NAMES:
            with gym_servers.starting(gym, directory) as server:
                began_at = time.monotonic()
                gym_servers.until_up(server)
                rows.append(_up("NeMo Gym", gym, began_at))
        for kind, started in OPENENV.items():
            began_at = time.monotonic()
            with started(directory):
                rows.append(_up("OpenEnv", kind, began_at))
    kinds = Counter(row["kind"] for row in rows)
    return rows, {"nemo_gym_servers": kinds["NeMo Gym"], "openenv_servers": kinds["OpenEnv"]}


def _up(kind: str, server: str, began_at: float) -> Row:
    return {"kind": kind, "server": server, "up after, s": round(time.monotonic() - began_at, 1)}


PARTS: Mapping[str, Callable[[], Part]] = {
    "harbor": harbor,
    "training": training,
    "starts": measured_starts,
    "servers": servers,
    "dockerfiles": dockerfiles,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS])
    named: Sequence[str] = parser.parse_args().part
    result.write_parts("environments", PARTS, named)


if __name__ == "__main__":
    main()
