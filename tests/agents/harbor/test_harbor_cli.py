"""`prorl harbor tasks`, `prepare` and `run` as users call them."""

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from prorl_service.agents.harbor.data import HarborData
from prorl_service.agents.harbor.directory.preparation import FETCHED
from prorl_service.errors import TaskError
from prorl_service.sandbox.archives import load_archive
from prorl_service.schemas import Task
from tests.agents.harbor.directories import BASE, SOLUTION, TEST, directory, prorl
from tests.cli.called import called
from tests.sandbox.images.debian import debian_image

pytestmark = pytest.mark.processes


def test_directories_that_cannot_be_read_stop_no_others(tmp_path: Path) -> None:
    directory(tmp_path / "good")
    for name, toml in [("gpu", "gpus = 1\n"), ("list", '[task]\nname = "x"\n')]:
        with suppress(TaskError):
            directory(tmp_path / name, toml=toml)
    broken = tmp_path / "list" / "task.toml"
    broken.write_text("artifacts = 'text'\n" + broken.read_text())
    named = '[task]\nname = "good"\n'
    with suppress(TaskError):
        directory(tmp_path / "twin", toml=named)
    with suppress(TaskError):
        directory(tmp_path / "secret", toml='env = {A = "${SECRET}"}\n')
    (tmp_path / "secret" / "instruction.md").write_bytes(b"\xff")
    output = tmp_path / "tasks.jsonl"
    done = called("harbor", "tasks", tmp_path, "-o", output)
    assert done.returncode == 1, done.stderr
    assert len(output.read_text().splitlines()) == 1
    lines = {Path(line.split()[0]).name: line for line in done.stdout.splitlines()[1:]}
    assert set(lines) == {"gpu", "list", "twin", "secret"}
    assert "task.toml: environment.gpus = 1: sandboxes have no GPU" in lines["gpu"]
    assert "task.toml: artifacts: Input should be" in lines["list"]
    assert f"its name 'good' is that of {tmp_path}/good" in lines["twin"]
    strict = called("harbor", "tasks", tmp_path, "-o", output, "--strict")
    assert strict.returncode == 2
    assert "sandboxes have no GPU" in strict.stderr


def test_nothing_but_directories_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with suppress(TaskError):
            directory(tmp_path / name, toml="gpus = 1\n")
    done = called("harbor", "tasks", tmp_path, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "none of 2 task directories can be read" in done.stderr
    assert done.stdout.count("sandboxes have no GPU") == 2


def test_a_model_is_evaluated(tmp_path: Path) -> None:
    directory(tmp_path / "task")
    replies = tmp_path / "replies.jsonl"
    call = {"name": "bash", "arguments": {"command": "echo 42 > answer.txt"}}
    message = {"content": "", "tool_calls": [{"id": "c", "function": call}]}
    replies.write_text(f"{json.dumps(message)}\n{json.dumps('Done.')}\n")
    done = prorl(
        "run", tmp_path / "task", "-n", 2, "--replies", replies, "--json", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    assert "pass@1: 1.000 of 1 tasks, 2 attempts each" in done.stdout
    assert len((tmp_path / "out").read_text().splitlines()) == 2


def test_tasks_are_written_for_trainers(tmp_path: Path) -> None:
    directory(tmp_path / "task")
    done = called("harbor", "tasks", tmp_path / "task", "-o", tmp_path / "tasks.jsonl")
    assert done.returncode == 0, done.stderr
    [line] = (tmp_path / "tasks.jsonl").read_text().splitlines()
    task = Task.model_validate_json(line)
    assert (task.agent, task.task_id) == ("harbor", "task")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serves what a verifier fetches. Yields its address."""
    files = tmp_path / "served"
    files.mkdir()
    (files / "check").write_text("grep -qx 42 answer.txt\n")
    handler = partial(SimpleHTTPRequestHandler, directory=str(files))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


FETCHES = """\
#!/bin/bash
cp /tests/secret . ; mkdir -p ~/.local/bin; cp /tests/secret ~/.local/leak; touch mine /srv/other
[ -e ~/.local/bin/check ] || python3 - <<'END'
import os, urllib.request
proxy = os.environ["http_proxy"]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{"http": proxy}}))
request = urllib.request.Request("http://{server}/check")
request.set_proxy(proxy.removeprefix("http://"), "http")
open(os.path.expanduser("~/.local/bin/check"), "wb").write(opener.open(request).read())
END
sh ~/.local/bin/check
echo $(($? == 0)) > /logs/verifier/reward.txt
"""


def test_what_a_verifier_fetches_is_kept(tmp_path: Path, server: str) -> None:
    path = tmp_path / "task"
    toml = 'network_mode = "allowlist"\nallowed_hosts = ["127.0.0.1"]\n'
    files = {
        "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /root\n",
        "tests/secret": "42 is right",
    }
    directory(path, toml=toml, test=FETCHES.format(server=server), files=SOLUTION | files)
    named = path / "task.toml"
    image = f'docker_image = "{debian_image()}"\n'
    named.write_text(named.read_text().replace(image, "").replace('workdir = "/app"\n', ""))
    before = prorl("check", path, "--image-base", BASE)
    assert "the solution gets 0, not 1" in before.stdout
    output = tmp_path / "tasks.jsonl"
    port = server.rpartition(":")[2]
    options = ("--image-base", BASE, "--task-network-port", port)
    done = prorl("prepare", path, "-o", output, *options)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "task: kept 1 files" in done.stderr
    assert "hosts: 127.0.0.1 (1)" in done.stderr
    assert "start-up files" in done.stdout
    task = Task.model_validate_json(output.read_text())
    assert HarborData.model_validate(task.data).protected == ["root/.local"]
    assert fetched(str(task.image)) == {"root/.local/bin/check"}


def fetched(image: str) -> set[str]:
    """Returns the files of the layer that a prepared image has."""
    context = io.BytesIO(load_archive(image.removeprefix("dockerfile:")))
    with tarfile.open(fileobj=context) as outer:
        file = outer.extractfile(FETCHED)
        assert file is not None
        with tarfile.open(fileobj=file) as inner:
            return {entry.name for entry in inner if not entry.isdir()}


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("gpus = 1\n", "environment.gpus = 1: sandboxes have no GPU"),
        ('os = "windows"\n', "environment.os = 'windows': sandboxes run Linux"),
        ("cpus = -1\n", "environment.cpus"),
        ('env = {A = "${SECRET}"}\n', "environment.env.A needs $SECRET of the host"),
        ("[environment.tpu]\n", "environment.tpu: sandboxes have no TPU"),
        ("[[artifacts]]\nsource = 'a'\nservice = 'db'\n", "artifacts.service = 'db'"),
        (
            "network_mode = 'allowlist'\nallowed_hosts = ['good.example:443']\n",
            "environment.allowed_hosts.0: 'good.example:443': not a URL, a port or a path",
        ),
        ("not toml", "task.toml"),
    ],
)
def test_what_cannot_be_honoured_is_named(tmp_path: Path, toml: str, problem: str) -> None:
    with pytest.raises(Exception, match=r"task\.toml"):
        directory(tmp_path, toml=toml).task()
    done = called("harbor", "tasks", tmp_path, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_keys_that_nobody_knows_are_listed(tmp_path: Path) -> None:
    directory(tmp_path, toml="[future]\nx = 1\n", test=TEST)
    done = called("harbor", "tasks", tmp_path, "-o", tmp_path / "out")
    assert "left out, as by Harbor: future" in done.stderr
