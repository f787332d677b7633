"""Nodes of a Ray cluster that are for rollouts. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prorl_service.ray.plan import NodePlan

HEAD = "node:__internal_head__"
"""Resource of Ray's head node."""


@dataclass(frozen=True, slots=True)
class Node:
    node_id: str
    address: str
    name: str
    """Name of its service, unique among nodes that are alive."""
    is_head: bool


def alive(found: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Returns the nodes in `ray.nodes()` that are alive, in the order of their ids.

    A node is named after its address, so that its service finds its journal again. Of nodes with
    one address all but the first also bear the end of their id.
    """
    nodes: list[Node] = []
    for one in sorted(found, key=lambda one: str(one["NodeID"])):
        if one["Alive"]:
            address, node_id = str(one["NodeManagerAddress"]), str(one["NodeID"])
            name = address.replace(":", "-")
            if any(known.name == name for known in nodes):
                name = f"{name}-{node_id[-8:]}"
            nodes.append(Node(node_id, address, name, HEAD in one["Resources"]))
    return nodes


def chosen(found: Sequence[Mapping[str, Any]], plan: NodePlan) -> list[Node]:
    """Returns the nodes that are alive and for rollouts."""
    fitting = {str(one["NodeID"]) for one in found if _fits(one, plan)}
    return [node for node in alive(found) if node.node_id in fitting]


def _fits(node: Mapping[str, Any], plan: NodePlan) -> bool:
    total, labels = node["Resources"], node.get("Labels") or {}
    has_room = plan.resource is None or total.get(plan.resource, 0.0) >= plan.share
    return has_room and all(labels.get(key) == value for key, value in plan.labels.items())
