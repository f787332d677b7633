"""The same load on services that `prorl ray` started, a node of Ray each.

`python -m bench.nodes.cluster COUNT` in the environment of VeRL, which has Ray; prints a row as
JSON. Nodes of Ray take 0.4 GB each, so that a machine has few of them.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from bench.nodes.agent import AGENT
from bench.nodes.engine import waiting_engine
from bench.nodes.load import measure
from bench.nodes.services import SERVE, SLOTS, WARM_S, WINDOW_S, figures_of
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.ray import runs
from prorl_service.ray.plan import NodePlan, RunPlan
from tests.ray.clusters import RESOURCE, TOKEN, cluster, serving

RUN, CALL_S = "nodes", 10.0
START_S = 300.0


def main(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="prorl-bench-") as place:
        directory = Path(place)
        with waiting_engine(directory) as engine, cluster(directory / "cluster") as nodes:
            engine.mean_s = CALL_S
            for _ in range(count):
                nodes.add()
            runs.start(_plan(engine.url))
            front = serving(RUN, count, START_S).front
            at, slots = (front.url, front.pid), SLOTS * count
            loaded = measure(at, engine, slots, warm_s=WARM_S, window_s=WINDOW_S, token=TOKEN)
            window = asyncio.run(loaded)
            runs.stop(RUN)
    print(json.dumps({"services": count, "started_by": "Ray", **figures_of(window, CALL_S)}))


def _plan(engine: str) -> RunPlan:
    return RunPlan(
        run=RUN,
        token=TOKEN,
        nodes=NodePlan(resource=RESOURCE),
        agents=AGENT[1:],
        backends=(engine,),
        serve=SERVE[len(AGENT) :],
        slots=SLOTS + PipelineConfig().init_workers,
        drain_s=1,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
