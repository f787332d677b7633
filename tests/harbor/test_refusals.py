"""What a task asks for and cannot have here is refused by name before its sandbox starts."""

from typing import Any

import pytest

from prorl_service import neighbours
from tests.harbor.environments import Making

pytestmark = pytest.mark.processes


def refusal(making: Making, config: dict[str, Any] | None = None, **options: Any) -> str:
    with pytest.raises((ValueError, RuntimeError, OSError)) as raised:
        making.new(config, **options)
    return str(raised.value)


def test_networks_are_refused_unless_the_user_does_without(making: Making) -> None:
    public = refusal(making, policies=("public",))
    assert "network_mode = 'public'" in public
    assert "--ek without_network=true" in public
    assert "allowlist" in refusal(making, policies=("allowlist",))
    assert "network_mode = 'public'" in refusal(making, policies=("public", "public"))
    making.new(policies=("public",), without_network=True)
    assert "allowlist" in refusal(making, policies=("allowlist",), without_network=True)


async def test_phases_may_differ_in_what_they_do_not_get(making: Making) -> None:
    from harbor.models.task.config import NetworkPolicy

    environment = making.new(policies=("no-network", "no-network", "public"), without_network=True)
    await environment.start(force_build=False)
    await environment.set_network_policy(NetworkPolicy(network_mode="public"))
    devices = await environment.exec("grep -c : /proc/net/dev")
    assert devices.stdout == "1\n"


@pytest.mark.parametrize("release", ["0.24.0", "0.27.0"])
def test_a_harbor_outside_the_tested_range_is_refused_before_any_trial(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prorl_harbor import Environment

    monkeypatch.setattr(neighbours, "version", lambda package: release)
    with pytest.raises(
        SystemExit, match=rf"prorl_harbor supports harbor<0\.27,>=0\.25, .*{release}"
    ):
        Environment.preflight(kwargs={})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"gpus": 1}, "GPU"),
        ({"tpu": {"type": "v6e", "topology": "2x4"}}, "TPU"),
        ({"os": "windows"}, "windows"),
        ({"docker_image": "Not An Image"}, "docker_image: not an image reference"),
        ({"docker_image": None}, "no environment definition"),
        ({"memory_mb": 0}, "memory_mb must be above 0"),
        ({"cpus": -1}, "cpus must be above 0"),
        ({"storage_mb": 0}, "storage_mb must be above 0"),
    ],
)
def test_a_key_of_environment_is_refused_by_name(
    making: Making, config: dict[str, Any], named: str
) -> None:
    assert named in refusal(making, config)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mounts": [{"type": "bind", "source": "/data", "target": "/d"}]}, "mounts: .*/d"),
        ({"auto_mounting": True}, "automatic host mounts"),
        ({"stream": True}, "stream mode"),
        ({"without_netwrok": True}, "no option without_netwrok"),
        ({"as_root": "yes"}, "as_root must be bool"),
        ({"processes": 0}, "processes must be above 0"),
        ({"memory_enforcement_policy": "guarantee"}, "memory"),
    ],
)
def test_an_option_is_refused_by_name(making: Making, options: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=named):
        making.new({"memory_mb": 64}, **options)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[agent]\nuser = "agent"', "agent.user = 'agent'"),
        ("[verifier]\nuser = 1000", "verifier.user = 1000"),
        ('[[steps]]\nname = "a"\n[steps.agent]\nuser = "x"', "steps\\[0\\].agent.user"),
    ],
)
def test_users_other_than_root_are_refused_unless_all_run_as_root(
    making: Making, text: str, named: str
) -> None:
    (making.directory.parent / "task.toml").write_text(text)
    with pytest.raises(ValueError, match=named):
        making.new()
    making.new(as_root=True)


async def test_a_call_as_another_user_is_refused(making: Making) -> None:
    environment = await making.started()
    for root in (None, "root", 0, "0"):
        assert (await environment.exec("id -u", user=root)).stdout == "0\n"
    with pytest.raises(ValueError, match="there is only root"):
        await environment.exec("id -u", user="nobody")
    willing = await making.started(as_root=True)
    assert (await willing.exec("id -u", user="nobody")).stdout == "0\n"


def test_compose_files_are_refused(making: Making) -> None:
    (making.directory / "docker-compose.yaml").write_text("services: {}")
    assert "docker-compose.yaml: prorl sandboxes are single containers" in refusal(making)


def test_a_dockerfiles_user_is_refused(making: Making) -> None:
    dockerfile = making.directory / "Dockerfile"
    dockerfile.write_text("FROM a\nUSER x\nFROM b\nUSER root\nUSER \\\n  app:app\n")
    assert "USER = 'app:app'" in refusal(making)
    dockerfile.write_text("FROM a\nUSER x\nFROM b\nRUN true\n")
    making.new()


async def test_an_image_that_is_missing_is_named(making: Making) -> None:
    from harbor.environments.base import SandboxBuildFailedError

    environment = making.new({"docker_image": "local:no-such-image"})
    with pytest.raises(SandboxBuildFailedError, match="there is no image local:no-such-image"):
        await environment.start(force_build=False)
    environment = making.new({"docker_image": "/no/such/image.sif"})
    with pytest.raises(SandboxBuildFailedError, match=r"/no/such/image\.sif cannot be read"):
        await environment.start(force_build=False)
