"""The proxy of sandboxes: what passes, what does not, and what is counted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from prorl_service.agents.harbor import data
from prorl_service.agents.harbor.directory import config
from prorl_service.errors import ProRLError, TaskError
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.egress.policy import EgressPolicy, Rules, checked_entry
from prorl_service.sandbox.egress.proxy import variables
from prorl_service.server.settings import SandboxOptions
from tests.inference.scripted_backend import Scripted
from tests.sandbox.egress_servers import egress_to, listener
from tests.sandbox.sandboxes import output, started

pytestmark = pytest.mark.processes


async def echo(request: Request) -> Response:
    body = (await request.body()).decode()
    return Response(f"{request.method} {request.url.path}?{request.url.query} {body}")


@asynccontextmanager
async def server() -> AsyncIterator[int]:
    """Runs a server on the loopback that says what it was asked. Yields its port."""
    async with Scripted(dict.fromkeys(("/", "/in", "/a/b"), echo)) as running:
        yield int(running.url.rpartition(":")[2])


@pytest.mark.parametrize(
    ("hosts", "host", "is_allowed"),
    [
        (["example.com"], "example.com", True),
        (["example.com"], "www.example.com", False),
        (["*.example.com"], "www.example.com", True),
        (["*.example.com"], "example.com", False),
        (["192.0.2.0/24"], "192.0.2.7", True),
        (["192.0.2.0/24"], "192.0.3.7", False),
        (["2001:db8::1"], "2001:db8::1", True),
        ([], "example.com", False),
    ],
)
def test_hosts_of_an_allowlist(hosts: list[str], host: str, is_allowed: bool) -> None:
    assert EgressPolicy("allowlist", hosts).allows_name(host) is is_allowed


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00::1", "::1"])
def test_addresses_that_are_not_public_must_be_named(address: str) -> None:
    found = ip_address(address)
    assert not EgressPolicy("public").allows_address(found)
    assert not EgressPolicy("allowlist", ["example.com"]).allows_address(found)
    assert EgressPolicy("allowlist", [address]).allows_address(found)


async def test_plain_http_passes_and_is_counted() -> None:
    async with server() as port:
        egress = egress_to(port)
        async with (
            egress.served(listener()) as found,
            httpx.AsyncClient(proxy=found["http_proxy"], trust_env=False) as client,
        ):
            answer = await client.post(f"http://127.0.0.1:{port}/a/b?c=d", content="body")
            assert answer.text == "POST /a/b?c=d body"
            answer = await client.put(f"http://127.0.0.1:{port}/", content=_parts())
            assert answer.text == "PUT /? in parts"
            refused = await client.get("http://localhost:1/")
    assert refused.status_code == 403
    assert "localhost: the task may not reach it" in refused.text
    assert egress.allowed == {"127.0.0.1": 2}
    assert egress.refused == {"localhost": 1}


async def _parts() -> AsyncIterator[bytes]:
    for part in (b"in ", b"parts"):
        yield part


async def test_programs_in_a_sandbox_use_it(isolating: SandboxProvider) -> None:
    async with server() as port, started(isolating) as sandbox:
        egress = egress_to(port)
        async with egress.served(await sandbox.listen(0)) as found:
            proxy = found["http_proxy"]
            program = (
                "import urllib.request as r;"
                f" h = r.ProxyHandler({{'http': '{proxy}'}});"
                f" q = r.Request('http://127.0.0.1:{port}/in');"
                f" q.set_proxy('{proxy.removeprefix('http://')}', 'http');"
                " print(r.build_opener(h).open(q).read().decode())"
            )
            assert await output(sandbox, f'python3 -c "{program}"') == "GET /in? "
    assert egress.allowed == {"127.0.0.1": 1}


def test_variables_name_the_proxy_in_both_cases() -> None:
    found = variables("http://127.0.0.1:1")
    assert found["https_proxy"] == found["HTTPS_PROXY"] == "http://127.0.0.1:1"


ENTRIES = {
    "GOOD.example": "good.example",
    " good.example. ": "good.example",
    "*.Good.example": "*.good.example",
    "192.0.2.1": "192.0.2.1",
    "192.0.2.0/24": "192.0.2.0/24",
    "2001:DB8:0::1": "2001:db8::1",
    "2001:db8::/32": "2001:db8::/32",
}
BAD_ENTRIES = (
    *("", ".", "*", "*.", "*good.example", "good.*", "*.192.0.2.1", "a..example", "-a.example"),
    *("https://good.example", "good.example/path", "good.example:443", "192.0.2.1:80"),
    *(
        "[2001:db8::1]",
        "127.0.0.5/8",
        "10.0.0.0/33",
        "a b",
        "a" * 64,
        "b\u00fccher.example",
        "g?od",
    ),
)


@pytest.mark.parametrize(("text", "entry"), ENTRIES.items())
def test_hosts_of_tasks_are_normalised(text: str, entry: str) -> None:
    assert checked_entry(text) == entry
    assert data.Network(mode="allowlist", hosts=[text]).hosts == [entry]
    table = {"network_mode": "allowlist", "allowed_hosts": [text]}
    assert config.TaskToml.model_validate({"agent": table}).agent.allowed_hosts == [entry]


@pytest.mark.parametrize("text", BAD_ENTRIES)
def test_hosts_of_tasks_that_mean_nothing_are_errors(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="hosts"):
        data.Network(mode="allowlist", hosts=[text])
    file = tmp_path / "task.toml"
    file.write_text(
        f"[verifier]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['good.example', '{text}']\n"
    )
    with pytest.raises(TaskError, match=r"task\.toml: verifier\.allowed_hosts\.1: ") as caught:
        config.read(file)
    assert "\n" not in str(caught.value)


def test_hosts_without_a_list_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_text("[environment]\nnetwork_mode = 'public'\nallowed_hosts = ['good.example']\n")
    with pytest.raises(TaskError, match="needs network_mode = 'allowlist'"):
        config.read(file)


def test_rules_of_the_operator() -> None:
    assert SandboxOptions(task_network_deny=("10.0.0.0/8",)).network() is None
    options = SandboxOptions(
        task_network=True,
        task_network_deny=("10.0.0.0/8", "::ffff:192.0.2.0/120"),
        task_network_port=(8080,),
    )
    denied = (ip_network("10.0.0.0/8"), ip_network("192.0.2.0/24"))
    assert options.network() == Rules(denied, frozenset({80, 443, 8080}))
    with pytest.raises(ProRLError, match="--task-network-deny: 'nowhere'"):
        SandboxOptions(task_network_deny=("nowhere",)).network()
