"""Effects of each setting of TRL's trainers when the service makes the rollouts.

`settings.toml` has the class of each. `read`: its value reaches the service, or decides what the
plug-in does. `harmless`: it changes neither prompts nor sampling, or concerns an engine of TRL's
that does not run. `refused`: it would change what is sampled, and the service cannot do it.
`warned`: it works, but not as one expects. Tests compare the tables with every supported release.
"""

import dataclasses
import inspect
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Literal

import trl

from prorl_service.schemas import Sampling

Class = Literal["read", "harmless", "refused", "warned", "unclassified"]
_TABLES = tomllib.loads((files("prorl_trl") / "settings.toml").read_text(encoding="utf-8"))
FIELDS: Mapping[Class, set[str]] = {
    "read": {*_TABLES["read"].split()},
    "harmless": {*_TABLES["harmless"].split()},
    "refused": {*_TABLES["refused"]},
    "warned": {*_TABLES["warned"]},
}
"""Names of the fields of each class."""
_NO_EQUAL = "the service's engines are not asked for it: remove it"


def class_of(name: str) -> Class:
    """Returns the class of a field of a trainer's configuration."""
    found = [label for label, names in FIELDS.items() if name in names]
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
        classes = _TABLES["arguments"][one.__name__].items()
        known: dict[str, Class] = {name: label for label, text in classes for name in text.split()}
        names = list(inspect.signature(one.__init__).parameters)[1:]
        settings[one.__name__] = {name: known.get(name, "unclassified") for name in names}
    return settings


def sampling_of(config: Any, given: Sampling | None) -> Sampling:
    """Returns `given`, completed by what the trainer's configuration asks for.

    Raises `ValueError` where they contradict each other, and for a setting without an equal.
    """
    kind = type(config).__name__
    for name, neutral in _TABLES["refused"].items():
        if (value := getattr(config, name, None)) is not None and value not in neutral:
            raise ValueError(f"{kind} has {name}={value!r}: {_NO_EQUAL}")
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
        elif value is not None and value not in _TABLES["neutral_options"].get(name, ()):
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


def warnings_of(config: Any) -> Iterator[str]:
    """Yields what a user should know of settings that work in another way than by themselves."""
    kind = type(config).__name__
    for name, about in _TABLES["warned"].items():
        if (value := getattr(config, name, None)) is not None and value not in about["neutral"]:
            yield f"{kind} has {name}={value!r}: {about['effect']}"
    for field in dataclasses.fields(config):
        if class_of(field.name) != "unclassified":
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if (value := getattr(config, field.name)) != default:
            yield (
                f"{kind} has {field.name}={value!r:.80}, a setting that prorl_trl does not know: "
                "the service's rollouts are made without it"
            )


_OF_THE_RESULT = ("_", "output_", "return_")
"""Beginnings of fields that say what a call of `generate` returns, or nothing."""


def warnings_of_model(generation_config: Any) -> Iterator[str]:
    """Yields settings of a model's generation configuration that TRL's own engines would obey."""
    if generation_config is None:
        return
    known = _TABLES["of_the_model"].split()
    for name, value in generation_config.to_diff_dict().items():
        if name not in known and not name.startswith(_OF_THE_RESULT) and value is not None:
            yield (
                f"the model's generation_config has {name}={value!r:.80}: the service's engines "
                "sample without it"
            )
