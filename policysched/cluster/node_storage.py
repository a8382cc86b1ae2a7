"""The storage of nodes: CSINodes and VolumeAttachments, which become part of the `Node` value.

They have their own watches and may be observed before or after the node.
"""

from dataclasses import replace

from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.storage import CsiAttachment, CsiNode, VolumeAttachment

Events = frozenset[ClusterEvent]
_NO_EVENTS: Events = frozenset()


class NodeStorage:
    def __init__(self) -> None:
        self._csi: dict[NodeName, CsiNode] = {}
        self._attachments: dict[NodeName, dict[str, CsiAttachment]] = {}
        self._nodes: dict[str, NodeName] = {}  # by the attachment's name

    def with_storage(self, node: Node) -> Node:
        """The node with its CSINode and attachments."""
        csi, attachments = self._csi.get(node.name), self._attachments.get(node.name)
        if csi is None and attachments is None:
            return node
        return replace(node, csi=csi, attachments=frozenset((attachments or {}).values()))

    def put_csi(self, csi: CsiNode) -> Events:
        cached, self._csi[csi.name] = self._csi.get(csi.name), csi
        if cached is None:
            return frozenset({ClusterEvent.CSI_NODE_ADD})
        higher = any(limit > cached.limits.get(driver, 0) for driver, limit in csi.limits.items())
        if higher or csi.migrated_plugins != cached.migrated_plugins:
            return frozenset({ClusterEvent.CSI_NODE_UPDATE})
        return _NO_EVENTS

    def drop_csi(self, name: NodeName) -> Events:
        self._csi.pop(name, None)
        return _NO_EVENTS

    def attachment_node(self, attachment: str) -> NodeName | None:
        return self._nodes.get(attachment)

    def attached_volume(self, attachment: str) -> str | None:
        """The name of the volume of a VolumeAttachment."""
        node = self._nodes.get(attachment)
        return None if node is None else self._attachments[node][attachment].volume

    def put_attachment(self, attachment: VolumeAttachment) -> Events:
        """No event: an attachment only uses capacity, and its spec is immutable."""
        self._nodes[attachment.name] = attachment.node
        self._attachments.setdefault(attachment.node, {})[attachment.name] = CsiAttachment(
            attachment.attacher, attachment.volume
        )
        return _NO_EVENTS

    def drop_attachment(self, attachment: str) -> Events:
        node = self._nodes.pop(attachment)
        on_node = self._attachments[node]
        del on_node[attachment]
        if not on_node:
            del self._attachments[node]
        return frozenset({ClusterEvent.ATTACHMENT_DELETE})
