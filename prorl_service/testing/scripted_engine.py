"""An engine that plays scripts: real HTTP on loopback, without a model."""

import secrets
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from prorl_service.schemas import BackendSpec
from prorl_service.testing import byte_model
from prorl_service.testing.replies import Reply, token_ids
from prorl_service.testing.stubs import StubEngine
from prorl_service.tokens.chat import ChatFormat

CONTEXT_TOKENS = 1 << 20


class ScriptedEngine(StubEngine):
    """Gives each rollout the replies of its script, in order.

    Rollouts take turns with the scripts, by their index in the group. A call beyond the end of a
    script is refused, so that the rollout fails with that reason.
    """

    def __init__(
        self,
        model: Path,
        chat: ChatFormat,
        scripts: Sequence[Sequence[Reply]],
        tokenizer: str,
        context_tokens: int,
    ) -> None:
        """Raises `InvalidRequest` for a reply that the model cannot write."""
        super().__init__(model, lambda _: (), max_model_len=context_tokens)
        self.chat = chat
        self.api_key = secrets.token_hex(16)
        self.model_id = "scripted"
        self.prompts: defaultdict[str, list[list[int]]] = defaultdict(list)
        """Prompts of each rollout's calls, by its id."""
        self._tokenizer = tokenizer
        self._of_group: dict[str, list[list[tuple[list[int], bool]]]] = {}
        self._scripts = self._tokens(scripts)

    def give(self, group_id: str, scripts: Sequence[Sequence[Reply]]) -> None:
        """Has the rollouts of a group take turns with other scripts. Raises `InvalidRequest`."""
        self._of_group[group_id] = self._tokens(scripts)

    def _tokens(self, scripts: Sequence[Sequence[Reply]]) -> list[list[tuple[list[int], bool]]]:
        return [[token_ids(one, self.chat) for one in script] for script in scripts]

    @property
    def spec(self) -> BackendSpec:
        return BackendSpec(url=self.url, tokenizer=self._tokenizer, api_key=self.api_key)

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        prompts, script = self.prompts[session_id], self._script(session_id)
        if len(prompts) == len(script):
            count = f"{len(script)} {'reply' if len(script) == 1 else 'replies'}"
            raise ValueError(f"the agent asks for another reply after {count}: add one")
        prompts.append(prompt)
        return script[len(prompts) - 1]

    def unused_replies(self, rollout_id: str) -> int:
        return len(self._script(rollout_id)) - len(self.prompts[rollout_id])

    def _script(self, rollout_id: str) -> list[tuple[list[int], bool]]:
        group_id, _, index = rollout_id.rpartition(".")
        scripts = self._of_group.get(group_id, self._scripts)
        return scripts[int(index) % len(scripts)]


@asynccontextmanager
async def scripted_engine(
    scripts: Sequence[Sequence[Reply]],
    *,
    tokenizer: str | Path | None = None,
    reply_format: str | None = None,
    context_tokens: int = CONTEXT_TOKENS,
) -> AsyncIterator[ScriptedEngine]:
    """Runs a scripted engine. `tokenizer` is a model's directory or hub name; with None, tokens are
    bytes. Raises `InvalidRequest`."""
    with tempfile.TemporaryDirectory(prefix="prorl-bytes-") as directory:
        if tokenizer is None:
            byte_model.write(Path(directory))
        chat = ChatFormat.load(tokenizer or directory, reply_format)
        engine = ScriptedEngine(
            Path(directory), chat, scripts, str(tokenizer or directory), context_tokens
        )
        async with engine:
            yield engine
