"""Random numbers of a Triton kernel: Philox with ten rounds, counted by `offset`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelcheck.triton.blocks import F32, TYPES, Block, as_block
from kernelcheck.triton.memory import wrong

_KEYS, _ROUNDS = (0x9E3779B9, 0xBB67AE85), (0xD2511F53, 0xCD9E8D57)
_U32 = TYPES["uint32"]
_SCALES = {32: np.float32(4.6566127342e-10), 64: np.float32(1.0842020432385337e-19)}  # no number becomes 1
Four = tuple[Block, Block, Block, Block]


def _high(a: int, b: np.ndarray) -> np.ndarray:
    return (np.uint64(a) * b.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


def randint4x(seed: Any, offset: Any, n_rounds: int = 10) -> Four:
    """Return four blocks of 32 random bits for each number of `offset`."""
    offset = as_block(offset)
    low = Block(offset.data.astype(np.uint32), _U32)
    high = Block(offset.data >> 32 if offset.dtype.bits > 32 else np.zeros_like(low.data), _U32)
    return philox(seed, low, high, 0, 0, n_rounds)


def philox(seed: Any, c0: Any, c1: Any, c2: Any, c3: Any, n_rounds: int = 10) -> Four:
    """Return four blocks of 32 random bits for each counter of four numbers of 32 bits."""
    parts, key = [as_block(part) for part in (c0, c1, c2, c3)], as_block(seed).data.astype(np.uint64)
    if any(part.dtype.bits > 32 or part.dtype.kind == 2 for part in parts):
        raise wrong("tl.philox counts here with whole numbers of 32 bits: write .to(tl.uint32)")
    counter = [np.array(part) for part in np.broadcast_arrays(*(part.data.astype(np.uint32) for part in parts))]
    keys = [(key & np.uint64(0xFFFFFFFF)).astype(np.uint32), (key >> np.uint64(32)).astype(np.uint32)]
    for _ in range(n_rounds):
        a, b, c, d = counter
        counter = [_high(_ROUNDS[1], c) ^ b ^ keys[0], np.uint32(_ROUNDS[1]) * c,
                   _high(_ROUNDS[0], a) ^ d ^ keys[1], np.uint32(_ROUNDS[0]) * a]  # fmt: skip
        keys = [key + np.uint32(step) for key, step in zip(keys, _KEYS, strict=True)]
    a, b, c, d = (Block(one, _U32) for one in counter)
    return a, b, c, d


def uint_to_uniform_float(bits: Any) -> Block:
    """Return numbers between 0 and 1 that are made of 32 or 64 random bits each."""
    return Block(_uniform(as_block(bits)), F32, counts=True)


def _uniform(bits: Block) -> np.ndarray:
    if bits.dtype.bits not in _SCALES or bits.dtype.kind != 1:
        raise wrong(f"a random number is made of 32 or 64 bits, and these are {bits.dtype}")
    number = bits.data.astype(f"int{bits.dtype.bits}")
    return np.where(number < 0, ~number, number).astype(np.float32) * _SCALES[bits.dtype.bits]


def pair_uniform_to_normal(u1: Any, u2: Any) -> tuple[Block, Block]:
    """Return two blocks of normally distributed numbers made of two blocks of numbers between 0 and 1."""
    first, second = as_block(u1).data, as_block(u2).data
    radius = np.sqrt(np.float32(-2) * np.log(np.maximum(first, np.float32(1e-7))))
    angle = np.float32(6.283185307179586) * second
    return Block(radius * np.cos(angle), F32, counts=True), Block(radius * np.sin(angle), F32, counts=True)


def rand4x(seed: Any, offset: Any, n_rounds: int = 10) -> tuple[Block, ...]:
    """Return four blocks of numbers between 0 and 1."""
    return tuple(Block(_uniform(one), F32, counts=True) for one in randint4x(seed, offset, n_rounds))


def randn4x(seed: Any, offset: Any, n_rounds: int = 10) -> tuple[Block, ...]:
    """Return four blocks of normally distributed numbers."""
    a, b, c, d = rand4x(seed, offset, n_rounds)
    return *pair_uniform_to_normal(a, b), *pair_uniform_to_normal(c, d)


RANDOM = {
    "philox": philox, "uint_to_uniform_float": uint_to_uniform_float, "pair_uniform_to_normal": pair_uniform_to_normal,
    "randint4x": randint4x, "rand4x": rand4x, "randn4x": randn4x,
    "randint": lambda seed, offset, n_rounds=10: randint4x(seed, offset, n_rounds)[0],
    "rand": lambda seed, offset, n_rounds=10: rand4x(seed, offset, n_rounds)[0],
    "randn": lambda seed, offset, n_rounds=10: randn4x(seed, offset, n_rounds)[0],
}  # fmt: skip
