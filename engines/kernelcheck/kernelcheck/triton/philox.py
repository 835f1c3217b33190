"""Which random numbers does a kernel get? Those of Triton: Philox with ten rounds, counted by `offset`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelcheck.triton.blocks import F32, TYPES, Block, as_block

_KEYS, _ROUNDS = (0x9E3779B9, 0xBB67AE85), (0xD2511F53, 0xCD9E8D57)
_U32 = TYPES["uint32"]
_SCALE = np.float32(4.6566127342e-10)  # the largest below 2 ** -31 with which no number becomes 1
Four = tuple[Block, Block, Block, Block]


def _high(a: int, b: np.ndarray) -> np.ndarray:
    return (np.uint64(a) * b.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


def randint4x(seed: Any, offset: Any, n_rounds: int = 10) -> Four:
    """Return four blocks of 32 random bits for each number of `offset`."""
    offset, key = as_block(offset), as_block(seed).data.astype(np.uint64)
    low = offset.data.astype(np.uint32)
    nothing = np.zeros_like(low)
    high = (offset.data >> 32).astype(np.uint32) if offset.dtype.bits > 32 else nothing
    counter = [low, high, nothing, nothing]
    keys = [(key & np.uint64(0xFFFFFFFF)).astype(np.uint32), (key >> np.uint64(32)).astype(np.uint32)]
    for _ in range(n_rounds):
        a, b, c, d = counter
        counter = [_high(_ROUNDS[1], c) ^ b ^ keys[0], np.uint32(_ROUNDS[1]) * c,
                   _high(_ROUNDS[0], a) ^ d ^ keys[1], np.uint32(_ROUNDS[0]) * a]  # fmt: skip
        keys = [key + np.uint32(step) for key, step in zip(keys, _KEYS, strict=True)]
    a, b, c, d = (Block(one, _U32) for one in counter)
    return a, b, c, d


def _uniform(bits: Block) -> np.ndarray:
    number = bits.data.astype(np.int32)
    return np.where(number < 0, ~number, number).astype(np.float32) * _SCALE


def rand4x(seed: Any, offset: Any, n_rounds: int = 10) -> tuple[Block, ...]:
    """Return four blocks of numbers between 0 and 1."""
    return tuple(Block(_uniform(one), F32, counts=True) for one in randint4x(seed, offset, n_rounds))


def randn4x(seed: Any, offset: Any, n_rounds: int = 10) -> tuple[Block, ...]:
    """Return four blocks of normally distributed numbers."""
    normal = []
    uniform = [_uniform(one) for one in randint4x(seed, offset, n_rounds)]
    for u, v in (uniform[:2], uniform[2:]):
        radius = np.sqrt(np.float32(-2) * np.log(np.maximum(u, np.float32(1e-7))))
        angle = np.float32(6.283185307179586) * v
        normal += [radius * np.cos(angle), radius * np.sin(angle)]
    return tuple(Block(one, F32, counts=True) for one in normal)


RANDOM = {
    "randint4x": randint4x, "rand4x": rand4x, "randn4x": randn4x,
    "randint": lambda seed, offset, n_rounds=10: randint4x(seed, offset, n_rounds)[0],
    "rand": lambda seed, offset, n_rounds=10: rand4x(seed, offset, n_rounds)[0],
    "randn": lambda seed, offset, n_rounds=10: randn4x(seed, offset, n_rounds)[0],
}  # fmt: skip
