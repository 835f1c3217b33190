"""What does a cluster show while things fail on it, and what does it do when it is told to save or to restart?

A restart takes 11 minutes here: that is the median time between two tries in the report on 504 GPUs
(https://arxiv.org/abs/2605.09370). PyTorch's limit for a collective of NCCL is ten minutes. How long a save, a repair,
a warning before a preemption and its absence take is assumed.
"""

import heapq
import random
import textwrap
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from gpu_course.lesson11.interruptions import CAUSES, DAY_S, HOUR_S, NODES, WARNED, WEEK_S, Event

__all__ = [
    "RESTART_S", "SAVE_S", "SPARES", "STEP_S", "WATCHDOG_S", "Cluster", "Decision", "Incident", "Message", "Seen",
    "Span", "Week",
]  # fmt: skip

SPARES = 4
LOOK_S, STEP_S = 300, 10
SAVE_S, RESTART_S, WATCHDOG_S = 60, 660, 600
REPAIR_S, NOTICE_S, AWAY_S, BLIP_S = DAY_S, 600, HOUR_S, 600

_XIDS = {
    48: "An uncorrectable double bit error (DBE) has been detected on GPU",
    79: "GPU has fallen off the bus.",
    119: "Timeout waiting for RPC from GSP!",
}
_XID = "NVRM: Xid (PCI:0000:9b:00): "
_WARNING = f"{_XID}63, Row Remapper: New row marked for remapping, reset gpu to activate."
_LINK = "mlx5_0: link down; NCCL WARN got completion with error 12; mlx5_0: link up"
_TIMEOUT = "Watchdog caught collective operation timeout: WorkNCCL(OpType=_ALLGATHER_BASE, Timeout(ms)=600000)"
_NOISE = [random.Random(0).gauss(1, 0.01) for _ in range(1009)]  # of the time of a step


@dataclass(frozen=True, slots=True)
class Message:
    """A line of the logs. `node` is the one that wrote it, -1 for the scheduler or the program itself."""

    node: int
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What the cluster shows. Nodes are numbers; a spare has one that the job does not use yet.

    `running`: the processes have not exited, although they may hang. `idle_s`: seconds since a step ended. `unsaved_s`:
    seconds of training that are in no checkpoint. `step_s`: for each node, the seconds of its own work in a step,
    before the collective; empty when no step ended. `silent_s`: for each node, seconds since its last heartbeat.
    `messages`: what was logged since the last look. `checkpoints`: steps of those that are kept, the newest last.
    `spares`: nodes that are ready. `save_s`, `restart_s`: what a save and a restart take.
    """

    now_s: int
    running: bool
    idle_s: int
    unsaved_s: float
    step_s: dict[int, float]
    silent_s: dict[int, int]
    messages: tuple[Message, ...]
    checkpoints: tuple[int, ...]
    spares: int
    save_s: int
    restart_s: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. By default: nothing.

    `save` writes a checkpoint, before a restart if there is one. `restart` ends the processes and starts them again
    without the nodes in `exclude`, from the checkpoint of step `checkpoint`, the newest if None. Spares take the places
    of excluded nodes, which are repaired and come back as spares a day later; without enough spares, the job waits for
    them. `cause`, one of `CAUSES`, is what you think is wrong.
    """

    save: bool = False
    restart: bool = False
    exclude: tuple[int, ...] = ()
    checkpoint: int | None = None
    cause: str = ""


@dataclass
class Incident:
    """Something that failed, and which cause the policy named for it. `at_s` and `end_s`: since the week began."""

    kind: str
    at_s: int
    node: int
    named: str = ""
    end_s: int | None = None
    lost_s: float = 0


@dataclass
class Span:
    """A stretch of the week: what the job did, and for which cause. `share` of it was useful, if it was training."""

    start_s: int
    end_s: int
    doing: str
    cause: str = ""
    share: float = 1.0


@dataclass
class Week:
    """What became of a week. `goodput` is the useful share of it: training that was neither lost nor slowed down."""

    goodput: float = 0.0
    spans: list[Span] = field(default_factory=list, repr=False)
    incidents: list[Incident] = field(default_factory=list)
    saves_s: list[int] = field(default_factory=list)
    excluded: list[tuple[int, int, str]] = field(default_factory=list)  # when, which node, what was wrong with it
    false_alarms: int = 0  # restarts for a cause although nothing had failed

    @property
    def spent_s(self) -> dict[str, float]:
        """Seconds of the week: of training, of saving, and of what each cause took; together the whole week."""
        spent: dict[str, float] = {"training": 0.0, "saving": 0.0}
        for span in self.spans:
            seconds = span.end_s - span.start_s
            if span.doing == "training":
                spent["training"] += seconds * span.share
            if span.share < 1:
                spent["slow"] = spent.get("slow", 0.0) + seconds * (1 - span.share)
            elif span.doing != "training":
                name = span.cause or span.doing
                spent[name] = spent.get(name, 0.0) + seconds
        return spent

    @property
    def named(self) -> float:
        """The share of incidents whose cause was named."""
        return sum(one.kind == one.named for one in self.incidents) / max(len(self.incidents), 1)

    def __str__(self) -> str:
        hours = {name: seconds / HOUR_S for name, seconds in self.spent_s.items() if seconds and name != "training"}
        lost = ", ".join(
            f"{name}\N{NO-BREAK SPACE}{one:.1f}\N{NO-BREAK SPACE}h"
            for name, one in sorted(hours.items(), key=lambda item: -item[1])
        )
        right = sum(one.kind == one.named for one in self.incidents)
        share = f"goodput {self.goodput:.1%}, causes named {right} of {len(self.incidents)}"
        lines = textwrap.wrap(f"lost: {lost or 'nothing'}", 88, subsequent_indent="      ")
        return "\n".join([share, *lines]).replace("\N{NO-BREAK SPACE}", " ")


@dataclass(eq=False)
class _Checkpoint:
    step: int
    at_s: int
    done_s: float
    whole: bool = True


def _require_decision(decision: Any, checkpoints: tuple[int, ...]) -> None:
    """Raise TypeError or ValueError unless this is a decision that can be obeyed while these `checkpoints` are kept."""
    if not isinstance(decision, Decision):
        raise TypeError(f"decide returned {decision!r}, it must return a Decision")
    if decision.cause not in ("", *CAUSES):
        raise ValueError(f"cause is {decision.cause!r}, it must be one of: {', '.join(CAUSES)}")
    nodes = decision.exclude
    if not isinstance(nodes, tuple | list | set | frozenset) or not all(isinstance(node, Integral) for node in nodes):
        raise TypeError(f"exclude is {nodes!r}, it must be a tuple of nodes, which are ints, such as (17,)")
    if decision.checkpoint not in (None, *checkpoints) or isinstance(decision.checkpoint, float):
        raise ValueError(
            f"checkpoint is {decision.checkpoint!r}, it must be one of seen.checkpoints, here {checkpoints}: "
            "a step, no place"
        )


class Cluster:
    """The nodes, the job and the clock; what happens to them, and what they show.

    The status of the job is "training", "stuck" in a collective, "stopped" (its processes have exited) or "away" (its
    nodes are somebody else's).
    """

    def __init__(self, events: list[Event], spares: int, save_s: int) -> None:
        heapq.heapify(events)
        self._events, self._save_s = events, save_s
        self.now_s, self._ended_s = 0, 0  # the clock; when a step ended last
        self._status, self._cause = "training", ""  # the cause of what the job does now, if it does not train
        self._nodes, self._spares = list(range(NODES)), list(range(NODES, NODES + spares))
        self._repairs: list[tuple[int, int]] = []  # when it is ready, and which node
        self._broken: dict[int, tuple[str, Message]] = {}  # the kind, and what a start says
        self._dead: dict[int, int] = {}  # since when
        self._slow: dict[int, float] = {}
        self._blips: dict[int, tuple[int, float]] = {}  # until when, and how slow
        self._cables: dict[int, int] = {}  # the node with a bad cable, by its place
        self._warned: dict[int, int] = {}  # the node that a warning was about, by its place
        self._saved = [_Checkpoint(0, 0, 0.0)]
        self._done_s = 0.0
        self._open: list[Incident] = []
        self._messages: list[Message] = []
        self._found = Week()

    # What the policy sees

    def seen(self) -> Seen:
        """Return what the cluster shows now; its messages are shown once."""
        messages, self._messages = tuple(self._messages), []
        running = self._status in ("training", "stuck")
        return Seen(
            self.now_s, running, self.now_s - self._ended_s,
            self._done_s - self._saved[-1].done_s if running else 0.0,
            self._steps(), self._silence(),
            messages, self._kept(), len(self._spares), self._save_s, RESTART_S,
        )  # fmt: skip

    def _kept(self) -> tuple[int, ...]:
        """Return the steps of the checkpoints that are shown, the newest last."""
        return tuple(checkpoint.step for checkpoint in self._saved[-5:])

    def _steps(self) -> dict[int, float]:
        """Return for each node the seconds of its own work in a step, if one has just ended."""
        if self._status != "training" or self._ended_s != self.now_s:
            return {}
        turn, slow = self.now_s // LOOK_S * 7, self._slowness()
        return {node: STEP_S * slow.get(node, 1.0) * _NOISE[(turn + 13 * node) % 1009] for node in self._nodes}

    def _silence(self) -> dict[int, int]:
        """Return for each node the seconds since its last heartbeat."""
        silent = dict.fromkeys(self._nodes, 0)
        return silent | {node: self.now_s - at_s for node, at_s in self._dead.items() if node in silent}

    def _slowness(self) -> dict[int, float]:
        """Return how many times as long as the others the slow nodes take."""
        if not self._slow and not self._blips:
            return {}
        return {node: slow for node, (until_s, slow) in self._blips.items() if until_s > self.now_s} | self._slow

    # What the policy does

    def obey(self, decision: Decision) -> None:
        """Do what was decided, which takes time."""
        _require_decision(decision, self._kept())
        if decision == Decision():
            return
        if decision.cause:
            self._name(decision)
        if decision.save and self._status == "training":
            self._save()
        if decision.restart and self._status != "away":
            self._restart(decision)

    def _name(self, decision: Decision) -> None:
        """Note the cause that was named, at the incident of this kind, else at the newest."""
        if decision.restart and not self._open and not decision.exclude:
            self._found.false_alarms += 1
        unnamed = [one for one in self._open if not one.named]
        for incident in [one for one in unnamed if one.kind == decision.cause][:1] or unnamed[-1:]:
            incident.named = decision.cause

    def _save(self) -> None:
        if self._spend(self._save_s, "saving"):
            self._saved.append(_Checkpoint(round(self._done_s / STEP_S), self.now_s, self._done_s))
            self._found.saves_s.append(self.now_s)
            self._ended_s = self.now_s

    def _restart(self, decision: Decision) -> None:
        """End the processes, exchange nodes, and start again: it works if all nodes do, and the checkpoint is whole."""
        exclude = [node for node in dict.fromkeys(decision.exclude) if node in self._nodes]
        if self._status == "training":
            self._cause = next((why for node in exclude if (why := self._why(node))), "no cause")
        self._status = "stopped"
        self._exchange(exclude)
        while len(self._nodes) < NODES and self.now_s < WEEK_S:
            self._spend(min(self._repairs)[0] - self.now_s, "waiting for nodes", self._cause)
            self._take_spares()
        if not self._spend(RESTART_S, "starting", self._cause):
            return
        checkpoint = next((one for one in self._saved if one.step == decision.checkpoint), self._saved[-1])
        broken = [node for node in self._nodes if node in self._broken]
        for node in broken:
            kind, message = self._broken[node]
            self._messages.append(message)
            self._fails_to_start(kind, node)
        if not broken and not checkpoint.whole:
            text = f"checkpoint of step {checkpoint.step}: the checksum of __0_0.distcp differs"
            self._messages.append(Message(-1, text))
            self._fails_to_start("checkpoint", -1)
        elif not broken:
            self._go_on(checkpoint)

    def _exchange(self, exclude: list[int]) -> None:
        """Send nodes to be repaired, and put spares in their places."""
        for node in exclude:
            self._found.excluded.append((self.now_s, node, self._why(node)))
            self._repairs.append((self.now_s + REPAIR_S, node))
            self._nodes.remove(node)
            for fault in (self._broken, self._dead, self._slow, self._blips):
                fault.pop(node, None)
        self._close([one for one in self._open if one.kind == "slow" and one.node in exclude])
        self._take_spares()

    def _why(self, node: int) -> str:
        """Return what is wrong with a node, or nothing."""
        if node in self._broken:
            return self._broken[node][0]
        if node in self._slow:
            return "slow"
        if self._blips.get(node, (0, 0))[0] > self.now_s:
            return "blip"
        return "GPU" if node in self._warned.values() else "network" if node in self._cables.values() else ""

    def _take_spares(self) -> None:
        self._spares += [node for ready_s, node in self._repairs if ready_s <= self.now_s]
        self._repairs = [one for one in self._repairs if one[0] > self.now_s]
        missing = NODES - len(self._nodes)
        self._nodes += self._spares[:missing]
        del self._spares[:missing]

    def _fails_to_start(self, kind: str, node: int) -> None:
        if all((one.kind, one.node) != (kind, node) for one in self._open):
            self._happens(kind, node)
        self._cause = kind

    def _go_on(self, checkpoint: _Checkpoint) -> None:
        """Train from this checkpoint: what was done since is lost, for the cause of the stop."""
        for span in self._found.spans:
            if span.start_s >= checkpoint.at_s and span.doing == "training":
                span.doing, span.cause, span.share = "lost", self._cause, 1.0
        ended = [one for one in self._open if one.kind not in ("slow", "preemption") or one.kind == self._cause]
        for incident in ended[:1]:
            incident.lost_s = self._done_s - checkpoint.done_s
        self._close(ended)
        self._done_s, self._status, self._ended_s = checkpoint.done_s, "training", self.now_s
        del self._saved[self._saved.index(checkpoint) + 1 :]

    def _close(self, incidents: list[Incident]) -> None:
        for incident in incidents:
            incident.end_s = self.now_s
            self._open.remove(incident)

    # What happens meanwhile

    def wait(self) -> None:
        """Let time pass until the next look, or until something happens."""
        if self._status == "away":
            self._spend(WEEK_S, "away", self._cause)
        else:
            self._spend(LOOK_S, self._status, "" if self._status == "training" else self._cause)

    def _spend(self, seconds: int, doing: str, cause: str = "") -> bool:
        """Let time pass, and return whether all of it did.

        It ends early with the week, when the status changes, and, in training, when there is something to see.
        """
        end_s, status = self.now_s + seconds, self._status
        while self.now_s < min(end_s, WEEK_S):
            upto_s = min(end_s, WEEK_S)
            if self._events and self._events[0].at_s <= upto_s:
                upto_s = max(self._events[0].at_s, self.now_s)
            self._book(upto_s, doing, cause)
            while self._events and self._events[0].at_s <= self.now_s:
                self._strike(heapq.heappop(self._events))
            if self._status != status or (self._messages and doing == "training"):
                return False
        return self.now_s >= end_s

    def _book(self, upto_s: int, doing: str, cause: str) -> None:
        """Move the clock, and enter the time into the spans of the week."""
        share = 1.0
        if doing == "training":
            slow = self._slowness()
            share = 1 / max((slow[node] for node in self._nodes if node in slow), default=1.0)
            self._done_s += (upto_s - self.now_s) * share
            self._ended_s = upto_s
        last = self._found.spans[-1] if self._found.spans else None
        if last and (last.doing, last.cause, last.share) == (doing, cause, share):
            last.end_s = upto_s
        elif upto_s > self.now_s:
            self._found.spans.append(Span(self.now_s, upto_s, doing, cause, share))
        self.now_s = upto_s

    def _happens(self, kind: str, node: int) -> None:
        self._open.append(Incident(kind, self.now_s, node))
        self._found.incidents.append(self._open[-1])

    def _strike(self, event: Event) -> None:
        """Let an event happen: to a node, whatever the job does, or to the job."""
        node = self._nodes[event.place] if event.place < len(self._nodes) else -1
        match event.kind:
            case "GPU":
                self._lose_gpu(node, event)
            case "warning":
                self._warned[event.place] = node
                self._messages.append(Message(node, _WARNING))
            case "node" if node not in self._broken:
                self._broken[node] = "node", Message(-1, f"rendezvous: node {node} has not joined")
                self._dead[node] = self.now_s
                self._stick("node", node)
            case "slow":
                self._slow[node] = event.number
                self._happens("slow", node)
            case "blip":
                self._blips[node] = self.now_s + BLIP_S, event.number
            case "network":
                bad_cable = event.number == 1
                if not bad_cable or self._cables.setdefault(event.place, node) == node:
                    self._stop("network", node, _LINK)
            case "hang":
                self._stick("hang", -1)
            case "damage":
                self._saved[-1].whole = len(self._saved) == 1  # what a run starts from stays whole
            case _:
                self._take_away(event)

    def _take_away(self, event: Event) -> None:
        """Let the scheduler take the nodes away and give them back, or the time limit end a collective."""
        if event.kind == "preemption" and self._status == "training":
            self._messages.append(Message(-1, f"slurmstepd: SIGTERM, the nodes are needed in {NOTICE_S} s"))
            self._happens("preemption", -1)
            heapq.heappush(self._events, Event(self.now_s + NOTICE_S, "leave"))
        elif event.kind == "leave":
            self._status, self._cause = "away", "preemption"
            heapq.heappush(self._events, Event(self.now_s + AWAY_S, "return"))
        elif event.kind == "return":
            self._status = "stopped"
            self._messages.append(Message(-1, "slurmctld: the nodes are yours again"))
        elif event.kind == "limit" and self._status == "stuck" and event.number == len(self._found.incidents):
            self._status = "stopped"
            self._messages += [Message(one, _TIMEOUT) for one in self._nodes if one not in self._dead]

    def _lose_gpu(self, node: int, event: Event) -> None:
        """Let a GPU fail, unless its node is down, or it has warned and its node was exchanged since."""
        code, warned = int(event.number) % WARNED, event.number > WARNED
        if node not in self._broken and (not warned or self._warned.get(event.place) == node):
            text = f"{_XID}{code}, {_XIDS[code]}"
            self._broken[node] = "GPU", Message(node, text)
            self._stop("GPU", node, text)

    def _stop(self, kind: str, node: int, text: str) -> None:
        """Let the processes exit, if they train."""
        if self._status != "training":
            return
        self._messages.append(Message(node, text))
        self._happens(kind, node)
        self._status, self._cause = "stopped", kind

    def _stick(self, kind: str, node: int) -> None:
        """Let all processes wait in a collective, until its time limit ends them, if they train."""
        if self._status != "training":
            return
        self._happens(kind, node)
        self._status, self._cause = "stuck", kind
        heapq.heappush(self._events, Event(self.now_s + WATCHDOG_S, "limit", 0, len(self._found.incidents)))

    def week(self) -> Week:
        """Return what became of the week."""
        self._found.goodput = self._done_s / WEEK_S
        return self._found
