"""A tool of an installed package, from its entry point to a call by the model."""

import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from prorl_service.agents.registry import AgentRegistry
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import BackendSpec, Group, Message, RolloutState, Task
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tools.registry import ENTRY_POINT_GROUP, all_tools
from tests.docs.printed import blocks
from tests.installed import install
from tests.server.application import Settings, finished, serving

NAMES = ["bash", "ipython", "str_replace_editor", "submit", "view_image", "word_count"]
CALL = '<tool_call>\n{"name": "word_count", "arguments": {"path": "poem.txt"}}\n</tool_call>'
Install = Callable[[str], None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs the package of docs/tools.md, which offers a class of its module."""

    def made(offered: str) -> None:
        [offers] = [one for one in blocks("tools.md", "toml") if ENTRY_POINT_GROUP in one]
        table = tomllib.loads(offers)["project"]["entry-points"]
        assert table == {ENTRY_POINT_GROUP: {"word_count": "my_package:WordCount"}}
        entry = f"[{ENTRY_POINT_GROUP}]\nword_count = my_package:{offered}\n"
        [source] = [one for one in blocks("tools.md", "python") if "class WordCount:" in one]
        install(monkeypatch, tmp_path, module="my_package", source=source, offers=entry)
        all_tools.cache_clear()

    yield made
    sys.modules.pop("my_package", None)
    all_tools.cache_clear()


@pytest.fixture
async def client(
    package: Install, tiny_model: Path, chat: ChatFormat
) -> AsyncIterator[AsyncRolloutClient]:
    package("WordCount")

    def answer(prompt: list[int]) -> list[int]:
        said = chat.decode(prompt)
        text = "\\boxed{5}" if "5 words" in said else CALL
        return [*chat.encode(text), chat.end_of_turn_id]

    async with StubEngine(tiny_model, answer) as engine:
        settings = Settings(backends=(BackendSpec(url=engine.url),), sandbox="bubblewrap")
        async with serving(settings) as url, AsyncRolloutClient(url) as connected:
            yield connected


def group(*tools: str) -> Group:
    data = {"answer": "5", "tools": [*tools], "files": {"poem.txt": "one two three four five"}}
    asked = Message(role="user", content="How many words has poem.txt?")
    return Group(group_id="g", task=Task(task_id="t", agent="math", messages=[asked], data=data))


@pytest.mark.processes
async def test_a_model_calls_a_tool_that_an_installed_package_offers(
    client: AsyncRolloutClient,
) -> None:
    (rollout,) = await finished(client, group("bash", "word_count"))
    assert (rollout.state, rollout.reward) == (RolloutState.DONE, 1.0), rollout.error
    assert rollout.trajectory is not None
    (call,) = rollout.trajectory.turns[0].tool_calls
    assert (call.name, call.output, call.is_error) == ("word_count", "5 words", False)


@pytest.mark.processes
async def test_an_unknown_tool_is_refused_with_the_names_that_exist(
    client: AsyncRolloutClient,
) -> None:
    with pytest.raises(ServiceCallError, match=r"data\.tools: no tool 'word_cuont'") as refused:
        await client.submit([group("bash", "word_cuont")])
    assert refused.value.hint == (
        f"this service has: {', '.join(NAMES)}; an installed package adds one by an entry point in"
        " 'prorl.tools'"
    )


@pytest.mark.processes
async def test_the_schema_of_an_agents_data_has_the_names_that_exist(
    client: AsyncRolloutClient,
) -> None:
    agents = {one.name: one for one in await client.agents()}
    naming = {
        name
        for name, one in agents.items()
        if one.data_schema and "tools" in one.data_schema["properties"]
    }
    assert naming == {"code", "harbor", "math", "reasoning_gym", "rubric", "stem", "swe"}
    for name in naming:
        schema = agents[name].data_schema
        assert schema is not None
        assert schema["properties"]["tools"]["items"] == {"type": "string", "enum": NAMES}
        assert sorted(tool["function"]["name"] for tool in agents[name].tools) == NAMES


def test_an_entry_point_that_is_not_a_tool_ends_the_start(package: Install) -> None:
    package("WordCountArguments.model_json_schema")
    with pytest.raises(
        InvalidRequest, match=r"^my_package:WordCountArguments.model_json_schema is not a tool$"
    ):
        AgentRegistry()
