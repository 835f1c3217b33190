"""PyTorch compiles a function anew again and again, or records CUDA graphs of it for ever new sizes."""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from simgpu.ground import places
from simgpu.ground.torch_internals import TORCH
from simgpu.reports import events
from simgpu.reports.rule import Outcome, Rule

_OFTEN = 4  # times: one for a first size, one for all sizes, one for a last batch
_LIMIT = "recompile limit exceeded"
_DYNAMIC = "Compile it for all sizes (`dynamic=True`), or pad to a few."


class CompiledAnew(Rule, about="time", explains=("small-batch",)):
    text = "PyTorch has compiled this {compiled} times here, the last time since {guard}.{limit} {cure}"
    graphs = (
        'With `mode="reduce-overhead"` PyTorch records a CUDA graph anew for each new size of the inputs, {recorded} '
        "times here. Pad them to a few sizes, or leave the mode out."
    )
    cure = "`dynamic=True`, or a few sizes"

    def begin(self) -> None:
        self._old = _metrics()  # of what PyTorch had compiled before
        self._all: list[Any] | None = None  # when the program had ended
        self._lines: dict[str, str] = {}  # by frame, as PyTorch counts them: the line that called it first
        self._compiled: Counter[str] = Counter()  # by frame
        self._recorded: Counter[str] = Counter()  # by line

    @property
    def compiles(self) -> bool:
        """Whether PyTorch has compiled anything."""
        return bool(self._lines)

    def on_compiling(self, event: events.Compiling) -> None:
        self._lines.setdefault(event.frame, places.place())
        self._compiled[event.frame] += 1

    def on_recorded(self, event: events.Recorded) -> None:
        self._recorded[places.place()] += 1

    def on_run_end(self, event: events.RunEnd) -> None:
        self._all = _metrics()

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        known = {line for frame, line in self._lines.items() if self._compiled[frame] >= _OFTEN and self._last(frame)}
        known |= {line for line, sizes in self._recorded.items() if sizes >= _OFTEN}
        return [line for line in dict.fromkeys((*self._lines.values(), *self._recorded)) if line and line in known]

    def said(self, line: str, outcome: Outcome) -> str:
        frames = [frame for frame, at in self._lines.items() if at == line and self._last(frame)]
        frame = max(frames, key=lambda one: self._compiled[one], default="")
        if self._compiled[frame] < _OFTEN:
            return self.graphs.format(recorded=self._recorded[line])
        last = self._last(frame)
        guard = re.sub(r"^\d+/\d+: |\s+#.*|\n.*", "", last.recompile_reason, flags=re.DOTALL).strip().rstrip(".")
        of_sizes = "size mismatch" in guard or "stride mismatch" in guard
        return self.text.format(
            compiled=self._compiled[frame],
            guard=f"`{guard}`",
            limit=" That is its limit: other calls run uncompiled." * (_LIMIT in str(last.fail_reason)),
            cure=_DYNAMIC if of_sizes else "Keep that the same from call to call.",
        )

    def _last(self, frame: str) -> Any:
        """Return what PyTorch tells of the last time that it compiled a frame anew, None where it tells nothing."""
        new = [one for one in self._all or _metrics() if not any(one is old for old in self._old)]
        of_frame = [one for one in new if str(one.compile_id).startswith(f"{frame}/") and one.recompile_reason]
        return of_frame[-1] if of_frame else None


def _metrics() -> list[Any]:
    """Return what PyTorch tells of each compilation; nothing where it has not been imported, or not whole."""
    return TORCH._dynamo.utils.get_compilation_metrics() if hasattr(sys.modules.get("torch._dynamo"), "utils") else []
