# SPDX-License-Identifier: Apache-2.0
"""Names of nodes and clusters, and how certificates write them (certificates.py says where)."""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NODE = re.compile(_LABEL)
_CLUSTER = re.compile(rf"(?=.{{1,63}}\Z){_LABEL}(?:\.{_LABEL})*")
_URI = re.compile(r"spiffe://([^/]+)/ultima/node/([^/]+)")
NODE_ALLOWED = "one label of small letters, digits and dashes, 1 to 63 characters, as `hostname -s` prints"
CLUSTER_ALLOWED = "labels of small letters, digits and dashes, joined by dots, 1 to 63 characters"


def is_node(text: str) -> bool:
    """Whether a node may have this name."""
    return _NODE.fullmatch(text) is not None


def is_cluster(text: str) -> bool:
    """Whether a cluster may have this name."""
    return _CLUSTER.fullmatch(text) is not None


def uri_of(cluster: str, node: str) -> str:
    """A node's name for the daemons that it calls."""
    return f"spiffe://{cluster}/ultima/node/{node}"


def dns_of(cluster: str, node: str) -> str:
    """A node's name for the daemons that call it."""
    return f"{node}.{cluster}.ultima"


def node_of(uri: str) -> tuple[str, str] | None:
    """Cluster and node in a URI; None if it names no node."""
    found = _URI.fullmatch(uri)
    if found is None or not is_cluster(found[1]) or not is_node(found[2]):
        return None
    return found[1], found[2]
