"""Which messages does a collective operation send, and what does each rank hold after each step?

Trees, rings and pairwise exchange as in Thakur, Rabenseifner and Gropp, Optimization of Collective Communication
Operations in MPICH, International Journal of High Performance Computing Applications 19(1), 49-66, 2005; the ring
all-reduce as in Patarasuk and Yuan 2009 (https://doi.org/10.1016/j.jpdc.2008.09.002), the barrier as in Hensgen, Finkel
and Manber 1988 (https://doi.org/10.1007/BF01379320), which gloo takes too. Scatter and gather are sent piece by piece
here. Libraries choose among several algorithms: NCCL and gloo may take others.
"""

from collections.abc import Callable
from dataclasses import dataclass

# What one slot holds: the (rank, piece) pairs that were added up in it. Sums are kept as what was added, in order of
# rank, so that nothing can be counted twice unseen.
Slot = tuple[tuple[int, int], ...]
State = tuple[tuple[Slot, ...], ...]  # by rank, by slot


@dataclass(frozen=True)
class Message:
    """What one rank sends to another in a step: from which of its slots into which of the receiver's.

    An empty message has no bytes: that it comes is what the receiver learns.
    """

    sender: int
    receiver: int
    slots: tuple[tuple[int, int], ...]
    add: bool = False  # added to what the receiver holds; else it takes the place of that
    empty: bool = False

    pieces = property(lambda m: 0 if m.empty else len(m.slots), doc="How many pieces of the tensor it carries.")


@dataclass(frozen=True)
class Exchange:
    """One collective operation: its steps, and what all ranks hold before the first and after each."""

    operation: str
    ranks: int
    root: int
    steps: tuple[tuple[Message, ...], ...]
    states: tuple[State, ...]
    results: tuple[tuple[int, ...], ...]  # by rank: the slots that hold its result at the end

    def sent_pieces(self, rank: int) -> int:
        """Return how many pieces a rank sends in all steps."""
        return sum(m.pieces for step in self.steps for m in step if m.sender == rank)


def exchange(operation: str, ranks: int, root: int = 0) -> Exchange:
    """Run `operation` among `ranks` step by step, each rank sending and receiving at most one message a step.

    A tensor has one piece for each rank; in a barrier a slot says instead that its rank is known to be there. `root`
    matters for broadcast, reduce, scatter and gather.
    """
    plan = OPERATIONS[operation]
    steps = tuple(plan.steps(ranks, root))
    states = [_start(plan, ranks, root)]
    for step in steps:
        states.append(_deliver(states[-1], step))
    results = tuple(tuple(plan.result(rank, ranks, root)) for rank in range(ranks))
    return Exchange(operation, ranks, root, steps, tuple(states), results)


def _start(plan: "Plan", n: int, root: int) -> State:
    """Return what each rank holds at first: (own rank, piece) in the slots that are its input."""
    state = []
    for rank in range(n):
        slots = [((rank, piece),) if piece in plan.start(rank, n, root) else () for piece in range(n)]
        own = [((rank, rank),) if piece == rank else () for piece in range(n)]  # its own piece needs no message
        state.append(tuple(slots + own if plan.two_buffers else slots))
    return tuple(state)


def _deliver(state: State, step: tuple[Message, ...]) -> State:
    """Return the state after all messages of a step, which are sent at once: each takes what was there before."""
    after = [list(row) for row in state]
    for message in step:
        for here, there in message.slots:
            held = state[message.receiver][there] if message.add else ()
            after[message.receiver][there] = tuple(sorted(held + state[message.sender][here]))
    return tuple(map(tuple, after))


@dataclass(frozen=True)
class Plan:
    """How an operation runs: its words, its input and result slots, its steps."""

    what: str
    algorithm: str
    steps: Callable[[int, int], list[tuple[Message, ...]]]
    start: Callable[[int, int, int], range]
    result: Callable[[int, int, int], range]
    two_buffers: bool = False
    has_root: bool = False


def _all(rank: int, n: int, root: int) -> range:
    return range(n)


def _own(rank: int, n: int, root: int) -> range:
    return range(rank, rank + 1)


def _all_at_root(rank: int, n: int, root: int) -> range:
    return range(n if rank == root else 0)


def _broadcast(n: int, root: int) -> list[tuple[Message, ...]]:
    """Double the ranks that have the tensor in each step: a binomial tree."""
    whole, reach, steps = tuple((p, p) for p in range(n)), 1, []
    while reach < n:
        senders = range(min(reach, n - reach))
        steps.append(tuple(Message((root + r) % n, (root + r + reach) % n, whole) for r in senders))
        reach *= 2
    return steps


def _back(steps: list[tuple[Message, ...]], *, add: bool) -> list[tuple[Message, ...]]:
    """Return the steps in reverse order, every message going the other way."""
    return [tuple(Message(m.receiver, m.sender, m.slots, add=add) for m in step) for step in reversed(steps)]


def _ring(n: int, first: int, *, add: bool) -> list[tuple[Message, ...]]:
    """Pass each piece once around the ring: at first, each rank sends the piece `first` places before its own."""
    piece = lambda rank, step: (((rank - step - first) % n,) * 2,)  # noqa: E731
    return [tuple(Message(r, (r + 1) % n, piece(r, s), add=add) for r in range(n)) for s in range(n - 1)]


def _scatter(n: int, root: int) -> list[tuple[Message, ...]]:
    """Send one piece a step from the root."""
    return [(Message(root, rank, ((rank, rank),)),) for rank in ((root + s) % n for s in range(1, n))]


def _all_to_all(n: int, root: int = 0) -> list[tuple[Message, ...]]:
    """In step s each rank sends to the one s further on; received pieces go to a second buffer."""
    return [tuple(Message(r, (r + s) % n, (((r + s) % n, n + r),)) for r in range(n)) for s in range(1, n)]


def _barrier(n: int, root: int = 0) -> list[tuple[Message, ...]]:
    """Pass on, with empty messages, who is there: to the next rank, to the second next, to the fourth next, …"""
    reach, steps = 1, []
    while reach < n:
        known = [tuple(((r - back) % n,) * 2 for back in range(reach)) for r in range(n)]
        steps.append(tuple(Message(r, (r + reach) % n, known[r], empty=True) for r in range(n)))
        reach *= 2
    return steps


OPERATIONS: dict[str, Plan] = {
    "broadcast": Plan("every rank gets the tensor of the root", "a tree: in each step those that have it send it on",
                      _broadcast, _all_at_root, _all, has_root=True),
    "reduce": Plan("the root gets the sum", "the tree of broadcast backwards",
                   lambda n, root: _back(_broadcast(n, root), add=True), _all, _all_at_root, has_root=True),
    "all_reduce": Plan("every rank gets the sum",
                       "a ring: each rank sends to the next, first to add up, then to hand on the sums",
                       lambda n, root: _ring(n, 0, add=True) + _ring(n, -1, add=False), _all, _all),
    "all_gather": Plan("every rank gets the pieces of all", "a ring: each rank sends the next what came last",
                       lambda n, root: _ring(n, 0, add=False), _own, _all),
    "reduce_scatter": Plan("rank r gets the sum of piece r", "a ring: each rank adds, and sends to the next",
                           lambda n, root: _ring(n, 1, add=True), _all, _own),
    "scatter": Plan("rank r gets piece r of the root", "one piece a step from the root",
                    _scatter, _all_at_root, _own, has_root=True),
    "gather": Plan("the root gets the pieces of all", "one piece a step to the root",
                   lambda n, root: _back(_scatter(n, root)[::-1], add=False), _own, _all_at_root, has_root=True),
    "all_to_all": Plan("rank r gets piece r of every rank", "pairs: in step s each rank sends to the one s further on",
                       _all_to_all, _all, lambda rank, n, root: range(n, 2 * n), two_buffers=True),
    "barrier": Plan("no rank goes on before all are there", "messages that go twice as far in each step",
                    _barrier, _own, _all),
}  # fmt: skip
