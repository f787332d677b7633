"""The manifests for Kubernetes and compose: valid by schemas, commands by our own parsers.

KubeRay's own kinds have no schema here: of those, the templates of pods are validated. What compose
understands is compared with what the manifests say of the same containers.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cyclopts import App

from prorl_service import __version__
from prorl_service.cli import ray as ray_command
from prorl_service.cli.program import DEFAULTS
from prorl_service.cli.serve import front, serve

CONFIGS = Path(__file__).parents[2] / "configs"
DIRECTORY = CONFIGS / "kubernetes"
COMPOSE = yaml.safe_load((CONFIGS / "container/compose.yaml").read_text())["services"]
VERSION = "1.37"
KUBERAY = "ray.io/"
COMMANDS: Mapping[str, Callable[..., Any]] = {"serve": serve, "front": front, "up": ray_command.up}


def documents() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in sorted(DIRECTORY.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield f"{file.stem} {document['kind']} {document['metadata']['name']}", document


ALL = dict(documents())
NATIVE = [name for name, one in ALL.items() if not one["apiVersion"].startswith(KUBERAY)]
OF_RAY = [name for name in ALL if name not in NATIVE]


def pods(cluster: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    spec = cluster["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]] if "headGroupSpec" in spec else []
    for number, group in enumerate(groups):
        metadata = {"name": f"group-{number}"}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **group["template"]}


@pytest.mark.parametrize("name", NATIVE)
def test_a_manifest_is_valid_and_a_wrong_one_is_not(name: str) -> None:
    kubernetes_validate.validate(ALL[name], VERSION, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**ALL[name], "sepc": {}}, VERSION, strict=True)


@pytest.mark.parametrize("name", [one for one in OF_RAY if "RayCluster" in one])
def test_the_pods_of_a_ray_cluster_are_valid(name: str) -> None:
    found = list(pods(ALL[name]))
    assert len(found) == 2
    for pod in found:
        kubernetes_validate.validate(pod, VERSION, strict=True)


def containers() -> Iterator[Mapping[str, Any]]:
    for name, one in ALL.items():
        of_ray = [] if name in NATIVE else pods(one)
        for pod in [one["spec"].get("template", {}), *of_ray]:
            yield from pod.get("spec", {}).get("containers", [])


def command_lines() -> Iterator[str]:
    yield shlex.join(COMPOSE["service"]["command"])
    for one in ALL.values():
        if "entrypoint" in one["spec"]:
            yield one["spec"]["entrypoint"]
    for container in containers():
        if "prorl " in container.get("args", [""])[0]:
            yield container["args"][0]


def test_commands_are_understood() -> None:
    kinds = []
    for line in command_lines():
        words = [word for word in shlex.split(line) if word not in ("exec", "prorl", "ray")]
        kinds.append(words[0])
        parser = App(default_command=COMMANDS[words[0]], default_parameter=DEFAULTS)
        parser.parse_args(words[1:], exit_on_error=False, print_error=False)
    assert sorted(kinds) == ["front", "serve", "serve", "up"]


def test_images_have_one_name_and_this_version() -> None:
    images = {one["image"] for one in [*containers(), *COMPOSE.values()]}
    names = ("prorl-ray", "prorl-service", "prorl-vllm")
    assert images == {f"{name}:{__version__}" for name in names}
    made = "".join(path.read_text() for path in (CONFIGS / "container").glob("Dockerfile*"))
    assert {image for image in images if f" -t {image} " in made} == images


def test_engines_can_take_weights_and_have_the_same_options_everywhere() -> None:
    [engine] = [one for one in containers() if one["name"] == "engine"]
    options = [one for one in COMPOSE["engine"]["command"] if one.startswith("--")]
    assert [one.partition("=")[0] for one in options] == [
        one.partition("=")[0] for one in engine["args"][1:]
    ]
    assert options[-1] == engine["args"][-1] == '--weight-transfer-config={"backend": "prorl"}'


def test_containers_are_probed_and_no_port_that_runs_commands_is_open_to_the_cluster() -> None:
    workloads = [one for one in ALL.values() if one["kind"] in ("StatefulSet", "RayCluster")]
    policies = [one["spec"] for one in ALL.values() if one["kind"] == "NetworkPolicy"]
    selected = [one["podSelector"]["matchLabels"] for one in policies]
    for one in workloads:
        is_ray = one["kind"] == "RayCluster"  # KubeRay labels and probes its pods by itself
        labels = (
            {"ray.io/cluster": "prorl"} if is_ray else one["spec"]["template"]["metadata"]["labels"]
        )
        assert labels in selected
        if not is_ray:
            [container] = one["spec"]["template"]["spec"]["containers"]
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    for policy in policies:
        assert policy["policyTypes"] == ["Ingress"]
        assert all(rule["from"] for rule in policy["ingress"])
    for container in containers():
        added = container.get("securityContext", {}).get("capabilities", {}).get("add")
        assert not added, "sandboxes need no capability in a pod with hostUsers: false"
