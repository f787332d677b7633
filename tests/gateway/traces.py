"""Recordings of real harnesses (tests/gateway/recorded): made again, and played to the gateway.

`python -m tests.gateway.traces` makes them, with every harness of `SCENARIOS` installed.
"""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prorl_service.attempt import Attempt
from prorl_service.gateway.calls import CallReply
from prorl_service.gateway.dialects import DIALECTS
from prorl_service.gateway.harnesses import preset
from prorl_service.gateway.rollout import RolloutGateway
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from tests.gateway.harnesses.scripts import SCENARIOS, played
from tests.gateway.recording import Exchange, read, recorded

RECORDED = Path(__file__).with_name("recorded")


def recordings() -> list[str]:
    return sorted(file.name.removesuffix(".json.xz") for file in RECORDED.glob("*.xz"))


def exchanges(name: str) -> tuple[Mapping[str, Any], list[Exchange]]:
    return read(RECORDED / f"{name}.json.xz")


async def answered(gateway: RolloutGateway, one: Exchange) -> CallReply:
    """Has the gateway answer a recorded request."""
    ending = next(ending for ending in DIALECTS if one.path.split("?")[0].endswith(ending))
    request = replace(DIALECTS[ending].request(one.body), is_subagent=one.is_subagent)
    begun = replace(gateway.begun(), name=one.turn)
    return await gateway.answer(request, begun, key=one.turn.encode(), is_repeated=False)


async def play_back(attempt: Attempt, found: list[Exchange]) -> RolloutGateway:
    gateway = RolloutGateway(attempt)
    for one in found:
        await answered(gateway, one)
    return gateway


async def _record() -> None:
    RECORDED.mkdir(exist_ok=True)
    for scenario, (harnesses, script) in SCENARIOS.items():
        for harness in harnesses:
            with recorded() as recorder:
                await played(harness, script(harness), BubblewrapProvider())
            facts = {"harness": harness, "version": preset.version_of(harness)}
            file = RECORDED / f"{harness}-{scenario}.json.xz"
            recorder.save(file, {**facts, "scenario": scenario})
            sys.stderr.write(f"{file.name}: {len(recorder.exchanges)} calls\n")


if __name__ == "__main__":
    asyncio.run(_record())
