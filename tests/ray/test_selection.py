"""Which nodes of a cluster get a service, and the names that these services have."""

from collections.abc import Mapping
from typing import Any

from prorl_service.ray.options import NodeOptions
from prorl_service.ray.plan import HEAD, Node, alive, chosen

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
