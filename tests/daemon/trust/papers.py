# SPDX-License-Identifier: Apache-2.0
"""Authorities and certificates for tests, right and wrong ones, as files."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ultima.v1 import certificates

DAY = 86400.0


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def after(days: float) -> datetime.datetime:
    return now() + datetime.timedelta(days=days)


@dataclass
class Authority:
    """An authority whose key the test has."""

    cluster: str = "lab"
    days: tuple[float, float] = (-1, 100)
    key: certificates.Key = field(default_factory=certificates.new_key)

    def __post_init__(self) -> None:
        self.certificate = certificates.authority(self.key, self.cluster, *map(after, self.days))
        self.pem = certificates.certificate_pem(self.certificate)

    def issue(self, node: str, days: tuple[float, float] = (-1, 10), cluster: str = "") -> tuple[bytes, bytes]:
        """Certificate and key of a node."""
        key = certificates.new_key()
        begin, end = map(after, days)
        leaf = certificates.leaf(self.key, self.certificate, cluster or self.cluster, node, key, begin, end)
        return certificates.certificate_pem(leaf), certificates.key_pem(key)


@dataclass
class Papers:
    """The three files of one daemon."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self.key, self.authority = (self.folder / name for name in ("node.crt", "node.key", "ca.crt"))

    def write(self, pair: tuple[bytes, bytes], believed: Sequence[Authority]) -> Papers:
        """Puts other files in their place, each whole, but one after the other."""
        contents = {self.authority: b"".join(one.pem for one in believed), self.certificate: pair[0], self.key: pair[1]}
        for path, data in contents.items():
            fresh = path.with_suffix(".new")
            fresh.write_bytes(data)
            fresh.chmod(0o600)
            os.replace(fresh, path)
        return self

    @property
    def environment(self) -> dict[str, str]:
        """By which a daemon finds them."""
        return {
            "ULTIMAD_TLS_CERTIFICATE": str(self.certificate),
            "ULTIMAD_TLS_KEY": str(self.key),
            "ULTIMAD_TLS_AUTHORITY": str(self.authority),
        }


def papers(folder: Path, node: str, *believed: Authority, days: tuple[float, float] = (-1, 10)) -> Papers:
    """Files of a node, issued by the first authority; all of them are believed."""
    return Papers(folder / f"{node}-papers").write(believed[0].issue(node, days), believed)
