# SPDX-License-Identifier: Apache-2.0
"""Sealed packets, written from transport_c/PROTOCOL.md alone and over another library's ciphers.

Whoever has the secret of a path opens with this what was captured on it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

TAG_BYTES = 16
SUITES = {1: (AESGCM, 16), 2: (AESGCM, 32), 3: (ChaCha20Poly1305, 32)}


def _expand(secret: bytes, label: bytes, extra: bytes = b"") -> bytes:
    return hmac.digest(secret, label + extra + b"\x01", "sha256")


@dataclass(frozen=True)
class Path:
    """One direction of a path in one lane."""

    suite: int
    secret: bytes
    generation: int
    sender: int
    receiver: int
    lane: int
    connection: int
    job: str

    def epoch_secret(self, epoch: int) -> bytes:
        """Of an epoch, counted from 0 with all its bits."""
        context = (
            self.suite.to_bytes(1)
            + self.generation.to_bytes(8)
            + bytes([self.sender, self.receiver, self.lane])
            + self.connection.to_bytes(4)
            + self.job.encode()
        )
        secret = _expand(hmac.digest(b"ultima sealed packets 2", self.secret, "sha256"), b"first", context)
        for _ in range(epoch):
            secret = _expand(secret, b"next")
        return secret

    def _cipher(self, epoch: int, packet: bytes, number: int) -> tuple[AESGCM | ChaCha20Poly1305, bytes, int]:
        """The cipher with its key, the nonce, and where the sealed part of `packet` begins."""
        kind = 1 if packet[0] & 15 == 6 else packet[0] & 15  # parity has the keys and the numbers of data
        secret = self.epoch_secret(epoch)
        make, size = SUITES[self.suite]
        key, iv = _expand(secret, b"key", bytes([kind]))[:size], _expand(secret, b"iv", bytes([kind]))[:12]
        index = packet[1] if kind == 3 else 0
        mask = bytes([kind, index, 0, 0]) + number.to_bytes(8)
        return make(key), bytes(a ^ b for a, b in zip(iv, mask, strict=True)), 32 if kind == 1 else 16

    def seal(self, packet: bytes, number: int, epoch: int = 0, heard: int = 0) -> bytes:
        """A whole packet, whatever stands in the place of its checksum; `number` has all 64 bits."""
        packet = packet[:12] + bytes([epoch & 255, heard & 255, 0, 0]) + packet[16:]
        cipher, nonce, body = self._cipher(epoch, packet, number)
        return packet[:body] + cipher.encrypt(nonce, packet[body:], packet[:body])

    def open(self, datagram: bytes, number: int, epoch: int = 0) -> bytes | None:
        """The packet with nothing but zeros for its checksum; None if it was not sealed for this path."""
        if datagram[12] != epoch & 255 or len(datagram) <= (32 if datagram[0] & 15 in (1, 6) else 16) + TAG_BYTES:
            return None
        cipher, nonce, body = self._cipher(epoch, datagram, number)
        try:
            return (
                datagram[:12] + bytes(4) + datagram[16:body] + cipher.decrypt(nonce, datagram[body:], datagram[:body])
            )
        except InvalidTag:
            return None
