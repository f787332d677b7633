"""One forward pass over many sequences of any length, each with a cache of its own.

Sequences are packed one after the other, without padding: a prompt of 2000 tokens and 60 sequences
that need one token each make one batch of 2060 tokens. Only attention sees sequence borders, so it
is the one part of the model that is replaced. On CPU this is faster than the padded and the paged
attention of transformers, whose masks grow with the square of the batch.

Knows nothing of sampling, requests or time.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
)

from prorl_service.errors import BackendError
from prorl_service.inference.reference_engine import vision
from prorl_service.inference.reference_engine.kv import KVCache, KVLayout
from prorl_service.inference.reference_engine.vision import Sight, VisionTower


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens that come next in a sequence, and the cache of those before them."""

    cache: KVCache
    tokens: list[int]
    sight: Sight | None = None
    """The pictures of the sequence, if it has any."""

    @property
    def span(self) -> tuple[int, int]:
        return self.cache.length, self.cache.length + len(self.tokens)


_FOREIGN_OPTIONS = ("sliding_window", "softcap", "s_aux")
"""Attention options of some models that are not supported: ignoring them gives wrong logits."""

PARAMETERS_PER_THREAD = 50_000_000
"""A model with fewer has one thread."""


class PackedModel:
    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        """Loads a checkpoint from disk; raises `BackendError` if it cannot be served."""
        self.module = _load(directory, dtype)
        sees = self.module.config.model_type in vision.MODELS
        self.vision = VisionTower(self.module, directory) if sees else None
        config = self.module.config.get_text_config()
        try:
            self.kv_layout = _kv_layout(config, dtype)
            self.vocab_size: int = config.vocab_size
            self.max_positions: int = config.max_position_embeddings
        except AttributeError as error:
            raise _unsupported(f"no {error.name}") from error
        self.eos_token_ids = _eos_token_ids(self.module.generation_config)
        self._refuse_other_layers()

    def _refuse_other_layers(self) -> None:
        """Raises `BackendError` unless every layer keeps its state in the cache alone."""
        cache = KVCache(self.kv_layout, capacity=2)
        cache.data.fill_(torch.nan)
        self.forward([Chunk(cache, [0, 0])])
        if cache.data.isnan().any():
            raise _unsupported("layers other than attention")

    def suitable_threads(self) -> int:
        """Returns a number of CPU threads: work on a small model is too short to be shared out."""
        parameters: int = self.module.num_parameters()
        return min(1 + parameters // PARAMETERS_PER_THREAD, len(os.sched_getaffinity(0)))

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Extends each cache by its chunk. Returns fp32 logits [chunks, vocab] of last tokens."""
        lengths = torch.tensor([len(chunk.tokens) for chunk in chunks])
        output = self.module(
            **self._inputs(chunks),
            use_cache=False,
            logits_to_keep=lengths.cumsum(0) - 1,
            chunks=chunks,
        )
        for chunk in chunks:
            chunk.cache.length += len(chunk.tokens)
        logits: torch.Tensor = output.logits[0].float()
        return logits

    def _inputs(self, chunks: Sequence[Chunk]) -> dict[str, torch.Tensor]:
        spans = [chunk.span for chunk in chunks]
        if self.vision is None or all(chunk.sight is None for chunk in chunks):
            ids = [token for chunk in chunks for token in chunk.tokens]
            positions = [position for span in spans for position in range(*span)]
            return {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
        places = [
            torch.arange(*span).expand(3, -1) if one.sight is None else one.sight.positions(*span)
            for one, span in zip(chunks, spans, strict=True)
        ]
        embeds = [
            self.vision.embedded(
                torch.tensor(one.tokens), [] if one.sight is None else one.sight.parts(*span)
            )
            for one, span in zip(chunks, spans, strict=True)
        ]
        return {
            "inputs_embeds": torch.cat(embeds)[None],
            "position_ids": torch.cat(places, dim=1)[:, None],
        }

    def forget_features(self) -> None:
        """Forgets what was computed of pictures with the old weights."""
        if self.vision is not None:
            self.vision.forget()


def _load(directory: Path, dtype: torch.dtype) -> PreTrainedModel:
    if not (directory / "config.json").is_file():
        raise BackendError(
            f"{directory} holds no model: there is no config.json",
            hint="give a directory with config.json, *.safetensors and a tokenizer; hub names are "
            "for vLLM",
            retryable=False,
        )
    try:
        sees = AutoConfig.from_pretrained(directory).model_type in vision.MODELS
        kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        module, loading = kind.from_pretrained(
            directory,
            dtype=dtype,
            attn_implementation={"text_config": "packed", "vision_config": "sdpa"}
            if sees
            else "packed",
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BackendError(f"cannot load {directory}: {error}", retryable=False) from error
    if missing := sorted(loading["missing_keys"]):
        message = f"{directory} lacks {len(missing)} tensors, {missing[0]} among them"
        raise BackendError(message, retryable=False)
    served: PreTrainedModel = module.eval().requires_grad_(False)
    return served


def _kv_layout(config: Any, dtype: torch.dtype) -> KVLayout:
    heads = config.num_attention_heads
    return KVLayout(
        layers=config.num_hidden_layers,
        heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=dtype,
    )


def _eos_token_ids(config: GenerationConfig) -> frozenset[int]:
    eos = config.eos_token_id
    return frozenset([eos] if isinstance(eos, int) else eos or [])


def _packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    chunks: Sequence[Chunk],
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """query is [1, heads, tokens, head_dim]; the result [1, tokens, heads, head_dim]."""
    for name in _FOREIGN_OPTIONS:
        if options.get(name) is not None:
            raise _unsupported(name)
    lengths = [len(chunk.tokens) for chunk in chunks]
    queries = torch.split(query, lengths, dim=2)
    keys_values = torch.split(torch.stack((key[0], value[0])), lengths, dim=2)
    attended = [
        _attend(one, chunk.cache.extended(module.layer_idx, new), scaling)
        for chunk, one, new in zip(chunks, queries, keys_values, strict=True)
    ]
    return torch.cat(attended, dim=2).transpose(1, 2), None


def _attend(query: torch.Tensor, keys_values: torch.Tensor, scaling: float) -> torch.Tensor:
    """Attention of the last tokens of one sequence to all of them; [1, heads, tokens, head_dim]."""
    _, heads, tokens, head_dim = query.shape
    _, kv_heads, total, _ = keys_values.shape
    keys, values = keys_values[:1], keys_values[1:]
    if tokens == 1:
        # Heads of a group share their keys, so they can pose as positions without copying the keys.
        grouped = query.view(1, kv_heads, heads // kv_heads, head_dim)
        attended = scaled_dot_product_attention(grouped, keys, values, scale=scaling)
        return attended.view(1, heads, 1, head_dim)
    past = total - tokens
    mask = torch.ones(tokens, total, dtype=torch.bool).tril(past) if past else None
    return scaled_dot_product_attention(
        query, keys, values, mask, is_causal=not past, scale=scaling, enable_gqa=True
    )


def _unsupported(what: str) -> BackendError:
    return BackendError(
        f"the reference engine cannot serve a model with {what}",
        hint="serve it with vLLM",
        retryable=False,
    )


AttentionInterface.register("packed", _packed_attention)
