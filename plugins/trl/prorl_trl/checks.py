"""Checks of a trainer before its rollouts are made elsewhere; run once, at first use.

The importance-sampling correction needs private attributes of TRL. They are looked for in TRL's own
code, so that a release that moves them is refused instead of training without correction.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, starmap
from typing import Any

import trl
from packaging.specifiers import SpecifierSet

from prorl_service.client import RolloutClient
from prorl_service.client.datasets import check_rows
from prorl_service.schemas import Sampling, ServiceStatus
from prorl_service.schemas.tokenizer_digest import differing_tokenizer
from prorl_trl.convert import task_of

SUPPORTED_TRL = SpecifierSet(">=1.6,!=1.15.0,<1.17")
DIVIDES_BY_MASK = SpecifierSet("<1.9").contains(trl.__version__)
"""True for a TRL in which a fully masked step turns the policy into NaN."""
_READ_BY_TRL = {
    "_generate": {
        "rollout_func",
        "use_vllm",
        "vllm_generation",
        "sync_weights",
        "_last_loaded_step",
    },
    "_generate_and_score_completions": {"use_vllm", "vllm_importance_sampling_correction"},
}
SUPPORTED_ASYNC_TRL = SpecifierSet(">=1.11,!=1.15.0,<1.17")
"""Releases with the protocols that `async_rollouts` implements."""


def check_version(supported: SpecifierSet = SUPPORTED_TRL, user: str = "prorl_trl") -> None:
    if not supported.contains(trl.__version__):
        raise ImportError(
            f"{user} supports trl{supported}, but trl {trl.__version__} is installed: "
            f"pip install 'trl{supported}'"
        )


def check_data(
    datasets: Mapping[str, Any], agent: str | None, client: RolloutClient, sampling: Sampling
) -> None:
    """Raises `BadRows` unless all rows can run. Data sets are keyed by their names for people; a
    stream may have no end: its rows are checked when they are submitted."""
    check_rows(
        chain.from_iterable(starmap(_prompts, datasets.items())),
        partial(task_of, default_agent=agent),
        partial(client.check_tasks, sampling=sampling),
    )


def datasets_of(trainer: Any) -> dict[str, Any]:
    """Returns all data sets that a GRPOTrainer takes prompts of, by their names for people."""
    several = trainer.eval_dataset
    if not isinstance(several, dict):
        return {"train_dataset": trainer.train_dataset, "eval_dataset": several}
    named = {f"eval_dataset[{name!r}]": one for name, one in several.items()}
    return {"train_dataset": trainer.train_dataset, **named}


def _prompts(name: str, dataset: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(dataset, "__len__"):
        for number in range(len(dataset)):
            yield f"{name}[{number}]", dataset[number]["prompt"]


def check_hooks() -> None:
    for method, names in _READ_BY_TRL.items():
        code = inspect.unwrap(getattr(trl.GRPOTrainer, method)).__code__
        if missing := names - set(code.co_names):
            raise RuntimeError(
                f"trl {trl.__version__} no longer reads {sorted(missing)} in GRPOTrainer.{method}, "
                "which the importance-sampling correction of remote rollouts needs; train without "
                "it: `ProRLRollout(importance_sampling='off')`"
            )


def async_sample_type() -> Any:
    """Returns the type of AsyncGRPOTrainer's samples; raises `ImportError` for other versions."""
    check_version(SUPPORTED_ASYNC_TRL, "prorl_trl.async_rollouts")
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    return RolloutSample


def check_trainer(trainer: Any, sampling: Sampling) -> None:
    """Raises `ValueError` for a trainer that would train wrongly."""
    if trainer.tools:
        raise ValueError(
            "GRPOTrainer(tools=...) runs tools in the trainer; with ProRLRollout they run in the "
            "service's sandboxes: remove `tools`"
        )
    if trainer.use_vllm and trainer.vllm_mode != "server":
        raise ValueError(
            "use_vllm=True with vllm_mode='colocate' starts an engine inside the trainer, which "
            "the rollout service cannot use: set use_vllm=False, or vllm_mode='server'"
        )
    _check_temperature(trainer, sampling)


def check_tokenizer(tokenizer: Any, status: ServiceStatus) -> None:
    """Raises `ValueError` if the trainer's tokenizer is not that of the service's engines."""
    if problem := differing_tokenizer(tokenizer, status.tokenizer_digest):
        raise ValueError(problem)


def check_async_arguments(args: Any, sampling: Sampling) -> None:
    """Checks an `AsyncGRPOConfig`; raises `ValueError` for one that would train wrongly."""
    _check_temperature(args, sampling)
    if args.num_generations < 2:
        raise ValueError(
            "num_generations=1: one rollout has nothing to compare with, take 2 or more"
        )
    if args.token_budget is None:
        raise ValueError(
            "token_budget=None makes AsyncGRPOTrainer ask its own vLLM server: set "
            "AsyncGRPOConfig(token_budget=...) to the longest sequence the engine takes, or to 0"
        )
    _warn_about_sampling(args, sampling)


def _check_temperature(trainer: Any, sampling: Sampling) -> None:
    if sampling.temperature != trainer.temperature:
        raise ValueError(
            f"the service samples at temperature {sampling.temperature:g}, the trainer computes "
            f"its logprobs at {trainer.temperature:g}: make `sampling.temperature` and that of "
            "the trainer's configuration equal"
        )


def warn_about(trainer: Any, sampling: Sampling, deadline_s: float) -> None:
    """Issues a `UserWarning` for each setting that works but is rarely meant."""
    args = trainer.args
    if trainer.vllm_importance_sampling_mode == "sequence_mask":
        _warn(
            "vllm_importance_sampling_mode='sequence_mask' (TRL's default) drops long rollouts "
            "wholesale; for agents set it to 'token_truncate'"
        )
    _warn_about_sampling(args, sampling)
    if args.mask_truncated_completions:
        _warn(
            "mask_truncated_completions=True judges by the last token alone; leave it off: "
            "ProRLRollout(overlong='mask') uses the reason the service gives"
        )
    if trainer.accelerator.num_processes > 1 and args.ddp_timeout <= deadline_s:
        _warn(
            f"ddp_timeout={args.ddp_timeout} s is not above deadline_s={deadline_s:g} s: processes "
            "that wait for the rollouts would be killed first"
        )


def warn_about_rewards(trainer: Any, own: Sequence[Any]) -> None:
    """Warns of reward functions that dynamic sampling misleads: it changes a step's prompts."""
    if any(function not in own for function in trainer.reward_funcs):
        _warn(
            "dynamic_sampling trains on other prompts than the step's own, so that dataset columns "
            "do not belong to the completions: let other reward functions use the `prorl_` "
            "columns only"
        )


def _warn_about_sampling(args: Any, sampling: Sampling) -> None:
    if sampling.top_p != 1 or sampling.top_k > 0:
        _warn("top_p < 1 or top_k > 0 bias importance ratios by the probability mass they cut off")
    if ignored := _ignored(args):
        _warn(f"{', '.join(ignored)}: not sent to the service; see the option `sampling`")


def _ignored(args: Any) -> list[str]:
    neutral = {
        "top_p": (1.0,),
        "top_k": (0, -1, None),
        "min_p": (None, 0),
        "repetition_penalty": (1,),
    }
    return [
        f"{name}={getattr(args, name)}"
        for name, values in neutral.items()
        if getattr(args, name) not in values
    ]


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=2)
