"""A policy that mostly acts against the rules learns to serve a user.

Code plays the user, and checks the records.
"""

from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from bench import frame
from prorl_service import local
from prorl_service.client import RolloutClient
from recipes.demo.evaluate import evaluate
from recipes.demo.tasks import CONTEXT
from recipes.demo.train import TrainConfig, make_trainer
from recipes.dialogue.demonstrations import warm_started as dialogue_policy
from recipes.dialogue.tasks import LIMITS as DIALOGUE_LIMITS
from recipes.dialogue.tasks import instances as dialogues
from recipes.dialogue.user import MODEL, customer

CACHE = Path("outputs/demo/cache").absolute()
DIALOGUE_STEPS = 150
DIALOGUE_RATE = 3e-4
"""Learning rate. With the demo's, which is three times as high, the policy ends by refusing all."""
HELDOUT_DIALOGUES = 120


def measure_dialogue(quick: bool) -> frame.Found:
    steps = 2 if quick else DIALOGUE_STEPS
    model = dialogue_policy(CACHE)
    given = [one.task() for one in dialogues("train", min(steps * 8, 720), seed=0)]
    heldout = [one.task() for one in dialogues("heldout", HELDOUT_DIALOGUES, seed=0)]
    config = TrainConfig(steps=steps, limits=DIALOGUE_LIMITS, learning_rate=DIALOGUE_RATE)
    with TemporaryDirectory(prefix="prorl-bench-") as name, customer().in_thread() as user:
        directory, options = Path(name), ["--max-model-len", str(CONTEXT)]
        of_user = ["--user-url", f"{user.url}/v1", "--user-model", MODEL]
        with (
            local.engine(model, log=directory / "engine.log", options=options) as engine,
            local.service([engine.url], log=directory / "service.log", options=of_user) as service,
            RolloutClient(service.url) as client,
        ):

            def heldout_success(when: str) -> float:
                found = evaluate(client, heldout, name=when, n=1, limits=DIALOGUE_LIMITS)
                return round(fmean(one.reward or 0.0 for one in found), 3)

            before = heldout_success("before")
            trainer = make_trainer(model, service.url, directory, config, tasks=given)
            trainer.train()
            trainer.rollout_func.push_weights()
            after = heldout_success("after")
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    gap = max(entry["sampling/sampling_logp_difference/max"] for entry in history)
    headline = {
        "dialogue_success_before": before,
        "dialogue_success_after": after,
        "dialogue_steps": steps,
        "dialogue_logprob_diff_max": gap,
    }
    curve = [round(entry["reward"], 3) for entry in history]
    return frame.Found([headline], headline, {"dialogue_rewards": curve})
