"""Starting processes: another server must not pass for a healthy child."""

import random
import subprocess
import sys
from collections import deque
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.errors import ProRLError
from tests import vllm_engine
from tests.client.scripted import answering, raw

pytestmark = pytest.mark.processes


def child(code: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def test_port_of_another_server_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with answering(raw(b"")) as url:
        port = int(url.rpartition(":")[2])
        with (
            pytest.raises(ProRLError, match=f"port {port} cannot be used: Address already in use"),
            local.service([], log=log, port=port),
        ):
            pass
    assert not log.exists()


def test_free_ports_are_outside_the_range_that_the_kernel_assigns() -> None:
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [local.free_port() for _ in range(20)]
    if first_given > local.FIRST_PORT:
        assert all(local.FIRST_PORT <= port < first_given for port in ports)
    assert len(set(ports)) > 1


def test_health_is_polled_until_it_is_good(tmp_path: Path) -> None:
    left = deque([raw(b"", 503), raw(b"", 503), raw(b"")])

    def reply(handler: BaseHTTPRequestHandler) -> None:
        left.popleft()(handler)

    with answering(reply) as url, child("input()") as process:
        local._wait_until_healthy(local.LocalProcess(url, tmp_path / "log", process), 60)
        assert not left
        assert process.stdin is not None
        process.stdin.write(b"\n")


def test_answer_of_another_server_does_not_hide_a_dead_child(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("address in use")
    with answering(raw(b"")) as url, child("") as process:
        process.wait()
        with pytest.raises(ProRLError, match="address in use"):
            local._wait_until_healthy(local.LocalProcess(url, log, process), 60)


def test_free_ports_do_not_follow_the_seed_that_a_trainer_sets() -> None:
    def ports_after_seed() -> list[int]:
        random.seed(42)
        return [local.free_port() for _ in range(3)]

    assert ports_after_seed() != ports_after_seed()


# --- vLLM ---------------------------------------------------------------------------------------


def vllm_of(version: str, directory: Path) -> Path:
    """Writes a Python with vLLM `version` that prints its arguments instead of starting vLLM."""
    python = directory / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo {version} && exit\necho "$@"; exit 1\n')
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("0.32.0", {"--enable-scale-out", "--weight-transfer-config"}),
        ("0.30.0", {"--enable-scale-out", "--weight-transfer-config"}),
        ("0.29.0", {"--weight-transfer-config"}),
        ("0.24.0", set()),
    ],
)
def test_vllm_is_given_the_flags_that_its_release_has(
    version: str, flags: set[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        pytest.raises(ProRLError, match="did not become healthy"),
        vllm_engine.vllm(vllm_of(version, tmp_path), tmp_path / "model", log=log),
    ):
        pass
    given = set(log.read_text().split())
    assert "processed_logprobs" in given
    assert given & {"--enable-scale-out", "--weight-transfer-config"} == flags


def test_a_vllm_that_is_too_old_or_missing_is_not_started(tmp_path: Path) -> None:
    for python, reason in (
        (vllm_of("0.21.1", tmp_path), r"vLLM 0\.21 is outside the tested range, >=0\.22"),
        (Path(sys.executable), "has no vLLM"),
    ):
        with (
            pytest.raises(ProRLError, match=reason),
            vllm_engine.vllm(python, tmp_path, log=tmp_path / "log"),
        ):
            pass
