"""Pipeline schedules: validity, time, and what each rank holds.

A schedule is text: a line for each rank, its actions in order. `F0` is the forward pass of micro-batch 0, `B0` its
backward pass, `I0` and `W0` the two halves of that: the gradient of the input, and those of the weights. Where a rank
has several stages, the number of the stage stands in front, `2F0`, as in torch.distributed.pipelining.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from course_utils import arguments, plots
from ranklaunch import preload

__all__ = ["Action", "Schedule", "ScheduleError", "gpipe", "one_f_one_b"]
preload(  # the ranks of nearly every cell use them: seconds, once instead of on each rank
    "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)  # fmt: skip

_WORD = re.compile(r"(\d*)([FBIW])(\d+)")
_COLOURS = {"F": plots.SKY, "B": plots.GREEN, "I": plots.GREEN, "W": plots.OCHRE}
_NAMES = {"F": "F forward", "B": "B backward", "I": "I gradient of the input", "W": "W gradients of the weights"}
_FEW = 400  # actions that a picture can name


class ScheduleError(ValueError):
    """A schedule that no ranks can run; the message says where and why."""


class Action(NamedTuple):
    """One pass of one micro-batch through one stage."""

    stage: int
    kind: str
    micro: int


class Schedule:
    """A schedule that ranks can run, with its times.

    - `text`, `ranks`: the lines as text, and as a tuple of `Action` for each rank;
    - `stages`, `micro`: how many stages and micro-batches there are;
    - `spans`: begin and end of each action, where `forward` and `backward` are the times of the two passes of one
      micro-batch through one stage, in any unit; I and W take half of `backward`, messages nothing;
    - `total`: when the last action ends; `bubble`: the share of the time, 0 to 1, in which ranks wait, over all ranks;
    - `held`: for each rank the most micro-batches, counted for each of its stages, whose activations it keeps at once:
      from F to B, or to W.

    Raises ScheduleError where a word is no action, one is missing or there twice, comes too early, or never can come.
    """

    def __init__(self, text: str, forward: float = 1.0, backward: float = 2.0) -> None:
        self.text = "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
        self.ranks = tuple(_line(rank, words.split()) for rank, words in enumerate(self.text.splitlines()))
        actions = [action for line in self.ranks for action in line]
        if not actions:
            raise ScheduleError("there is no action")
        self.stages, self.micro = (max(values) + 1 for values in list(zip(*actions, strict=True))[::2])
        self._named = self.stages > len(self.ranks)
        self._home = {action.stage: rank for rank, line in enumerate(self.ranks) for action in line}
        self._check_all_there()
        for rank, line in enumerate(self.ranks):
            self._check_order(rank, line)
        forward, backward = arguments.positive("forward", forward), arguments.positive("backward", backward)
        times = {"F": forward, "B": backward, "I": backward / 2, "W": backward / 2}
        self.spans = self._run(times)
        self.total = max(end for _, end in self.spans.values())
        self.bubble = 1 - sum(end - begin for begin, end in self.spans.values()) / (len(self.ranks) * self.total)
        self.held = [max(accumulate({"F": 1, "I": 0}.get(action.kind, -1) for action in line)) for line in self.ranks]

    def __str__(self) -> str:
        return (
            f"{len(self.ranks)} ranks, {self.micro} micro-batches: {self.total:g} long, bubble {self.bubble:.1%}, "
            f"ranks hold {', '.join(map(str, self.held))}"
        )

    __repr__ = __str__

    def word(self, action: Action) -> str:
        """Return the action as the text has it."""
        return f"{action.stage if self._named else ''}{action.kind}{action.micro}"

    def _check_all_there(self) -> None:
        """Raise unless each micro-batch goes forward and back through each stage once, on one rank."""
        for stage in range(self.stages):
            owners = [rank for rank, line in enumerate(self.ranks) if any(action.stage == stage for action in line)]
            if len(owners) != 1:
                raise ScheduleError(f"stage {stage} must be on one rank, it is on {owners or 'none'}")
            actions = [action for action in self.ranks[owners[0]] if action.stage == stage]
            halves = any(action.kind in "IW" for action in actions)
            for micro in range(self.micro):
                for kind in "FIW" if halves else "FB":
                    action = Action(stage, kind, micro)
                    if actions.count(action) != 1:
                        times = f"{actions.count(action)} times" if action in actions else "missing"
                        raise ScheduleError(f"{self.word(action)} is {times} on rank {owners[0]}, it must be once")
            if halves and any(action.kind == "B" for action in actions):
                raise ScheduleError(f"rank {owners[0]} has both B, and I and W, which are its halves")

    def _check_order(self, rank: int, line: tuple[Action, ...]) -> None:
        """Raise where an action of `rank` stands before one of its own that it needs, or is not sent in this order."""
        for index, action in enumerate(line):
            own = {"B": "F", "I": "F", "W": "I"}.get(action.kind)
            if own and action._replace(kind=own) not in line[:index]:
                before = self.word(action._replace(kind=own))
                raise ScheduleError(
                    f"{self.word(action)} stands before {before} on rank {rank}, but needs what {before} keeps"
                )
        for stage in {action.stage for action in line}:
            for kinds, other in (("F", stage - 1), ("BI", stage + 1)):
                home = self._home.get(other, rank)
                if home != rank:
                    mine, sent = (
                        [a.micro for a in self.ranks[r] if a.stage == s and a.kind in kinds]
                        for r, s in ((rank, stage), (home, other))
                    )
                    if mine != sent:
                        taken, came = next(pair for pair in zip(mine, sent, strict=True) if pair[0] != pair[1])
                        raise ScheduleError(
                            f"rank {rank} takes {kinds[0]}{taken} where rank {home} sends {kinds[0]}{came}: "
                            "messages arrive in the order in which they are sent"
                        )

    def _needs(self, action: Action) -> Action | None:
        """Return what the stage before or behind must have done before `action`; None where that is nothing."""
        stage = action.stage + (-1 if action.kind == "F" else 1)
        if action.kind == "W" or stage not in self._home:
            return None
        wanted = [Action(stage, kind, action.micro) for kind in ("F" if action.kind == "F" else "BI")]
        return next(one for one in wanted if one in self.ranks[self._home[stage]])

    def _run(self, times: dict[str, float]) -> dict[Action, tuple[float, float]]:
        """Let each rank do its actions in order, each as soon as what it needs is there; return when."""
        spans: dict[Action, tuple[float, float]] = {}
        free, next_action = [0.0] * len(self.ranks), [0] * len(self.ranks)
        waiting = [rank for rank, line in enumerate(self.ranks) if line]
        while waiting:
            before = len(spans)
            for rank in waiting:
                while next_action[rank] < len(self.ranks[rank]):
                    action = self.ranks[rank][next_action[rank]]
                    needed = self._needs(action)
                    if needed is not None and needed not in spans:
                        break
                    begin = max(free[rank], spans[needed][1] if needed else 0.0)
                    free[rank] = begin + times[action.kind]
                    spans[action] = begin, free[rank]
                    next_action[rank] += 1
            waiting = [rank for rank in waiting if next_action[rank] < len(self.ranks[rank])]
            if waiting and len(spans) == before:
                stuck = [(rank, self.ranks[rank][next_action[rank]]) for rank in waiting]
                raise ScheduleError("deadlock: " + "; ".join(self._waits(*one) for one in stuck))
        return spans

    def _waits(self, rank: int, action: Action) -> str:
        needed = self._needs(action)
        return f"rank {rank} waits in {self.word(action)} for {self.word(needed)} of rank {self._home[needed.stage]}"

    def plot(self, title: str = "", unit: str = "", notes: Sequence[str] = ()) -> Any:
        """Return the picture: a row for each rank with its actions in time, behind it its note, or what it holds.

        Of several stages on a rank the later ones are paler.
        """
        ranks = range(len(self.ranks))
        name, height_in = title or f"Bubble {self.bubble:.1%}", max(1.8, 0.95 + 0.34 * len(ranks))
        figure, axes = plots.new(name, f"time, {unit}" if unit else "time", height_in=height_in)
        alike: dict[tuple, list[Action]] = {}
        for action in self.spans:
            alike.setdefault((action.kind, action.stage), []).append(action)
        for (kind, stage), actions in alike.items():
            row, pale = self._home[stage], 0.45 * (stage // len(ranks)) / max(1, self.stages // len(ranks) - 1)
            bars = [(begin, end - begin) for begin, end in map(self.spans.get, actions)]
            axes.broken_barh(bars, (row - 0.42, 0.84), color=_COLOURS[kind], alpha=0.95 - pale, ec="white", lw=0.6)
            for action, (begin, long) in zip(actions, bars, strict=True):
                if len(self.spans) <= _FEW and long > 0.012 * self.total:
                    axes.text(begin + long / 2, row, action.micro, ha="center", va="center", fontsize=7)
        for rank, note in enumerate(notes or [f"holds {held}" for held in self.held]):
            axes.text(self.total * 1.01, rank, note, va="center", fontsize=8)
        axes.set(ylim=(len(ranks) - 0.5, -0.5), xlim=(0, self.total * 1.12), yticks=ranks)
        axes.set_yticklabels([f"rank {rank}" for rank in ranks])
        axes.grid(False, axis="y")
        for kind in (kind for kind in _NAMES if any(kind == found for found, _ in alike)):
            axes.broken_barh([], (0, 0), color=_COLOURS[kind], label=_NAMES[kind])
        with plots.style():
            figure.legend(loc="outside lower right", ncols=4, fontsize=8)
        return figure


def _line(rank: int, words: list[str]) -> tuple[Action, ...]:
    """Return the actions of a rank; without a number in front they are of the stage with the rank's number."""
    matches = [_WORD.fullmatch(word) for word in words]
    if None in matches:
        raise ScheduleError(
            f"{words[matches.index(None)]!r} on rank {rank} is no action such as F0, B0, I0, W0, or 2F0 of stage 2"
        )
    return tuple(Action(int(match[1] or rank), match[2], int(match[3])) for match in matches)


def gpipe(ranks: int, micro: int) -> str:
    """Return the schedule of GPipe (https://arxiv.org/abs/1811.06965): all forward passes, then all backward passes."""
    return "\n".join([" ".join(f"{kind}{at}" for kind in "FB" for at in range(micro))] * ranks)


def one_f_one_b(ranks: int, micro: int, each: int = 1, split: bool = False) -> str:
    """Return the schedule 1F1B (https://arxiv.org/abs/1806.03377): each backward pass as early as possible.

    With `each` stages a rank, rank r having the stages r, r + ranks, …, it is interleaved
    (https://arxiv.org/abs/2104.04473); `split` parts B into I and W, and does W later: ZB-H1, or with several stages
    ZB1P (https://arxiv.org/abs/2401.10241). With several stages `micro` must be at most `ranks`, or a multiple of it.
    """
    if micro % (turn := min(ranks, micro)) and each > 1:
        raise ValueError(f"micro must be at most {ranks}, or a multiple of it, not {micro}")
    total, lines = each * micro, []
    for rank in range(ranks):

        def word(kind: str, index: int, rank: int = rank) -> str:
            chunk = index // turn % each  # `turn` micro-batches go through one stage, then through the next
            stage = (chunk if kind == "F" else each - 1 - chunk) * ranks + rank
            return f"{stage if each > 1 else ''}{kind}{index // (turn * each) * turn + index % turn}"

        early = min(total, (each - 1) * turn + (ranks - 1 - rank) * (1 if each == 1 or split else 2))
        line = [word("F", at) for at in range(early)]
        for index in range(total):
            line += [word("F", early + index)] if early + index < total else []
            line += [word("I" if split else "B", index)]
            line += [word("W", index - rank)] if split and index >= rank else []
        line += [word("W", at) for at in range(max(0, total - rank), total)] if split else []
        lines.append(" ".join(line))
    return "\n".join(lines)
