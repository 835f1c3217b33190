"""Who sends what to whom in a collective operation, step by step, and how many bytes is that?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Choice, Explorer, Slider
from gpu_course.lesson09.explorers.exchange import OPERATIONS, Exchange, Message, exchange

__all__ = ["COLOURS", "OPERATIONS", "Shown", "collective", "explore", "letter"]

COLOURS = (*plots.PALETTE, "#7a7a7a", "#8c6d31")  # of the pieces of ranks 0 to 7


@dataclass(frozen=True)
class Shown:
    """One step of a collective operation on tensors of `nbytes` bytes, one piece of it for each rank."""

    exchange: Exchange
    step: int
    nbytes: int

    piece_bytes = property(lambda s: s.nbytes / s.exchange.ranks, doc="Bytes of a piece: the tensor over the ranks.")
    messages = property(lambda self: self.exchange.steps[self.step - 1], doc="Messages of this step.")

    @property
    def sent_bytes(self) -> tuple[float, ...]:
        """Bytes that each rank sends in all steps."""
        return tuple(self.exchange.sent_pieces(rank) * self.piece_bytes for rank in range(self.exchange.ranks))

    total_bytes = property(lambda self: sum(self.sent_bytes), doc="Bytes that all ranks send in all steps.")


def collective(*, operation: str, ranks: int, step: int, nbytes: int, root: int = 0) -> Shown:
    """Return step `step`, from 1, of `operation` among `ranks`; a number beyond the last step means the last.

    A `root` beyond the last rank means the last, too. `nbytes` is the size of the largest tensor that a rank holds,
    input or output.
    """
    shown = exchange(operation, ranks, min(root, ranks - 1))
    return Shown(shown, min(step, len(shown.steps)), nbytes)


def letter(piece: int) -> str:
    """Return the name of a piece: a, b, c, …"""
    return "abcdefgh"[piece]


def describe(s: Shown) -> str:
    """Return the result in words."""
    run, plan = s.exchange, OPERATIONS[s.exchange.operation]
    sent = ", ".join(f"{m.sender} to {m.receiver} {_what(m, run.ranks)}" for m in s.messages)
    root = f" (root {run.root})" if plan.has_root else ""
    return (
        f"{run.operation} among {run.ranks} ranks{root}: {plan.what}, by {plan.algorithm}. "
        f"Step {s.step} of {len(run.steps)}: {sent}. {_bytes(s)} "
        "Computed by running the algorithm; libraries choose among several."
    )


def _bytes(s: Shown) -> str:
    most, least = max(s.sent_bytes), min(s.sent_bytes)
    if not most:
        return "No message has any bytes; a box says which ranks are known to be there."
    each = plots.bytes_text(most)
    each = f"each rank sends {each}" if most == least else f"a rank sends from {plots.bytes_text(least)} to {each}"
    return f"Tensors of {plots.bytes_text(s.nbytes)}: {each}, all together {plots.bytes_text(s.total_bytes)}."


def _what(message: Message, ranks: int) -> str:
    if message.empty:
        return "(empty)"
    if len(message.slots) == ranks:
        return "all pieces"
    return ", ".join(letter(here) for here, _ in message.slots) + (" (added)" if message.add else "")


def draw(s: Shown) -> Any:
    """Return the picture: what each rank holds before the step, with its messages, and after it."""
    from matplotlib.patches import Patch

    rows = len(s.exchange.states[0][0])
    titles = (f"Before step {s.step} of {len(s.exchange.steps)}", f"After step {s.step}")
    figure, panels = plots.new(titles, columns=2, height_in=1.5 + 0.27 * rows)
    for axes, step in zip(panels, (s.step - 1, s.step), strict=True):
        _draw_state(axes, s.exchange, step)
    for message in s.messages:
        _draw_message(panels[0], message, rows)
    name = "rank {} is there" if s.messages[0].empty else "from rank {}"
    handles = [Patch(color=COLOURS[rank], label=name.format(rank)) for rank in range(s.exchange.ranks)]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False, fontsize=8)
    return figure


def _draw_state(axes: Any, run: Exchange, step: int) -> None:
    """Draw the slots of all ranks, one column a rank; at the end, those that hold results with a dark edge."""
    last = step == len(run.steps)
    rows, names = len(run.states[0][0]), str if run.steps[0][0].empty else letter
    for rank, slots in enumerate(run.states[step]):
        for index, slot in enumerate(slots):
            faded = last and index not in run.results[rank]
            look = {"name": names(slot[0][1]) if slot else "", "faded": faded, "strong": last and not faded}
            _draw_cell(axes, rank, _height(index, rows, run.ranks), slot, **look)
    axes.set(xlim=(-0.6, run.ranks - 0.4), ylim=(-0.7, _height(0, rows, run.ranks) + 0.7), yticks=[])
    if rows > run.ranks:
        for name, index in (("to send", 0), ("received", run.ranks)):
            axes.text(-0.4, _height(index, rows, run.ranks) + 0.48, name, fontsize=8, color=plots.MUTED)
    ticks = [f"rank {r}" if run.ranks < 6 else str(r) for r in range(run.ranks)]
    if OPERATIONS[run.operation].has_root:
        ticks[run.root] += "\nroot"
    axes.set_xticks(range(run.ranks), ticks)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(False)


def _height(index: int, rows: int, ranks: int) -> float:
    """Return where a slot stands: the first on top, a second buffer below a gap."""
    return rows - 1 - index + (0.6 if rows > ranks and index < ranks else 0.0)


def _draw_cell(axes: Any, x: float, y: float, slot: tuple, *, name: str, faded: bool, strong: bool) -> None:
    """Draw one slot as a box: a stripe for each rank that is in it, and the name of its piece."""
    from matplotlib.patches import Rectangle

    size = 0.8
    left, width, alpha = x - size / 2, size / max(len(slot), 1), 0.25 if faded else 0.85
    for index, (rank, _) in enumerate(slot):
        look = {"color": COLOURS[rank], "alpha": alpha, "linewidth": 0}
        axes.add_patch(Rectangle((left + index * width, y - size / 2), width, size, **look))
    edge = {"edgecolor": plots.INK if strong else plots.MUTED, "linewidth": 1.6 if strong else 0.5}
    axes.add_patch(Rectangle((left, y - size / 2), size, size, fill=False, **edge))
    if not faded:
        axes.text(x, y, name, ha="center", va="center", fontsize=8, color="white", weight="bold")


def _draw_message(axes: Any, message: Message, rows: int) -> None:
    """Draw an arrow from what is sent to where it goes; one arrow for a whole tensor, or for an empty message."""
    ranks = len(axes.get_xticks())
    here, there = message.slots[0 if message.empty else len(message.slots) // 2]
    start = (message.sender, _height(here, rows, ranks))
    end = (message.receiver, _height(there, rows, ranks))
    bend = 0.0 if abs(message.sender - message.receiver) == 1 and here == there else 0.12
    look = {"arrowstyle": "-|>", "color": plots.INK, "linewidth": 1.3, "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", xy=end, xytext=start, arrowprops={**look, "shrinkA": 5, "shrinkB": 5}, zorder=9)


def explore(operation: str = "all_reduce") -> Explorer:
    """Return the explorer of lesson 09, with `operation` at first.

    Raises ValueError where there is no such operation.
    """
    most = len(COLOURS)
    controls = [
        Slider("step", "Step", tuple(range(1, 2 * most - 1)), 1),
        Choice("operation", "Operation", tuple(OPERATIONS), operation),
        Slider("ranks", "Ranks", tuple(range(2, most + 1)), 4),
        Slider("root", "Root", tuple(range(most)), 0),
        Slider("nbytes", "Tensor size", tuple(2**n for n in range(10, 33, 2)), 2**26, plots.bytes_text),
    ]
    return Explorer("collectives step by step", collective, draw, describe, controls, offered=_offered)


def _offered(chosen: Mapping[str, Any]) -> dict[str, int]:
    """Return how many steps there are, and how many ranks may be the root."""
    operation, ranks = chosen["operation"], chosen["ranks"]
    steps = len(exchange(operation, ranks).steps)
    return {"step": steps, "root": ranks if OPERATIONS[operation].has_root else 1}
