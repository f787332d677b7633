"""The manifests for Kubernetes: valid by its schemas, and their commands by our own parsers.

KubeRay's own kinds have no schema here: of those, the templates of pods are validated.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cyclopts import App

from prorl_service.cli import ray as ray_command
from prorl_service.cli.program import DEFAULTS
from prorl_service.cli.serve import front, serve

DIRECTORY = Path(__file__).parents[2] / "configs" / "kubernetes"
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


def command_lines() -> Iterator[str]:
    for one in ALL.values():
        if "entrypoint" in one["spec"]:
            yield one["spec"]["entrypoint"]
        for container in one["spec"].get("template", {}).get("spec", {}).get("containers", []):
            yield container["args"][0]


def test_commands_are_understood() -> None:
    kinds = []
    for line in command_lines():
        words = [word for word in shlex.split(line) if word not in ("exec", "prorl", "ray")]
        kinds.append(words[0])
        parser = App(default_command=COMMANDS[words[0]], default_parameter=DEFAULTS)
        parser.parse_args(words[1:], exit_on_error=False, print_error=False)
    assert sorted(kinds) == ["front", "serve", "up"]
