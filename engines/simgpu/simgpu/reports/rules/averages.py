"""Weights are averaged with themselves, or loaded into themselves."""

from simgpu.ground import places
from simgpu.ground.storages import memory_of
from simgpu.reports import events
from simgpu.reports.rule import Rule


class AverageOfItself(Rule, about="result", often="twice"):
    """An average of weights, or a target network, is the trained model itself."""

    text = (
        "This averages weights with themselves, or copies them into themselves: neither another name nor `p.data` nor "
        "`state_dict()` is a copy. Begin with `copy.deepcopy(model)`, or with a `.clone()` of each weight."
    )
    cure = "`copy.deepcopy(model)`, or `.clone()` of each weight"

    def begin(self) -> None:
        self._scaled = 0, 0.0  # the memory that was multiplied last, and by what

    def on_blended(self, event: events.Blended) -> None:
        """Note `lerp_`, `copy_`, and `add_` of 1 - d behind `mul_(d)`: a decay of weights alone is no average."""
        if self.program.stepping or not event.into.dim():
            return
        memory, share = memory_of(event.into), event.share
        if event.other is None:
            self._scaled = memory, share
        elif event.into.shape == event.other.shape and memory and memory == memory_of(event.other):
            line, (scaled, by) = places.place(), self._scaled
            is_average = event.name != "add_" or (scaled == memory and abs(by + share - 1) < 1e-6)
            is_state = "load_state_dict" in line and ".state_dict()" not in line  # which was taken before
            if is_average and not is_state and any(memory_of(one) == memory for one in self.program.trained):
                self.note(line)
