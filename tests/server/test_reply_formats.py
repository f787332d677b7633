"""Models whose chat template has no tools, or whose replies are read as the operator says."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import InvalidRequest
from prorl_service.inference.pool import PoolConfig
from prorl_service.schemas import BackendSpec, Blame, Message, RolloutState
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.probe import TOOL
from tests.server.application import Settings, finished, group, serving

WITHOUT_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def tokenizer(tiny_model: Path, tmp_path: Path) -> str:
    """A model's directory with a template that shows no tools."""
    directory = Path(shutil.copytree(tiny_model, tmp_path / "without-tools"))
    (directory / "chat_template.jinja").write_text(WITHOUT_TOOLS)
    return str(directory)


@pytest.fixture(params=[None, "hermes"])
async def url(
    request: pytest.FixtureRequest, engine: StubEngine, tokenizer: str
) -> AsyncIterator[str]:
    settings = Settings(
        backends=(BackendSpec(url=engine.url, tokenizer=tokenizer),),
        sandbox="process",
        pool=PoolConfig(reply_format=request.param),
    )
    async with serving(settings) as address:
        yield address


@pytest.mark.processes
async def test_agents_with_tools_are_refused_unless_the_operator_names_a_format(
    client: AsyncRolloutClient, request: pytest.FixtureRequest
) -> None:
    if "hermes" in request.node.name:
        [rollout] = await finished(client, group())
        assert rollout.state is RolloutState.DONE
        return
    with pytest.raises(ServiceCallError, match="shows the model no tools") as refusal:
        await client.submit([group()])
    assert refusal.value.blame is Blame.TASK
    assert "prorl check-model" in str(refusal.value)


@pytest.mark.processes
async def test_agents_without_tools_run(client: AsyncRolloutClient) -> None:
    plain = group()
    plain.task.data["tools"] = []
    [rollout] = await finished(client, plain)
    assert rollout.state is RolloutState.DONE


def test_agents_with_tools_are_refused_if_replies_are_read_without_calls(
    tiny_model: Path,
) -> None:
    chat = ChatFormat.load(tiny_model, "plain")
    messages = [Message(role="user", content="Hi.")]
    with pytest.raises(InvalidRequest, match="read without calls"):
        chat.prompt_ids(messages, tools=[TOOL])
    assert chat.prompt_ids(messages)


async def test_an_unknown_format_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidRequest, match=r"no 'hermis'; take one of .*hermes"):
        async with serving(Settings(sandbox="process", pool=PoolConfig(reply_format="hermis"))):
            pass
