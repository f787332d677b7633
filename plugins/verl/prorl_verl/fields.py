"""What becomes of each field of VeRL's configuration when rollouts are the service's.

A name stands for the field and for all below it; the longest name that fits decides. Fields that
no name fits are of a newer VeRL, or misspelt. Pure, except for `fields_of_verl`: imports no VeRL.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf

Kind = Literal["read", "harmless", "refused", "warned"]
"""It means what it means in VeRL; nothing reads it; it ends the command, or is warned about, if it
is not neutral."""

_ROLLOUT = "actor_rollout_ref.rollout"
_TURNS = "turns and tools are the agent's: see prorl.agent and prorl.limits"
_TOOLS = "tools belong to the service's agents: see docs/tools.md"
_TRACES = "log rollouts at the service, or set trainer.rollout_data_dir"
_SCORES = "the service scores; VeRL's way is reward.custom_reward_function.path"
_LEGACY = "VeRL 0.9 does not read it either: set reward."
_NO_SKIP = "a rollout of the service is never skipped: leave it off"
_NO_ROUTES = "rollouts of the service carry no expert routing decisions: leave it off"
_DRAWN = "a sampler of the service draws the groups: see prorl.dynamic_sampling"

_NAMES: dict[Literal["read", "harmless"], dict[str, str]] = {
    "read": {
        "": "prorl model_engine critic global_profiler transfer_queue ray_kwargs",
        "actor_rollout_ref": "actor ref hybrid_engine nccl_timeout",
        _ROLLOUT: "name mode nnodes n_gpus_per_node temperature top_k top_p n seed prompt_length "
        "response_length dtype gpu_memory_utilization enforce_eager cudagraph_capture_sizes "
        "free_cache_engine tensor_model_parallel_size data_parallel_size expert_parallel_size "
        "pipeline_model_parallel_size max_num_batched_tokens max_model_len max_num_seqs "
        "enable_chunked_prefill enable_prefix_caching logprobs_mode load_format layered_summon "
        "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz "
        "log_prob_max_token_len_per_gpu disable_log_stats multi_stage_wake_up engine_kwargs "
        "val_kwargs.n val_kwargs.temperature val_kwargs.top_k val_kwargs.top_p router_config_path "
        "calculate_log_probs agent.num_workers agent.agent_loop_manager_class checkpoint_engine "
        "skip_tokenizer_init profiler prometheus quantization quantization_config_file mtp qat "
        "disaggregation custom",
        "actor_rollout_ref.model": "path hf_config_path tokenizer_path use_shm trust_remote_code "
        "external_lib override_config enable_gradient_checkpointing enable_activation_offload "
        "use_remove_padding lora_rank lora_alpha target_modules exclude_modules lora_adapter_path "
        "use_liger use_fused_kernels fused_kernel_options tiled_mlp mtp lora",
        "data": "train_files val_files train_max_samples val_max_samples prompt_key use_shm "
        "max_prompt_length max_response_length train_batch_size gen_batch_size val_batch_size "
        "shuffle seed validation_shuffle dataloader_num_workers filter_overlong_prompts "
        "filter_overlong_prompts_workers trust_remote_code custom_cls apply_chat_template_kwargs "
        "sampler datagen",
        "reward": "num_workers custom_reward_function reward_manager reward_kwargs",
        "algorithm": "rollout_correction gamma lam adv_estimator norm_adv_by_std_in_grpo "
        "filter_groups.enable filter_groups.metric use_kl_in_reward kl_penalty kl_ctrl use_pf_ppo "
        "pf_ppo",
        "trainer": "balance_batch total_epochs total_training_steps project_name experiment_name "
        "logger log_val_generations rollout_data_dir validation_data_dir nnodes n_gpus_per_node "
        "save_freq esi_redundant_time resume_mode resume_from_path checkpoint_callback_class "
        "val_before_train val_only test_freq critic_warmup default_hdfs_dir default_local_dir "
        "del_local_ckpt_after_load max_actor_ckpt_to_keep max_critic_ckpt_to_keep device "
        "ray_wait_register_center_timeout v1.trainer_mode v1.sync v1.colocate_async "
        "v1.separate_async v1.sampler.sync_refill_failed_groups v1.sampler.custom_sampler",
    },
    "harmless": {
        _ROLLOUT: "do_sample val_kwargs.do_sample over_sample_rate agent.custom_async_server trace",
        "data": "tokenizer reward_fn_key return_raw_input_ids return_raw_chat return_full_prompt "
        "return_multi_modal_inputs image_patch_size image_key video_key audio_key",
        "": "distillation skip.rollout skip.rollout_tq skip.async_rollout reward.reward_model "
        "reward.sandbox_fusion",
    },
}

REFUSED: dict[str, tuple[Any, str]] = {
    f"{_ROLLOUT}.multi_turn.enable": (False, _TURNS),
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": (None, _TURNS),
    f"{_ROLLOUT}.multi_turn.max_user_turns": (None, _TURNS),
    f"{_ROLLOUT}.multi_turn.num_repeat_rollouts": (None, f"set {_ROLLOUT}.n"),
    f"{_ROLLOUT}.multi_turn.tool_config_path": (None, _TOOLS),
    f"{_ROLLOUT}.multi_turn.function_tool_path": (None, _TOOLS),
    "data.tool_config_path": (None, _TOOLS),
    "data.function_tool_path": (None, _TOOLS),
    f"{_ROLLOUT}.agent.default_agent_loop": ("single_turn_agent", "set prorl.agent"),
    f"{_ROLLOUT}.agent.agent_loop_config_path": (None, "set prorl.agent"),
    f"{_ROLLOUT}.enable_rollout_routing_replay": (False, _NO_ROUTES),
    f"{_ROLLOUT}.full_determinism": (
        False,
        "rollouts of the service end in any order, so a run cannot be repeated: leave it off",
    ),
    f"{_ROLLOUT}.ignore_eos": (False, "an end token ends a turn of the service: leave it off"),
    f"{_ROLLOUT}.trace.backend": (None, _TRACES),
    "actor_rollout_ref.model.custom_chat_template": (
        None,
        "save the tokenizer with this template, where model.path or prorl.tokenizer names it",
    ),
    "distillation.enabled": (False, "rollouts of the service carry no logprobs of a teacher"),
    "trainer.use_v1": (True, "the legacy trainer sees no groups: use V1, which is VeRL's default"),
    "skip.rollout.enable": (False, _NO_SKIP),
    "skip.rollout_tq.enable": (False, _NO_SKIP),
    "skip.async_rollout.enable": (False, _NO_SKIP),
    "reward.reward_model.enable": (
        False,
        "the service has scored the rollouts: score in an agent of the service",
    ),
    "reward.sandbox_fusion.url": (None, _SCORES),
    "sandbox_fusion.url": (None, f"{_LEGACY}sandbox_fusion.url"),
    "custom_reward_function.path": (None, f"{_LEGACY}custom_reward_function.path"),
    "reward_model.reward_manager": (None, f"{_LEGACY}reward_manager.name"),
    "reward_model.enable": (None, f"{_LEGACY}reward_model.enable"),
}
"""Neutral value of each setting, and what to set instead of another value."""

WARNED: dict[str, tuple[Any, str]] = {
    f"{_ROLLOUT}.multi_turn.max_parallel_calls": (1, _TURNS),
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": (256, _TOOLS),
    f"{_ROLLOUT}.multi_turn.tool_response_truncate_side": ("middle", _TOOLS),
    f"{_ROLLOUT}.multi_turn.use_inference_chat_template": (False, _TURNS),
    f"{_ROLLOUT}.multi_turn.tokenization_sanity_check_mode": ("strict", _TURNS),
    f"{_ROLLOUT}.multi_turn.format": ("hermes", "start the service with --reply-format"),
    f"{_ROLLOUT}.moe_load_balance_metrics_interval": (0, _NO_ROUTES),
    f"{_ROLLOUT}.scheduling_policy": ("fcfs", "calls of the service have no priorities"),
    "data.truncation": ("error", "prompts are not cut: set data.filter_overlong_prompts"),
    "data.mm_processor_kwargs": ({}, "rollouts of the service are text only"),
    "sandbox_fusion": (None, f"{_LEGACY}sandbox_fusion"),
    "custom_reward_function": (None, f"{_LEGACY}custom_reward_function"),
    "reward_model": (None, f"{_LEGACY}reward_model"),
}

WARNED_IF_DRAWN: dict[str, tuple[Any, str]] = {
    "algorithm.filter_groups.max_num_gen_batches": (0, _DRAWN),
    "algorithm.filter_groups.max_inflight_gen_batches": (1, _DRAWN),
    "trainer.v1.sampler.max_off_policy_threshold": (8, _DRAWN),
    "trainer.v1.sampler.max_off_policy_strategy": ("drop", _DRAWN),
    "trainer.v1.sampler.sampler_kwargs": ({}, _DRAWN),
}
"""Settings of VeRL's own samplers."""

KINDS: dict[str, Kind] = {
    **{
        f"{node}.{name}".lstrip("."): kind
        for kind, nodes in _NAMES.items()
        for node, names in nodes.items()
        for name in names.split()
    },
    **dict.fromkeys(REFUSED, "refused"),
    **dict.fromkeys([*WARNED, *WARNED_IF_DRAWN], "warned"),
}

ENGINES = ("dp", "megatron", "torchtitan", "veomni")
"""Values of VeRL's `model_engine`."""


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the name and value of each field, except for Hydra's `_target_`."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif key != "_target_":
            yield f"{prefix}{key}", value


def entry_of(name: str) -> str | None:
    """Returns the name in `KINDS` that decides on a field; None for an unknown field."""
    while name and name not in KINDS:
        name = name.rpartition(".")[0]
    return name or None


def kinds_of(config: Mapping[str, Any]) -> dict[str, Kind | None]:
    """Returns what becomes of each field of a configuration; None for an unknown field."""
    entries = {name: entry_of(name) for name, _ in leaves(config)}
    return {name: KINDS[entry] if entry else None for name, entry in entries.items()}


def fields_of_verl() -> dict[str, Kind | None]:
    """Returns what becomes of each field that VeRL's command has, with any of its `ENGINES`."""
    from hydra import compose, initialize_config_dir

    found: dict[str, Kind | None] = {}
    with initialize_config_dir(str(_configurations()), version_base=None):
        for engine in ENGINES:
            composed = compose("ppo_trainer", [f"model_engine={engine}"])
            found |= kinds_of(OmegaConf.to_container(composed))
    return found


def contradictions(
    config: Mapping[str, Any], table: Mapping[str, tuple[Any, str]]
) -> Iterator[tuple[str, str]]:
    """Yields `name=value` of each field that `table` has another neutral value for, and its
    hint."""
    for name, value in leaves(config):
        entry = entry_of(name)
        neutral, hint = table.get(entry or "", (value, ""))
        if value not in (None, neutral):
            yield f"{name}={value}", hint


def unknown(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields `name=value` of each unknown field that is not as VeRL has it."""
    strange = [(name, value) for name, value in leaves(config) if entry_of(name) is None]
    if not strange:
        return
    defaults = OmegaConf.load(_configurations() / "_generated_ppo_trainer.yaml")
    for name, value in strange:
        if value != OmegaConf.select(defaults, name):
            yield f"{name}={value}"


def _configurations() -> Path:
    return Path(str(distribution("verl").locate_file("verl/trainer/config")))
