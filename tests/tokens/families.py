"""Models of other families: their published chat templates, with the tokens that these print.

Their vocabularies are not available here: each tokenizer knows all bytes, and each special token of
its template as one id.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.formats import ToolCall
from prorl_service.tokens.model_files import ModelFiles
from prorl_service.tokens.probe import assistant, user
from recipes.smollm.model import TEMPLATE as SMOLLM2
from tests.tokens.templates import of_llama_cpp, of_trl


@dataclass(frozen=True)
class Family:
    name: str
    template: Callable[[], str]
    format: str
    """Name of the format of the model's calls."""
    ends: tuple[str, ...]
    """EOS tokens from its generation_config.json."""
    tokens: tuple[str, ...]
    """Other special tokens that the template prints."""
    bos: str | None = None
    one_call: bool = False
    """Limit of the template to one call per reply."""
    shows_tools: bool = True


def _trl(name: str, title: str, form: str, *rest: tuple[str, ...], **options: object) -> Family:
    return Family(title, partial(of_trl, name), form, *rest, **options)  # type: ignore[arg-type]


def _llama_cpp(
    name: str, title: str, form: str, *rest: tuple[str, ...], **options: object
) -> Family:
    return Family(title, partial(of_llama_cpp, name), form, *rest, **options)  # type: ignore[arg-type]


_CHATML = (("<|im_end|>", "<|endoftext|>"), ("<|im_start|>",))
_LLAMA = (
    ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
)
_GLM = (
    ("<|endoftext|>", "<|user|>", "<|observation|>"),
    ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>"),
)
_DEEPSEEK = (
    ("<｜end▁of▁sentence｜>",),
    (
        *("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁sep｜>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
        *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ),
)
_GEMMA = (
    ("<eos>", "<turn|>", "<|tool_response>"),
    (
        *("<bos>", "<|turn>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>"),
        *("<tool_response|>", '<|"|>', "<|channel>", "<channel|>", "<|think|>"),
    ),
)
_KIMI = (
    ("<|im_end|>", "[EOS]"),
    (
        *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"),
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
)
_MISTRAL = (
    ("</s>",),
    (
        *("<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]"),
        *("[ARGS]", "[CALL_ID]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[THINK]", "[/THINK]"),
    ),
)
_HARMONY = (
    ("<|return|>", "<|endoftext|>", "<|call|>"),
    ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>"),
)
REFUSED = _llama_cpp("Kimi-K2-Thinking", "Kimi K2 Thinking", "kimi-k2", *_KIMI)
"""Family whose template changes a list to write calls, which transformers' Jinja also forbids."""
FAMILIES = [
    Family("SmolLM2", SMOLLM2.read_text, "hermes", *_CHATML),
    _trl("qwen2_5", "Qwen2.5", "hermes", *_CHATML),
    _trl("qwen3", "Qwen3", "hermes", *_CHATML),
    _trl("qwen3_instruct_2507", "Qwen3-2507", "hermes", *_CHATML),
    _llama_cpp("Qwen3-Coder", "Qwen3-Coder", "qwen3-coder", *_CHATML),
    _trl("qwen3_5_think", "Qwen3.5", "qwen3-coder", *_CHATML),
    _trl("qwen3_6", "Qwen3.6", "qwen3-coder", *_CHATML),
    _trl("qwen3_8", "Qwen3.8", "qwen3-coder", *_CHATML),
    _trl("nemotron_3_nano", "Nemotron 3", "qwen3-coder", *_CHATML),
    _trl("llama3_1", "Llama 3.1", "llama-3", *_LLAMA, bos="<|begin_of_text|>", one_call=True),
    _trl("llama3_2", "Llama 3.2", "llama-3", *_LLAMA, bos="<|begin_of_text|>", one_call=True),
    _llama_cpp(
        *("meta-llama-Llama-3.3-70B-Instruct", "Llama 3.3", "llama-3"),
        *_LLAMA,
        bos="<|begin_of_text|>",
        one_call=True,
    ),
    _trl("glm4moe", "GLM-4.5", "glm-4.5", *_GLM),
    _llama_cpp("GLM-4.6", "GLM-4.6", "glm-4.5", *_GLM),
    _llama_cpp("GLM-4.7-Flash", "GLM-4.7", "glm-4.5", *_GLM),
    _trl(
        *("deepseekv3", "DeepSeek V3", "deepseek-v3"),
        *_DEEPSEEK,
        bos="<｜begin▁of▁sentence｜>",
        shows_tools=False,
    ),
    _llama_cpp(
        *("deepseek-ai-DeepSeek-V3.1", "DeepSeek V3.1", "deepseek-v3.1"),
        *_DEEPSEEK,
        bos="<｜begin▁of▁sentence｜>",
        shows_tools=False,
    ),
    _llama_cpp("moonshotai-Kimi-K2", "Kimi K2", "kimi-k2", *_KIMI),
    _llama_cpp(
        *("MiniMax-M2", "MiniMax M2", "minimax-m2"),
        *(("[e~[",), ("]~!b[", "]~b]", "<minimax:tool_call>", "</minimax:tool_call>")),
    ),
    _llama_cpp(
        *("mistralai-Mistral-Nemo-Instruct-2407", "Mistral Nemo", "mistral"),
        *_MISTRAL,
        bos="<s>",
    ),
    _llama_cpp(
        *("unsloth-mistral-Devstral-Small-2507", "Devstral Small", "mistral"),
        *_MISTRAL,
        bos="<s>",
    ),
    _llama_cpp(
        *("mistralai-Ministral-3-14B-Reasoning-2512", "Ministral 3", "mistral"),
        *_MISTRAL,
        bos="<s>",
    ),
    _trl("gptoss", "gpt-oss", "harmony", *_HARMONY, one_call=True),
    _trl("gemma4", "Gemma 4", "gemma-4", *_GEMMA, bos="<bos>"),
    _trl("gemma4_v5", "Gemma 4, later", "gemma-4", *_GEMMA, bos="<bos>"),
]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "edit",
            "description": "Edits a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "What to write."},
                    "line": {"type": "integer", "description": "Where."},
                    "undo": {"type": "boolean", "description": "Whether to undo."},
                    "lines": {
                        "type": "array",
                        "items": {"type": "integer"},
                        "description": "Where else.",
                    },
                },
                "required": ["text"],
            },
        },
    }
]


@cache
def chat_of(family: Family) -> ChatFormat:
    tokenizer = byte_tokenizer([*family.ends, *family.tokens])
    ends = [id_ for end in family.ends if (id_ := tokenizer.token_to_id(end)) is not None]
    variables = {"bos_token": family.bos, "eos_token": family.ends[0]}
    return ChatFormat(ModelFiles(tokenizer, family.template(), variables, None, ends))


def byte_tokenizer(special: list[str]) -> Tokenizer:
    """Returns a tokenizer with a token for each byte and each special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in special])
    return tokenizer


def written(family: Family, calls: list[ToolCall]) -> tuple[str, list[int]]:
    """Returns what a model samples to make `calls`, as the template writes it, and the prompt."""
    chat = chat_of(family)
    prompt = chat._template.render([user()], TOOLS)
    whole = chat._template.render([user(), assistant(*calls)], TOOLS, generation=False)
    if not whole.startswith(prompt):  # a prompt that begins reasoning, which the history lacks
        prompt = prompt[: prompt.rindex("<think>")]
        assert whole.startswith(prompt)
    rest = whole[len(prompt) :]
    end = chat._ends.search(rest)
    return rest[: end.start() if end else None], chat.encode(prompt)
