"""Which bits does a number format store for a value, and what is lost?"""

import math
from dataclasses import dataclass

import torch

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class Format:
    """A floating-point format: a sign bit, then exponent and mantissa; `dtype` is None where PyTorch has no such type.

    The layout is that of IEEE 754; `infinities` is False for e4m3, which gives up infinity and all NaNs but one for a
    larger range (https://arxiv.org/abs/2209.05433, table 1).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    dtype: torch.dtype | None
    infinities: bool = True

    bits = property(lambda self: 1 + self.exponent_bits + self.mantissa_bits, doc="Bits in all.")
    bias = property(lambda self: 2 ** (self.exponent_bits - 1) - 1, doc="What is subtracted from the stored exponent.")
    epsilon = property(lambda self: 2.0**-self.mantissa_bits, doc="The distance from 1 to the next number.")
    smallest_normal = property(lambda f: 2.0 ** (1 - f.bias), doc="The smallest positive number with full precision.")
    smallest_subnormal = property(lambda f: f.smallest_normal * f.epsilon, doc="The smallest positive number.")

    @property
    def largest(self) -> float:
        """The largest finite number."""
        if self.infinities:
            return (2.0 - self.epsilon) * 2.0**self.bias
        return (2.0 - 2 * self.epsilon) * 2.0 ** (self.bias + 1)  # the top exponent is a number, but for its last one

    def spacing(self, value: float) -> float | None:
        """Return the distance from a stored finite number to the next one away from zero, None for inf and NaN."""
        if not math.isfinite(value):
            return None
        exponent = math.frexp(value)[1] - 1 if value else 1 - self.bias
        return 2.0 ** (max(exponent, 1 - self.bias) - self.mantissa_bits)

    def decode(self, word: int) -> float:
        """Return the number that the bits of `word` mean."""
        sign = -1.0 if word >> (self.bits - 1) & 1 else 1.0
        exponent = word >> self.mantissa_bits & (2**self.exponent_bits - 1)
        mantissa = word & (2**self.mantissa_bits - 1)
        top = exponent == 2**self.exponent_bits - 1
        if top and (self.infinities or mantissa == 2**self.mantissa_bits - 1):
            return sign * math.inf if self.infinities and mantissa == 0 else math.nan
        if exponent == 0:
            return sign * mantissa * self.smallest_subnormal
        return sign * (1 + mantissa * self.epsilon) * 2.0 ** (exponent - self.bias)


FORMATS = (
    Format("fp32", 8, 23, torch.float32),
    Format("tf32", 8, 10, None),
    Format("bf16", 8, 7, torch.bfloat16),
    Format("fp16", 5, 10, torch.float16),
    Format("fp8 e4m3", 4, 3, torch.float8_e4m3fn, infinities=False),
    Format("fp8 e5m2", 5, 2, torch.float8_e5m2),
)


@dataclass(frozen=True)
class Stored:
    """What is left of `asked` in a format: bits from sign to last mantissa bit, and the number that they mean."""

    format: Format
    asked: float
    word: int

    bits = property(lambda self: f"{self.word:0{self.format.bits}b}", doc="All bits as text, the sign first.")
    value = property(lambda self: self.format.decode(self.word), doc="The number that the bits mean.")
    spacing = property(lambda self: self.format.spacing(self.value), doc="The distance to the next, away from zero.")

    @property
    def fields(self) -> tuple[str, str, str]:
        """Sign, exponent and mantissa as text."""
        cut = 1 + self.format.exponent_bits
        return self.bits[0], self.bits[1:cut], self.bits[cut:]

    @property
    def relative_error(self) -> float | None:
        """Distance from what was asked for, over that; None where there is no such number."""
        if not (math.isfinite(self.asked) and math.isfinite(self.value)):
            return None
        return abs(self.value - self.asked) / abs(self.asked) if self.asked else 0.0

    @property
    def kind(self) -> str:
        """Return "normal", "subnormal", "zero", "infinity", "NaN", or what happened where the range ends.

        That is "underflow", "overflow" to infinity or NaN, or "saturated": the largest number in place of a larger one.
        """
        value, largest = self.value, self.format.largest
        if not math.isfinite(value):
            same = math.isnan(self.asked) or abs(self.asked) == abs(value)
            return "overflow" if not same else "NaN" if math.isnan(value) else "infinity"
        if abs(value) == largest and abs(self.asked) > largest + self.format.spacing(largest) / 2:
            return "saturated"
        if value == 0:
            return "underflow" if self.asked else "zero"
        return "subnormal" if abs(value) < self.format.smallest_normal else "normal"


def store(value: float, fmt: Format) -> Stored:
    """Return what `fmt` stores for `value`, which is a float32 first, as in a tensor that is then converted.

    PyTorch's own conversion on the CPU gives the bits: to the nearest number, of two equally near the even one. What is
    too large for e4m3 becomes NaN in torch 2.11 and 448 in 2.13 (https://github.com/pytorch/pytorch/pull/178817). TF32
    is no type of PyTorch: here the nearest number with 10 bits of mantissa, of two the one away from zero, as the
    instruction `cvt.rna.tf32.f32` computes it (https://enp1s0.github.io/blog/cuda/2023/01/08/tf32-rna.html); a library
    may round in another way.
    """
    single = torch.tensor(value, dtype=torch.float64).to(torch.float32)
    if fmt.dtype is None:
        word = single.view(torch.int32).item() & 0xFFFFFFFF
        if math.isfinite(single.item()):
            word += 0x1000
        return Stored(fmt, value, word >> 13)
    small = single.to(fmt.dtype)
    return Stored(fmt, value, small.view(_WHOLE[small.itemsize]).item() & (2**fmt.bits - 1))
