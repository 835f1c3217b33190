"""A value is kept with its graph, or memory with it, from step to step."""

from simgpu.ground.units import bytes_text
from simgpu.reports.growth import Growth
from simgpu.reports.rule import Rule, Suspect

_WORTH_BYTES = 512  # that each step leaves: less than a block of PyTorch's allocator are numbers
_LARGE_BYTES = 4096  # with fewer, a graph itself is what stays


class MemoryGrows(Rule, about="memory"):
    cure = "keep `.item()`, `.detach()` or `.clone()`"

    @classmethod
    def named(cls, growth: Growth) -> Suspect | None:
        """Return the remark on memory that grows, None for a few bytes of it."""
        if not growth.graph and growth.bytes_per_step < _WORTH_BYTES:
            return None
        return Suspect(*growth.parts, 0.0, growth.bytes_per_step, _grows(growth), cls.code, cls.about)


def _grows(growth: Growth) -> str:
    value = "Something keeps what this line makes"
    if growth.held_by:
        value = f"{growth.held_by} keeps what {growth.made_at.where} makes"
    if growth.each == "pass":
        said = f"{growth.held_by} goes on to the next step with its graph, and a backward pass through both steps fails"
        return f"{said}, also with `retain_graph=True`. Write `.detach()` behind it, as in `state = state.detach()`."
    instead = "Keep a number (`.item()`) or a `.detach()`ed tensor instead"
    if not growth.bytes_per_step:
        return f"{value}, and its graph grows in each step by that of the step, in the host's memory. {instead}."
    if growth.each == "model":
        stay = "and all earlier ones stay. Let them go, or keep their `state_dict()` on the host."
        return f"Each model made here takes {bytes_text(growth.bytes_per_step)} with what belongs to it, {stay}"
    when = "Each step leaves" if growth.each == "step" else "Each time, this leaves"
    said = f"{when} {bytes_text(growth.bytes_per_step)} more memory alive. {value}. "
    if growth.graph and growth.bytes_per_step < _LARGE_BYTES:
        return f"{said}The graph stays as well. {instead}."
    if growth.graph and not growth.value:
        return f"{said}{instead}: a tensor with a graph keeps all activations of its pass."
    if growth.part:
        return f"{said}It is a part of a larger memory, which stays whole. Keep a number (`.item()`) or a `.clone()`."
    host = ".detach().cpu()" if growth.graph else ".cpu()"
    return f"{said}Keep it on the host (`{host}`), keep only a number, or limit how many are kept."
