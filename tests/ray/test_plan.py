"""What a run consists of: nodes, their services' names, command lines and environments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prorl_service.ray.options import NodeOptions
from prorl_service.ray.plan import HEAD, Node, RunPlan, alive, chosen

SECRET, KEY, TOKEN = "a-judge's-key", "an-engine's-key", "a-token-of-the-run"
PLAN = RunPlan(
    run="r",
    token=TOKEN,
    nodes=NodeOptions(state=Path("/state")),
    agents=("my:Agent",),
    backends=("http://e:1",),
    backend_key=KEY,
    serve=("--run-workers", "4"),
    environment={"PRORL_JUDGE_KEY": SECRET},
)


def test_secrets_are_in_environments_only() -> None:
    service, front = PLAN.service("n", "10.0.0.1"), PLAN.front("10.0.0.1")
    for secret in (SECRET, KEY, TOKEN):
        assert secret not in repr(PLAN) + repr(service) + repr(front)
        assert secret not in " ".join((*service.options, *front.options))
    assert service.environment == {"PRORL_JUDGE_KEY": SECRET, "PRORL_TOKEN": TOKEN}
    assert front.environment == {**service.environment, "PRORL_BACKEND_KEY": KEY}


def test_engines_are_the_fronts_and_agents_are_everyones() -> None:
    service, front = PLAN.service("n", "10.0.0.1"), PLAN.front("10.0.0.1")
    assert "--backend" in front.options
    assert "--backend" not in service.options
    assert "--run-workers" in service.options
    assert "--run-workers" not in front.options
    assert "my:Agent" in service.options
    assert "my:Agent" in front.options


def test_files_of_a_run_are_in_its_directory() -> None:
    service, front = PLAN.service("n", "10.0.0.1"), PLAN.front("10.0.0.1")
    assert "/state/r/services/n.json" in service.options
    assert "/state/r/services" in front.options
    assert service.log == Path("/state/r/logs/n.log")
    assert front.log == Path("/state/r/logs/front.log")


def test_a_front_that_listens_everywhere_has_its_nodes_address() -> None:
    assert PLAN.front("fd00::1").url(80) == "http://[fd00::1]:80"
    everywhere = RunPlan(run="r", token=TOKEN, host="0.0.0.0").front("10.0.0.1")
    assert (everywhere.host, everywhere.url(80)) == ("0.0.0.0", "http://10.0.0.1:80")
    loopback = RunPlan(run="r", token=TOKEN, host="127.0.0.1").front("10.0.0.1")
    assert (loopback.host, loopback.url(80)) == ("127.0.0.1", "http://127.0.0.1:80")


MARK = "rollout_node"


def node(
    node_id: str,
    address: str,
    resources: Mapping[str, float] | None = None,
    *,
    is_alive: bool = True,
    label: str = "",
) -> dict[str, Any]:
    """Returns a node as `ray.nodes()` does."""
    return {
        "NodeID": node_id,
        "Alive": is_alive,
        "NodeManagerAddress": address,
        "Resources": resources or {},
        "Labels": {"ray.io/node-id": node_id, **({"zone": label} if label else {})},
    }


def ids(nodes: list[Node]) -> list[str]:
    return [one.node_id for one in nodes]


def test_all_nodes_that_are_alive_are_for_rollouts_by_default() -> None:
    found = [node("b", "10.0.0.2"), node("a", "10.0.0.1"), node("c", "10.0.0.3", is_alive=False)]
    assert ids(chosen(found, NodeOptions())) == ["a", "b"]


def test_a_resource_and_labels_mark_nodes() -> None:
    found = [
        node("a", "10.0.0.1", {MARK: 1.0}, label="x"),
        node("b", "10.0.0.2", {MARK: 0.5}, label="x"),
        node("c", "10.0.0.3", label="x"),
        node("d", "10.0.0.4", {MARK: 2.0}),
    ]
    marked = NodeOptions(resource=MARK)
    assert ids(chosen(found, marked)) == ["a", "d"]
    assert ids(chosen(found, NodeOptions(resource=MARK, share=0.5))) == ["a", "b", "d"]
    assert ids(chosen(found, NodeOptions(label=("zone=x",)))) == ["a", "b", "c"]
    assert ids(chosen(found, NodeOptions(resource=MARK, label=("zone=x",)))) == ["a"]


def test_a_service_is_named_after_its_nodes_address() -> None:
    found = [node("a" * 56, "fd00::1", {HEAD: 1.0}), node("b" * 56, "10.0.0.2")]
    first, second = alive(found)
    assert (first.name, first.is_head) == ("fd00--1", True)
    assert (second.name, second.is_head) == ("10.0.0.2", False)


def test_names_of_nodes_with_one_address_differ() -> None:
    found = [node(letter * 56, "10.0.0.1") for letter in "ab"]
    assert [one.name for one in alive(found)] == ["10.0.0.1", "10.0.0.1-bbbbbbbb"]
