"""The page for those who run a service for others: its proxies as printed, and its unit."""

import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.errors import CA_FILE
from prorl_service.net.credentials import authorization
from scripts.documentation.pages import ROOT
from tests.docs.printed import blocks
from tests.faults.processes import WAIT_S, group, service, stub_engine
from tests.trainers import trainer

pytestmark = pytest.mark.processes

NAME = "prorl.example.com"
TEMPORARY = " ".join(
    f"{one}_temp_path {one};" for one in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
)
NGINX = f"""pid pid; error_log stderr; daemon off; events {{{{}}}}
http {{{{ access_log off; {TEMPORARY} {{}} }}}}"""
PATHS = f"{ROOT}/.proxies/usr/sbin:{ROOT}/.proxies/usr/bin:/usr/sbin:/usr/bin:/usr/local/bin:/bin"
"""Where proxies are: those of scripts/setup-proxies first."""
CADDY = "{{\n admin off\n auto_https disable_redirects\n}}\n{}"


def nginx(directory: Path, block: str) -> list[str]:
    (directory / "nginx.conf").write_text(NGINX.format(block))
    return ["nginx", "-p", str(directory), "-c", "nginx.conf", "-e", "stderr"]


def caddy(directory: Path, block: str) -> list[str]:
    (directory / "Caddyfile").write_text(CADDY.format(block))
    return ["caddy", "run", "--config", str(directory / "Caddyfile"), "--adapter", "caddyfile"]


PROXIES = {"nginx": nginx, "caddy": caddy}


@contextmanager
def proxy(name: str, directory: Path, places: Mapping[str, str]) -> Iterator[None]:
    """Runs the proxy with the page's block, with other ports and files."""
    [block] = blocks("team.md", name)
    for printed, here in places.items():
        assert printed in block
        block = block.replace(printed, here)
    command = ["setpriv", "--pdeathsig", "TERM", *PROXIES[name](directory, block)]
    with (directory / "proxy.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(WAIT_S)


@pytest.mark.parametrize("name", PROXIES)
def test_clients_commands_and_the_page_work_through_a_proxy_with_a_private_authority(
    name: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(name, path=PATHS) is None:
        pytest.skip(f"{name} is not installed: scripts/setup-proxies")
    authority, port = trustme.CA(), local.free_port()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "prorl.key")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(tmp_path / "prorl.pem", append=True)
    monkeypatch.setenv(CA_FILE, str(tmp_path / "ca.pem"))
    monkeypatch.setenv("PATH", PATHS)
    url, weights = f"https://localhost:{port}", (tiny_model / "model.safetensors").read_bytes()
    with stub_engine(tiny_model) as engine, service([engine.url], tmp_path) as running:
        listens = {
            "nginx": {"listen 443": f"listen {port}", NAME: "localhost"},
            "caddy": {NAME: url},
        }
        files = {f"/etc/{name}/": f"{tmp_path}/", "127.0.0.1:8080": running.url[len("http://") :]}
        with proxy(name, tmp_path, listens[name] | files):
            monkeypatch.setenv("PRORL_TOKEN", authorization(running.url)["Authorization"][7:])
            with trainer(url, retry_s=20) as client:
                assert client.stream_weights([weights]).version == 1
                client.submit([group("g", n=4)])
                ended = list(client.stream([f"g.{index}" for index in range(4)], WAIT_S))
                assert {one.reward for one in ended} == {1.0}
            command = [sys.executable, "-m", "prorl_service.cli", "list", "--url", url]
            listed = subprocess.run(command, capture_output=True, text=True, check=False)
            assert listed.returncode == 0, listed.stderr
            assert listed.stdout.count("done") == 4
            context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
            with httpx.Client(base_url=url, verify=context, trust_env=False) as browser:
                assert browser.get("/page/app.js").is_success
                headers = {**authorization(url), "Origin": url}
                with (
                    browser.stream("GET", "/v1/events", headers=headers, timeout=WAIT_S) as events,
                    RolloutClient(url) as client,
                ):
                    client.submit([group("h", n=1)])
                    assert any("h.0" in line for line in events.iter_lines())
                headers["Origin"] = "https://elsewhere.example"
                assert browser.get("/v1/status", headers=headers).status_code == 403


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    unit = (ROOT / "configs/systemd/prorl@.service").read_text()
    path = tmp_path / "prorl@run.service"
    path.write_text(unit.replace("/opt/prorl/bin/prorl", sys.executable))
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
