"""Judges: language models that say whether two answers to a question are the same, or whether an
answer meets criteria.

The operator chooses the models, behind any OpenAI-compatible endpoint. A judge that fails gives no
verdict: that is raised, and never a reward of 0. Of several judges, all must give theirs.

The policy wrote the answer that is judged, and is rewarded if it talks the judge round. So the
answer is bounded, quoted between lines that it cannot know, and said to be data; verdicts are read
from the judge's last lines only. docs/math_code_science.md names the remaining risks.
"""

import asyncio
import re
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Self, TypeVar
from weakref import WeakValueDictionary

from prorl_service.errors import EvaluatorError
from prorl_service.net.chat_model import ChatModel, ChatModelConfig, Messages, NoReply
from prorl_service.rewards.judge import rubric
from prorl_service.rewards.judge.cache import JudgeCache, Judgement, key_of
from prorl_service.rewards.judge.rubric import Criterion, Met
from prorl_service.utils.tasks import cancel_all

T = TypeVar("T")

KEY_VARIABLE = "PRORL_JUDGE_KEY"
BUDGET_S = 240.0
"""Budget of one judgement, waiting included: below EVAL's, so that the judge is blamed."""
MAX_TOKENS = 4096
"""Maximum length of a reply: room to think before the verdict."""
MAX_ANSWER_CHARS = 1000
"""Maximum length of an answer to compare. A longer one is wrong without being judged: it may
argue."""
MAX_GRADED_CHARS = 32_000
"""Maximum length of an answer to grade. A longer one meets no criterion."""

_VERDICT = re.compile(r"VERDICT: (SAME|DIFFERENT)")
PROMPTS: dict[str, str] = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text())


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    url: str
    """Base URL with the version: `https://host/v1`."""
    models: Sequence[str]
    """Names of the judges' models there."""
    key: str | None = field(default=None, repr=False)
    cache: Path | None = None
    """SQLite file; None keeps verdicts in memory only."""
    max_calls: int = 16
    """Maximum number of calls in flight; more wait."""
    budget: int | None = None
    """Maximum number of calls in all; None: no limit."""

    def __post_init__(self) -> None:
        """Raises `ProRLError`."""
        self.endpoint()

    def endpoint(self) -> ChatModelConfig:
        return ChatModelConfig(
            "judge", self.url, self.models, self.key, self.max_calls, self.budget
        )


class Judge:
    """The judges, shared by all rollouts. Use as an async context manager."""

    def __init__(self, config: JudgeConfig) -> None:
        """Raises `ProRLError` for a cache that cannot be opened."""
        self.models = config.models
        self.endpoint = ChatModel(config.endpoint())
        self.remembered = 0
        """Number of verdicts that were in the cache."""
        self._cache = JudgeCache(config.cache)
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._resources.enter_async_context(self.endpoint)
        self._resources.callback(self._cache.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()

    async def compare(self, *, question: str, gold: str, answer: str) -> Judgement:
        """Returns `SAME` only if all judges say so. Raises `EvaluatorError`, as
        `ChatModel.ask`."""
        if len(answer) > MAX_ANSWER_CHARS:
            return Judgement.DIFFERENT
        question, gold, answer = map(_writable, (question, gold, answer))
        found = await self._of_each(lambda model: self._compare(model, question, gold, answer))
        others = [one for one in found if one is not Judgement.SAME]
        if not others:
            return Judgement.SAME
        return Judgement.DIFFERENT if Judgement.DIFFERENT in others else Judgement.DISAGREED

    async def grade(
        self, criteria: Sequence[Criterion], *, question: str, answer: str, reference: str = ""
    ) -> dict[str, Met]:
        """Returns, by judge, whether the answer meets each criterion. `reference`: a good answer,
        or facts. Raises `EvaluatorError`, as `ChatModel.ask`."""
        if len(answer) > MAX_GRADED_CHARS:
            return dict.fromkeys(self.models, (False,) * len(criteria))
        texts = tuple(map(_writable, (question, answer, reference)))
        found = await self._of_each(lambda model: self._grade(model, criteria, texts))
        return dict(zip(self.models, found, strict=True))

    async def _of_each(self, ask: Callable[[str], Awaitable[T]]) -> list[T]:
        """Returns the verdict of each judge."""
        asking = [asyncio.ensure_future(ask(model)) for model in self.models]
        try:
            async with asyncio.timeout(BUDGET_S):
                return await asyncio.gather(*asking)
        except TimeoutError:
            raise EvaluatorError(
                f"the judge gave no verdict within {BUDGET_S:g} s", retryable=True
            ) from None
        finally:
            await cancel_all(asking)

    async def _compare(self, model: str, question: str, gold: str, answer: str) -> Judgement:
        key = key_of(model, PROMPTS["instructions"], question, gold, answer)
        ask = partial(self._both_ways, model, question, gold, answer)
        return Judgement(await self._cached(key, ask))

    async def _grade(
        self, model: str, criteria: Sequence[Criterion], texts: tuple[str, ...]
    ) -> Met:
        instructions, quoted = PROMPTS["rubric"], PROMPTS["quoted_rubric"]
        stated = _writable(rubric.numbered(criteria))
        question, answer, reference = texts

        def quote(code: str) -> str:
            return quoted.format(
                code=code, question=question, reference=reference, criteria=stated, answer=answer
            )

        async def ask() -> str:
            read = partial(rubric.read, count=len(criteria))
            return rubric.kept(await self._ask(model, instructions, quote, read))

        key = key_of(model, instructions, question, reference, stated, answer)
        return rubric.of_kept(await self._cached(key, ask))

    async def _cached(self, key: bytes, ask: Callable[[], Awaitable[str]]) -> str:
        # Siblings give equal answers at the same time: one asks, the others read its verdict.
        async with self._locks.setdefault(key, asyncio.Lock()):
            verdict = await self._cache.get(key)
            if verdict is not None:
                self.remembered += 1
                return verdict
            verdict = await ask()
            await self._cache.put(key, verdict)
            return verdict

    async def _both_ways(self, model: str, question: str, gold: str, answer: str) -> Judgement:
        if not await self._says_same(model, question, gold, answer):
            return Judgement.DIFFERENT  # whatever the other order would give
        if await self._says_same(model, question, answer, gold):
            return Judgement.SAME
        return Judgement.DISAGREED

    async def _says_same(self, model: str, question: str, first: str, second: str) -> bool:
        def quote(code: str) -> str:
            return PROMPTS["quoted"].format(
                code=code, question=question, first=first, second=second
            )

        return await self._ask(model, PROMPTS["instructions"], quote, _read_verdict)

    async def _ask(
        self, model: str, instructions: str, quote: Callable[[str], str], read: Callable[[str], T]
    ) -> T:
        """`instructions` hold `{code}`, and `quote` is given it: each attempt has a fresh code,
        which quoted text cannot know."""

        def messages() -> Messages:
            code = token_hex(8)
            return [
                {"role": "system", "content": instructions.format(code=code)},
                {"role": "user", "content": quote(code)},
            ]

        return await self.endpoint.ask(
            messages, read, max_tokens=MAX_TOKENS, budget_s=BUDGET_S, model=model
        )


def _writable(text: str) -> str:
    """Replaces half surrogate pairs, which JSON in an answer can spell and no request can hold."""
    return text.encode(errors="replace").decode()


def _read_verdict(reply: str) -> bool:
    """Reads the last line, which must hold the only verdict."""
    lines = [line.strip() for line in reply.strip().splitlines()]
    verdicts = [match[1] for match in map(_VERDICT.fullmatch, lines) if match]
    if len(verdicts) != 1 or not _VERDICT.fullmatch(lines[-1]):
        raise NoReply("its reply does not end with one verdict")
    return verdicts[0] == "SAME"
