# SPDX-License-Identifier: Apache-2.0
"""Sealed packets by integers alone, a third time from transport_c/PROTOCOL.md: no cipher and no HMAC of a library.

AES is FIPS 197, GCM is NIST SP 800-38D, ChaCha20 and Poly1305 are RFC 8439 and HMAC is RFC 2104; of a library is only
SHA-256. It shares nothing with sealed.py or with the core. Slow: it computes the vectors of test_sealed.py, and a test
holds them against it. This prints them, for a version of the protocol that changes them:

    python -m tests.dissector.longhand
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable


def hmac_sha256(key: bytes, text: bytes) -> bytes:
    """For keys of a block at most."""
    key = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in key) + text).digest()
    return hashlib.sha256(bytes(b ^ 0x5C for b in key) + inner).digest()


# ---- AES-GCM ----


def _times(a: int, b: int) -> int:
    """In GF(2^8) of AES."""
    ret = 0
    while b:
        ret ^= a if b & 1 else 0
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return ret


def _substitute(byte: int) -> int:
    inverse = next((other for other in range(256) if _times(byte, other) == 1), 0)
    rotations = (inverse << by | inverse >> (8 - by) for by in range(5))
    ret = 0x63
    for rotation in rotations:
        ret ^= rotation & 0xFF
    return ret


_BOX = bytes(_substitute(byte) for byte in range(256))


def aes(key: bytes, block: bytes) -> bytes:
    """One block, with a key of 16 or 32 bytes."""
    words, size, rounds = [key[at : at + 4] for at in range(0, len(key), 4)], len(key) // 4, len(key) // 4 + 6
    constant = 1
    for at in range(size, 4 * (rounds + 1)):
        word = words[-1]
        if at % size == 0:
            word = bytes(_BOX[byte] for byte in word[1:] + word[:1])
            word, constant = bytes((word[0] ^ constant,)) + word[1:], _times(constant, 2)
        elif size > 6 and at % size == 4:
            word = bytes(_BOX[byte] for byte in word)
        words.append(bytes(a ^ b for a, b in zip(words[at - size], word, strict=True)))
    keys = [b"".join(words[4 * at : 4 * at + 4]) for at in range(rounds + 1)]
    state = bytes(a ^ b for a, b in zip(block, keys[0], strict=True))
    for at in range(1, rounds + 1):
        state = bytes(_BOX[state[(5 * i) % 16]] for i in range(16))  # bytes substituted, rows shifted
        if at < rounds:
            columns = [state[i : i + 4] for i in range(0, 16, 4)]
            state = bytes(
                _times(c[i], 2) ^ _times(c[(i + 1) % 4], 3) ^ c[(i + 2) % 4] ^ c[(i + 3) % 4]
                for c in columns
                for i in range(4)
            )
        state = bytes(a ^ b for a, b in zip(state, keys[at], strict=True))
    return state


def _ghash(subkey: int, blocks: bytes) -> int:
    ret = 0
    for at in range(0, len(blocks), 16):
        x, v, ret = ret ^ int.from_bytes(blocks[at : at + 16]), subkey, 0
        for bit in range(127, -1, -1):
            ret ^= v if x >> bit & 1 else 0
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
    return ret


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % 16)


def aes_gcm(key: bytes, nonce: bytes, text: bytes, header: bytes) -> bytes:
    """The text encrypted, and the tag of both."""
    count = -(-len(text) // 16)
    stream = b"".join(aes(key, nonce + (2 + at).to_bytes(4)) for at in range(count))
    hidden = bytes(a ^ b for a, b in zip(text, stream, strict=False))
    lengths = (8 * len(header)).to_bytes(8) + (8 * len(text)).to_bytes(8)
    hashed = _ghash(int.from_bytes(aes(key, bytes(16))), _padded(header) + _padded(hidden) + lengths)
    return hidden + (hashed ^ int.from_bytes(aes(key, nonce + (1).to_bytes(4)))).to_bytes(16)


# ---- ChaCha20-Poly1305 ----


def _quarter(s: list[int], a: int, b: int, c: int, d: int) -> None:
    for to, by, other, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[to] = (s[to] + s[by]) % 2**32
        mixed = s[other] ^ s[to]
        s[other] = (mixed << bits | mixed >> (32 - bits)) % 2**32


def chacha20(key: bytes, nonce: bytes, count: int) -> bytes:
    """One block of 64 bytes of the stream."""
    whole = b"expand 32-byte k" + key + count.to_bytes(4, "little") + nonce
    first = [int.from_bytes(whole[at : at + 4], "little") for at in range(0, 64, 4)]
    state = list(first)
    for _ in range(10):
        for i in range(4):
            _quarter(state, i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            _quarter(state, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return b"".join(((a + b) % 2**32).to_bytes(4, "little") for a, b in zip(first, state, strict=True))


def chacha20_poly1305(key: bytes, nonce: bytes, text: bytes, header: bytes) -> bytes:
    """The text encrypted, and the tag of both."""
    stream = b"".join(chacha20(key, nonce, 1 + at) for at in range(-(-len(text) // 64)))
    hidden = bytes(a ^ b for a, b in zip(text, stream, strict=False))
    once = chacha20(key, nonce, 0)
    r = int.from_bytes(once[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    s = int.from_bytes(once[16:32], "little")
    lengths = len(header).to_bytes(8, "little") + len(text).to_bytes(8, "little")
    told, sum_ = _padded(header) + _padded(hidden) + lengths, 0
    for at in range(0, len(told), 16):
        sum_ = (sum_ + int.from_bytes(told[at : at + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return hidden + ((sum_ + s) % 2**128).to_bytes(16, "little")


# ---- PROTOCOL.md, Sealed packets ----

SUITES: dict[int, tuple[Callable[[bytes, bytes, bytes, bytes], bytes], int]] = {
    1: (aes_gcm, 16),
    2: (aes_gcm, 32),
    3: (chacha20_poly1305, 32),
}


def sealed(packet: bytes, suite: int, first: bytes, number: int, epoch: int, heard: int) -> bytes:
    """A packet, parity (kind 6) as data is; |first| is the secret of epoch 0, and there are no fresh secrets."""
    secret = first
    for _ in range(epoch):
        secret = hmac_sha256(secret, b"next\x01")
    kind = 1 if packet[0] % 16 == 6 else packet[0] % 16
    make, size = SUITES[suite]
    key = hmac_sha256(secret, b"key" + bytes((kind, 1)))[:size]
    iv = int.from_bytes(hmac_sha256(secret, b"iv" + bytes((kind, 1)))[:12])
    index = packet[1] if kind == 3 else 0
    nonce = (iv ^ (kind << 88 | index << 80 | number)).to_bytes(12)
    length = 32 if kind == 1 else 16
    header = packet[:12] + bytes((epoch % 256, heard % 256, 0, 0)) + packet[16:length]
    return header + make(key, nonce, packet[length:], header)


def golden_sealed(octets: bytes, suite: int) -> bytes:
    """A golden packet on the path of test_sealed.py, spelled out once more: the secret 00 01 .. 1f, generation
    0x0102030405060708, from host 3 to host 5 in lane 1, connection a1b2c3d4, the job "golden", number 2^32 + 7, epoch
    2, and epoch 9 heard."""
    secret = hmac_sha256(b"ultima sealed packets 2", bytes(range(32)))
    context = bytes((suite,)) + bytes.fromhex("0102030405060708 03 05 01 a1b2c3d4") + b"golden"
    first = hmac_sha256(secret, b"first" + context + b"\x01")
    return sealed(octets, suite, first, 2**32 + 7, 2, 9)


def main() -> None:
    """Prints what SEALED of test_sealed.py holds."""
    from tests.dissector.golden import PACKETS

    for golden in PACKETS:
        print(f'    "{golden.name}": (')
        for suite in SUITES:
            print(f'        "{golden_sealed(golden.bytes(), suite)[-24:].hex()}",')
        print("    ),")


if __name__ == "__main__":
    main()
