"""What becomes of each setting of TRL's trainers when the service makes the rollouts.

`read`: its value reaches the service, or decides what the plug-in does. `harmless`: it changes
neither prompts nor sampling, or concerns an engine of TRL's that does not run. `refused`: it would
change what is sampled, and the service cannot do it. `warned`: it works, but not as one expects.
Tests compare the tables with every supported release.
"""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, Literal

import trl

from prorl_service.schemas import Sampling

Class = Literal["read", "harmless", "refused", "warned", "unclassified"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ = _names(
    """
    temperature top_p top_k generation_kwargs chat_template_kwargs num_generations
    num_generations_eval max_completion_length seed disable_tqdm ddp_timeout log_completions
    mask_truncated_completions use_vllm vllm_mode vllm_importance_sampling_mode
    vllm_importance_sampling_correction max_inflight_tasks max_staleness token_budget
    per_device_train_batch_size gradient_accumulation_steps
    """
)
HARMLESS = _names(
    """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adam_beta1
    adam_beta2 adam_epsilon auto_find_batch_size average_tokens_across_devices
    batch_eval_metrics bf16 bf16_full_eval data_seed dataloader_drop_last dataloader_in_order
    dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
    dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers
    ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph debug deepspeed do_eval
    do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay
    eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object fp16
    fp16_full_eval fsdp fsdp_config full_determinism gradient_checkpointing
    gradient_checkpointing_kwargs greater_is_better hub_always_push hub_model_id
    hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip include_for_metrics
    include_num_input_tokens_seen label_names label_smoothing_factor learning_rate
    length_column_name liger_kernel_config load_best_model_at_end local_rank log_level
    log_level_replica log_on_each_node logging_first_step logging_nan_inf_filter logging_steps
    logging_strategy lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps
    metric_for_best_model num_train_epochs optim optim_args optim_target_modules output_dir
    parallelism_config per_device_eval_batch_size prediction_loss_only project push_to_hub
    remove_unused_columns report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint run_name save_on_each_node save_only_model save_steps save_strategy
    save_total_limit skip_memory_metrics tf32 torch_compile torch_compile_backend
    torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id
    trackio_static_space_id train_sampling_strategy use_cache use_cpu use_liger_kernel
    warmup_steps weight_decay

    beta cast_lm_head_to_fp32 delta disable_dropout ds3_gather_for_generation dtype
    entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target epsilon
    epsilon_high generation_batch_size importance_sampling_level log_completions_hub_repo
    log_multimodal log_unique_prompts loss_type model_init_kwargs multi_objective_aggregation
    num_completions_to_print num_iterations off_policy_mask_threshold pad_to_multiple_of
    ref_model_mixup_alpha ref_model_sync_steps reward_weights router_aux_loss_coef
    sapo_temperature_neg sapo_temperature_pos scale_rewards shuffle_dataset
    steps_per_generation sync_ref_model top_entropy_quantile trust_remote_code
    use_adaptive_entropy use_bias_correction_kl vespo_k_neg vespo_k_pos vespo_lambda_neg
    vespo_lambda_pos vllm_importance_sampling_cap vllm_importance_sampling_clip_max
    vllm_importance_sampling_clip_min

    cache_implementation transformers_continuous_batching_config
    use_transformers_continuous_batching use_transformers_paged vllm_enable_sleep_mode
    vllm_gpu_memory_utilization vllm_group_port vllm_max_model_length vllm_model_impl
    vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
    vllm_tensor_parallel_size

    fork_threshold_tokens heartbeat_stale_after_s queue_maxsize request_timeout
    weight_sync_steps weight_sync_timeout
    """
)
_NO_EQUAL = "the service's engines are not asked for it: remove it"
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "min_p": ((None, 0), _NO_EQUAL),
    "repetition_penalty": ((None, 1), _NO_EQUAL),
    "vllm_structured_outputs_regex": ((None,), _NO_EQUAL),
}
"""Settings with their neutral values, and what to do about others."""
WARNED: dict[str, tuple[tuple[Any, ...], str]] = {
    "max_tool_calling_iterations": (
        (None,),
        "tools run in the service, so it has no effect: set `limits=Limits(max_turns=...)`",
    ),
    "neftune_noise_alpha": (
        (None, 0),
        "its noise is in the trainer's logprobs and not in those of the engines",
    ),
}
ARGUMENTS: dict[str, dict[str, Class]] = {
    "GRPOTrainer": {
        **dict.fromkeys(
            ["model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"],
            "read",
        ),
        **dict.fromkeys(["rollout_func", "peft_config", "quantization_config"], "read"),
        **dict.fromkeys(["reward_processing_classes", "callbacks", "optimizers"], "harmless"),
        **dict.fromkeys(["tools", "environment_factory"], "refused"),
    },
    "AsyncGRPOTrainer": {
        **dict.fromkeys(["model", "args", "peft_config", "rollout_worker"], "read"),
        **dict.fromkeys(["weight_transfer", "processing_class"], "read"),
        **dict.fromkeys(["train_dataset", "callbacks", "optimizers"], "harmless"),
        **dict.fromkeys(["reward_funcs", "tools", "environment_factory"], "warned"),
    },
}
"""Arguments of the trainers' constructors. The asynchronous one shows its worker none of those that
it leaves unused, so that the worker's log names them."""

_NEUTRAL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "do_sample": (True,),
}
"""Values in `generation_kwargs` that ask for nothing; None is another for each key."""
_OF_THE_MODEL = _names(
    """
    bos_token_id eos_token_id pad_token_id decoder_start_token_id temperature top_p top_k min_p
    repetition_penalty do_sample max_length max_new_tokens use_cache cache_implementation
    transformers_version trust_remote_code
    """
)
"""Names in a model's generation configuration that TRL reads, or replaces by its own settings."""


def class_of(name: str) -> Class:
    """Returns the class of a field of a trainer's configuration."""
    tables: dict[Class, Any] = {
        "read": READ,
        "harmless": HARMLESS,
        "refused": REFUSED,
        "warned": WARNED,
    }
    found = [label for label, table in tables.items() if name in table]
    return found[0] if len(found) == 1 else "unclassified"


def classified() -> dict[str, dict[str, Class]]:
    """Returns the class of each setting of the installed TRL's trainers: fields of their
    configurations and arguments of their constructors, by the name of the type."""
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    settings: dict[str, dict[str, Class]] = {
        one.__name__: {field.name: class_of(field.name) for field in dataclasses.fields(one)}
        for one in (trl.GRPOConfig, AsyncGRPOConfig)
    }
    for one in (trl.GRPOTrainer, AsyncGRPOTrainer):
        known = ARGUMENTS[one.__name__]
        names = list(inspect.signature(one.__init__).parameters)[1:]
        settings[one.__name__] = {name: known.get(name, "unclassified") for name in names}
    return settings


def sampling_of(config: Any, given: Sampling | None) -> Sampling:
    """Returns `given`, completed by what the trainer's configuration asks for.

    Raises `ValueError` where they contradict each other, and for a setting without an equal.
    """
    _refuse(config)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if given is not None:
        values = {name: getattr(given, name) for name in given.model_fields_set}
        sources = dict.fromkeys(values, "sampling")
    for name, value, source in _asked(config):
        if values.setdefault(name, value) != value:
            raise ValueError(
                f"{sources[name]} has {name}={values[name]!r}, {source} has {value!r}: the service "
                "samples with one, and the trainer computes its logprobs at its own temperature; "
                "make them equal"
            )
        sources.setdefault(name, source)
    return Sampling(**values)


def _asked(config: Any) -> Iterator[tuple[str, Any, str]]:
    """Yields field of `Sampling`, value and source. Raises `ValueError`."""
    kind = type(config).__name__
    yield "temperature", config.temperature, f"{kind}.temperature"
    if getattr(config, "top_p", 1) != 1:
        yield "top_p", config.top_p, f"{kind}.top_p"
    if (top_k := getattr(config, "top_k", 0)) not in (None, 0, -1):
        yield "top_k", top_k, f"{kind}.top_k"
    for name, value in (getattr(config, "generation_kwargs", None) or {}).items():
        if name in ("temperature", "top_p", "top_k", "seed") and value is not None:
            yield name, 0 if (name, value) == ("top_k", -1) else value, "generation_kwargs"
        elif value is not None and value not in _NEUTRAL_OPTIONS.get(name, ()):
            raise ValueError(f"generation_kwargs has {name}={value!r}: {_NO_EQUAL}")
    for name, value in (config.chat_template_kwargs or {}).items():
        if name != "enable_thinking" or not isinstance(value, bool | None):
            raise ValueError(
                f"chat_template_kwargs has {name}={value!r}: the service renders prompts, with "
                "the variable enable_thinking (true or false) alone: remove it, or set it in the "
                "chat template of the model that the engines serve"
            )
        if value is not None:
            yield "thinking", value, "chat_template_kwargs (enable_thinking)"


def _refuse(config: Any) -> None:
    for name, (neutral, cure) in REFUSED.items():
        if (value := getattr(config, name, None)) is not None and value not in neutral:
            raise ValueError(f"{type(config).__name__} has {name}={value!r}: {cure}")


def warnings_of(config: Any) -> Iterator[str]:
    """Yields what a user should know of settings that work in another way than by themselves."""
    kind = type(config).__name__
    for name, (neutral, effect) in WARNED.items():
        if (value := getattr(config, name, None)) is not None and value not in neutral:
            yield f"{kind} has {name}={value!r}: {effect}"
    unknown = [
        field for field in dataclasses.fields(config) if class_of(field.name) == "unclassified"
    ]
    for field in unknown:
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if (value := getattr(config, field.name)) != default:
            yield (
                f"{kind} has {field.name}={value!r:.80}, a setting that prorl_trl does not know: "
                "the service's rollouts are made without it"
            )


def warnings_of_model(generation_config: Any) -> Iterator[str]:
    """Yields settings of a model's generation configuration that TRL's own engines would obey."""
    if generation_config is None:
        return
    for name, value in generation_config.to_diff_dict().items():
        if name not in _OF_THE_MODEL and not name.startswith("_") and value is not None:
            yield (
                f"the model's generation_config has {name}={value!r:.80}: the service's engines "
                "sample without it"
            )
