"""Checks of options, and of a trainer before its rollouts are made elsewhere; run once, at first
use.

The importance-sampling correction needs private attributes of TRL. They are looked for in TRL's own
code, so that a release that moves them is refused instead of training without correction.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import chain, starmap
from typing import Any, ParamSpec, TypeVar, get_type_hints

import trl
from accelerate.utils import get_int_from_env
from packaging.specifiers import SpecifierSet
from pydantic import TypeAdapter, ValidationError

from prorl_service import __version__
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.client.datasets import check_rows
from prorl_service.errors import ProRLError
from prorl_service.neighbours import neighbours
from prorl_service.schemas import Sampling, ServiceStatus
from prorl_service.schemas.tokenizer_digest import differing_tokenizer, text_digest
from prorl_trl import settings
from prorl_trl.convert import task_of

START_S = 10.0
"""Longest wait for the service's answer when a trainer's rollouts are set up."""
_RANKS = ["RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"]
"""Variables in which launchers give a process its number."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
TRL = neighbours()["trl"]
DIVIDES_BY_MASK = SpecifierSet("<1.9").contains(trl.__version__)
"""True for a TRL in which a fully masked step turns the policy into NaN."""


class OtherVersion(ProRLError):
    """The service is of another version than this plug-in."""


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


def check_hooks(purpose: str, otherwise: str = "") -> None:
    """Raises `RuntimeError` unless methods of GRPOTrainer read the names that the purpose needs."""
    for name, names in TRL.reads[purpose].items():
        method = name.rpartition(".")[2]
        code = inspect.unwrap(getattr(trl.GRPOTrainer, method)).__code__
        if missing := sorted({*names} - {*code.co_names}):
            raise RuntimeError(
                f"trl {trl.__version__} no longer reads {missing} in GRPOTrainer.{method}, "
                f"which is needed to {purpose}: install trl{TRL.tested}{otherwise}"
            )


def async_sample_type() -> Any:
    """Returns the type of AsyncGRPOTrainer's samples. Raises `UntestedRelease`."""
    TRL.check("prorl_trl.async_rollouts", part="AsyncGRPOTrainer")
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    return RolloutSample


def check_service(url: str, token: str | None) -> None:
    """Asks the service on the main process, which alone has to reach it.

    Raises `ServiceCallError` if it does not answer or refuses the token, and `OtherVersion`.
    """
    if get_int_from_env(_RANKS, 0):
        return
    try:
        with RolloutClient(url, token=token, retry_s=START_S) as client:
            status = client.status()
    except ServiceCallError as error:
        raise error.with_traceback(None) from None
    if status.version != __version__:
        raise OtherVersion(
            f"the service at {url} is prorl-service {status.version}, the trainer has "
            f"{__version__}: install one version on both sides"
        )


def check_trainer(trainer: Any, sampling: Sampling) -> None:
    """Raises `ValueError` for a trainer that would train wrongly."""
    environments = getattr(trainer, "environment_factories", trainer.environments)
    if trainer.tools or environments:
        raise ValueError(
            "GRPOTrainer(tools=..., environment_factory=...) runs tools in the trainer; with "
            "ProRLRollout they run in the service's sandboxes: remove `tools` and "
            "`environment_factory`"
        )
    if trainer.use_vllm and trainer.vllm_mode != "server":
        raise ValueError(
            "use_vllm=True with vllm_mode='colocate' starts an engine inside the trainer, which "
            "the rollout service cannot use: set use_vllm=False, or vllm_mode='server'"
        )
    if sampling.temperature != trainer.temperature:
        raise ValueError(
            f"the service samples at temperature {sampling.temperature:g}, the trainer computes "
            f"its logprobs at {trainer.temperature:g}: make `sampling.temperature` and that of "
            "the trainer's configuration equal"
        )


def check_tokenizer(tokenizer: Any, status: ServiceStatus) -> None:
    """Raises `ValueError` if the trainer's tokenizer is not that of the service's engines. Warns if
    its chat template is another: prompts are made with the engines'."""
    if problem := differing_tokenizer(tokenizer, status.tokenizer_digest):
        raise ValueError(problem)
    template, of_service = getattr(tokenizer, "chat_template", None), status.chat_template_digest
    if isinstance(template, str) and of_service not in (None, text_digest(template)):
        _warn(
            "the trainer's tokenizer has another chat template than the engines' model, by which "
            "the service makes prompts: put it into the directory of that model too"
        )


def add_ends(trainer: Any, end_ids: Sequence[int]) -> None:
    """Adds tokens to those by which TRL tells complete rollouts from truncated ones.

    TRL before 1.14.2 knows the EOS token of its tokenizer only.
    """
    known = getattr(trainer, "eos_token_ids", None)
    if known is not None:
        trainer.eos_token_ids = list(dict.fromkeys([*known, *end_ids]))


def complete_ends(trainer: Any) -> set[int] | None:
    """Returns the last tokens of rollouts that TRL takes for complete; None if it does not ask."""
    if not trainer.mask_truncated_completions:
        return None
    tokenizer = trainer._tokenizer
    ends = getattr(trainer, "eos_token_ids", [tokenizer.eos_token_id])
    return {*ends, tokenizer.pad_token_id}


def check_async_arguments(args: Any, sampling: Sampling) -> None:
    """Checks an `AsyncGRPOConfig`; raises `ValueError` for one that would train wrongly."""
    if args.num_generations < 2:
        raise ValueError(
            "num_generations=1: one rollout has nothing to compare with, take 2 or more"
        )
    if getattr(args, "token_budget", 0) is None:
        raise ValueError(
            "token_budget=None makes AsyncGRPOTrainer ask its own vLLM server: set "
            "AsyncGRPOConfig(token_budget=...) to the longest sequence the engine takes, or to 0"
        )
    for message in settings.warnings_of(args):
        _warn(message)
    _warn_about_sampling(sampling)


def warn_about(trainer: Any, sampling: Sampling, deadline_s: float) -> None:
    """Issues a `UserWarning` for each setting that works but is rarely meant."""
    args = trainer.args
    if trainer.vllm_importance_sampling_mode == "sequence_mask":
        _warn(
            "vllm_importance_sampling_mode='sequence_mask' (TRL's default) drops long rollouts "
            "wholesale; for agents set it to 'token_truncate'"
        )
    model = trainer.accelerator.unwrap_model(trainer.model)
    messages = settings.warnings_of_model(getattr(model, "generation_config", None))
    for message in (*settings.warnings_of(args), *messages):
        _warn(message)
    _warn_about_sampling(sampling)
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


def _warn_about_sampling(sampling: Sampling) -> None:
    if sampling.top_p != 1 or sampling.top_k > 0:
        _warn("top_p < 1 or top_k > 0 bias importance ratios by the probability mass they cut off")


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=2)


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Makes `function` raise `ValueError` for an argument that its annotation excludes: a misspelt
    option would train wrongly in silence. The message lists what is allowed."""
    signature = inspect.signature(function)

    @wraps(function)
    def check_and_call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        given = signature.bind(*args, **kwargs)
        hints = get_type_hints(function, include_extras=True)
        for name, value in given.arguments.items():
            if name in hints:
                given.arguments[name] = _validated(name, value, hints[name])
        return function(*given.args, **given.kwargs)

    return check_and_call


def _validated(name: str, value: Any, annotation: Any) -> Any:
    try:
        return TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError as error:
        problems = dict.fromkeys(problem["msg"] for problem in error.errors())
        raise ValueError(f"{name}={value!r}: {'; '.join(problems)}") from None
