"""Joins a series to nodes: by `node`, by `instance`, or by a label of the series and a label of the nodes.

`instance` is a scrape target's address, with or without a port. It is compared with a node's name, all its addresses
(internal, external, host names) and its label `kubernetes.io/hostname`. An address of two nodes is ambiguous and matches
neither. A label may match several nodes (a rack's metric): then each of them has the value.
"""

from collections.abc import Collection, Iterable, Mapping
from ipaddress import AddressValueError, IPv6Address

from policysched.metric_sources.source import Nodes
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.text.short_text_cache import cache_short_texts

NodeJoin = str | tuple[str, str]
HOSTNAME_LABEL = "kubernetes.io/hostname"


class SeriesJoiner:
    """The keys of nodes for one join, updated incrementally."""

    def __init__(self, join: NodeJoin) -> None:
        self._series_label = join[0] if isinstance(join, tuple) else join
        self._node_label = join[1] if isinstance(join, tuple) else None
        self._by_instance = join == "instance"
        self._nodes: dict[NodeName, Node] = {}
        self._owners: dict[str, dict[NodeName, None]] = {}

    def update_nodes(self, nodes: Nodes) -> None:
        """Apply added, changed and removed nodes. Cheap if there are none."""
        node_names = self._nodes
        if len(node_names) != len(nodes) or any(
            node_names.get(name) is not node for name, node in nodes.items()
        ):
            for name in [name for name in node_names if name not in nodes]:
                self._drop(node_names.pop(name))
            for name, node in nodes.items():
                before = node_names.get(name)
                if before is not node:
                    if before is not None:
                        self._drop(before)
                    node_names[name] = node
                    for key in self._keys(node):
                        self._owners.setdefault(key, {})[name] = None

    def nodes_of(self, labels: Mapping[str, object]) -> Collection[NodeName]:
        """The nodes of a series; empty if it matches no known node."""
        value = labels.get(self._series_label)
        if not isinstance(value, str):
            return ()
        owners = self._owners.get(instance_host(value) if self._by_instance else value, {})
        return () if self._by_instance and len(owners) > 1 else owners

    def _drop(self, node: Node) -> None:
        for key in self._keys(node):
            owners = self._owners.get(key)
            if owners is not None:
                owners.pop(node.name, None)
                if not owners:
                    del self._owners[key]

    def _keys(self, node: Node) -> Iterable[str]:
        if self._by_instance:
            return _instance_keys(node)
        if self._node_label is None:
            return (node.name,)
        value = node.labels.get(self._node_label)
        return () if value is None else (value,)


def _instance_keys(node: Node) -> set[str]:
    texts = [node.name, *node.addresses]
    if HOSTNAME_LABEL in node.labels:
        texts.append(node.labels[HOSTNAME_LABEL])
    return {_normalize_host(text) for text in texts if text}


@cache_short_texts(maxsize=65_536)
def instance_host(instance: str) -> str:
    """The normalized host of `host:port`, `[v6]:port`, or a host alone. With two colons and no brackets all of it is an
    IPv6 address, since a port cannot be distinguished from its last group."""
    if instance.startswith("["):
        return _normalize_host(instance[1:].partition("]")[0])
    host, colon, _ = instance.partition(":")
    return _normalize_host(host if colon and instance.count(":") == 1 else instance)


def _normalize_host(host: str) -> str:
    if ":" in host:
        try:
            return IPv6Address(host).compressed
        except AddressValueError:
            return host
    return host.rstrip(".").lower()
