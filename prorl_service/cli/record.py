"""`prorl record`: what a harness sends to a model that plays scripted replies, as a JSON file."""

import asyncio
import sys
from pathlib import Path

import uvloop

from prorl_service.agents.harness.agent import HarnessAgent
from prorl_service.agents.registry import AgentRegistry
from prorl_service.cli.presets import known
from prorl_service.client.harness import with_harness
from prorl_service.errors import ProRLError
from prorl_service.gateway.harnesses import preset, store
from prorl_service.gateway.recording import Recorder
from prorl_service.sandbox import SandboxKind
from prorl_service.schemas import Message, RolloutState, Task
from prorl_service.testing.playing import play
from prorl_service.testing.replies import read


def record(
    harness: str,
    /,
    *,
    replies: Path,
    output: Path,
    prompt: str = "Do the task.",
    sandbox: SandboxKind = "bubblewrap",
) -> int:
    """Run a harness once, with scripted replies, and write what it sends to a file.

    The file holds no text of the harness: filler of the same length takes its place. Exits with
    code 1 if the rollout failed.

    Parameters
    ----------
    harness
        A preset, as NAME, NAME@VERSION, or the TOML file of one of your own.
    replies
        File with the model's replies, as for `prorl try`: texts separated by lines of '---'.
    output
        JSON file to write.
    prompt
        Task that the harness gets.
    sandbox
        Kind of sandbox.
    """
    name, version = store.parse(known(harness))
    version = version or preset.version_of(name)
    scripts = read(replies)
    if len(scripts) != 1:
        raise ProRLError(f"--replies {replies}: one script is needed, not {len(scripts)}")
    math = Task(
        task_id="record",
        agent="math",
        messages=[Message(role="user", content=prompt)],
        data={"answer": "42"},
    )
    HarnessAgent.recorder = recorder = Recorder()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        played = runner.run(
            play(
                AgentRegistry()[HarnessAgent.name],
                with_harness(math, name, version=version or None),
                scripts[0],
                sandboxes=sandbox,
            )
        )
    recorder.save(output, {"harness": name, "version": version})
    print(f"{output}: {len(recorder.exchanges)} calls of {name} {version}", file=sys.stderr)
    if played.rollout.error is not None:
        print(f"prorl: the rollout failed: {played.rollout.error.message}", file=sys.stderr)
    return 0 if played.rollout.state is RolloutState.DONE else 1
