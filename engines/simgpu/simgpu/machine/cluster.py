"""Time of exchanges between the GPUs of a cluster, by link.

A collective of n ranks takes its latency, and its bytes over a rate. Bytes: what NCCL's own benchmark counts, for an
all-reduce of S bytes 2 (n - 1) / n S, for an all-gather or a reduce-scatter of S bytes in all (n - 1) / n S, for a
broadcast or a reduction to one rank S (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
Between machines a ring uses the adapters of all GPUs at once. An all-to-all, a gather, a scatter and a message between
two ranks do not: what each pair exchanges leaves by the adapter of one GPU ("Alltoall cannot aggregate the bandwidth of
multiple NICs", https://github.com/NVIDIA/nccl-tests/issues/267), while what stays in the machine goes by the link
inside, and the longer of the two counts. So an all-to-all over N machines reaches N / (N - 1) times the rate of one
adapter (https://github.com/NVIDIA/nccl-tests/issues/130).
Rates, latencies, and the choice of ring or tree: the model by which NCCL itself chooses, with its constants
(https://github.com/NVIDIA/nccl/blob/5067397c2676d5aed50042fc39e5c8ee96eb0027/src/graph/tuning.cc, and topo.h beside
it), of which are left out: reductions inside the switches (NVLS, SHARP), the protocol LL128, corrections for single
systems, and what other traffic takes on the same link.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simgpu.ground import arguments
from simgpu.machine import gpus, hosts
from simgpu.machine.hosts import Host


@dataclass(frozen=True)
class Link:
    """A link between machines: GB/s in each direction, for each GPU or for a whole machine."""

    name: str
    gbps: float
    a_machine: bool = False  # its GPUs share it


# 400 Gb/s for each GPU: https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html
LINKS = {"InfiniBand": Link("InfiniBand", 50.0), "Ethernet": Link("Ethernet 100 Gb/s", 12.5, a_machine=True)}

# Latencies in ns, of the protocols LL (data and flag in one word: half the rate) and Simple: of the call, and of a step
_CALL = {"ring": (6600, 8400), "tree": (6800, 8400)}
_STEP = {
    "NVLink": {"ring": (600, 3400), "tree": (600, 4000)},
    "PCIe": {"ring": (1000, 5700), "tree": (1000, 4000)},
    "between": {"ring": (2700, 14000), "tree": (5000, 14000)},
}
_POST = (1000, 3000)  # a step inside a machine takes no less where the ring also leaves it: the host posts messages
_LL_GBPS = {"NVLink": 87.7, "PCIe": 39.0, "between": 19.0}  # at most; NVLink that of Ampere, 141 since Hopper
_PCIE_SHARE = 12.0 / 15.75
_NET_SHARE = 12.0 / 12.5
_TREE_SHARE = 0.92


@dataclass(frozen=True)
class Cluster:
    """Machines with GPUs and the links among them.

    - `gpu`: a row of `gpus`; `per_machine`: so many in each machine, filled in the order of ranks;
    - `inside`: the link in a machine, "NVLink" where the GPU has it (by default where it does), or "PCIe";
    - `between`: the link among machines: a name in `simgpu.LINKS`, or a `simgpu.Link`;
    - `capacity`: memory of each simulated GPU of a launch, small enough to reach;
    - `host`: what the machines' processors take, a row of `hosts` or a `simgpu.Host`.

    Raises TypeError or ValueError that names the argument.
    """

    gpu: str = "H100 SXM"
    per_machine: int = 8
    inside: str = ""
    between: str | Link = "InfiniBand"
    capacity: str | int = "1 GiB"
    host: str | Host = hosts.DEFAULT

    def __post_init__(self) -> None:
        row = gpus.get(self.gpu, "gpu")
        arguments.whole("per_machine", self.per_machine)
        arguments.size_bytes("capacity", self.capacity)
        hosts.get(self.host)
        if self.inside not in ("", "NVLink", "PCIe"):
            raise ValueError(f"inside must be 'NVLink' or 'PCIe', not {self.inside!r}")
        if self.inside == "NVLink" and row.nvlink_gbps is None:
            raise ValueError(f"inside is 'NVLink', which the {self.gpu} does not have")
        if not isinstance(self.between, Link) and self.between not in LINKS:
            raise ValueError(f"between must be a simgpu.Link or one of {list(LINKS)}, not {self.between!r}")

    @property
    def _inside(self) -> str:
        return self.inside or ("PCIe" if gpus.get(self.gpu).nvlink_gbps is None else "NVLink")

    def gbps(self, ranks: Sequence[int]) -> float:
        """Return the rate of a ring through these ranks, in GB/s for each GPU and direction."""
        machines = self.machines(ranks)
        if machines == 1:
            return self._inside_gbps
        here = len(ranks) / machines  # each GPU has a ring that leaves the machine by its own adapter
        leaving = self._adapter_gbps * here
        return leaving if here == 1 else min(self._inside_gbps, leaving)

    @property
    def _inside_gbps(self) -> float:
        """Bandwidth of a GPU to others of its machine."""
        row = gpus.get(self.gpu)
        return (row.bus_gbps or 0) * _PCIE_SHARE if self._inside == "PCIe" else row.peer_gbps or 0

    @property
    def _adapter_gbps(self) -> float:
        """Bandwidth of a GPU to other machines, by its own adapter or its share of the machine's."""
        link = self.between if isinstance(self.between, Link) else LINKS[self.between]
        return link.gbps * _NET_SHARE / (self.per_machine if link.a_machine else 1)

    def machines(self, ranks: Sequence[int]) -> int:
        """Return over how many machines these ranks spread."""
        return len({rank // self.per_machine for rank in ranks})

    def cost(self, kind: str, nbytes: int, ranks: Sequence[int]) -> tuple[int, str]:
        """Return how many ns an operation takes among `ranks`, and by which algorithm: "ring" or "tree".

        `kind` is its name in torch.distributed, `nbytes` a rank's own part as `counting` counts it: what it gives, or
        gets from a scatter. Where the parts differ, the largest one says how long all of them take.
        """
        n = len(ranks)
        if n < 2:
            return 0, "ring"
        steps, links = _WORK.get(kind, _MESSAGE)(n)[1], self._links(kind, ranks)
        return min(
            (math.ceil(self._latency(way, how, steps, ranks) + _ns(nbytes, way, how, links)), way)
            for way in ("ring", "tree")[: 1 + (kind == "all_reduce")]
            for how in range(2)
        )

    def _links(self, kind: str, ranks: Sequence[int]) -> list[tuple[float, float, float]]:
        """Return the links that an operation uses at once: its bytes over each, for each byte of a rank's own part,
        the rate in GB/s, and the highest one with the protocol LL."""
        share, machines = _WORK.get(kind, _MESSAGE)(len(ranks))[0], Counter(rank // self.per_machine for rank in ranks)
        if len(machines) == 1:
            return [(share, self._inside_gbps, _LL_GBPS[self._inside])]
        if kind not in _BY_PAIRS:
            return [(share, self.gbps(ranks), _LL_GBPS["between"])]
        n, here = len(ranks), min(machines.values())  # who has the fewest neighbours sends most to other machines
        leaving = share * (n - here) / (n - 1)
        return [
            (leaving, self._adapter_gbps, _LL_GBPS["between"]),
            (share - leaving, self._inside_gbps, _LL_GBPS[self._inside]),
        ]

    def _latency(self, way: str, how: int, steps: int, ranks: Sequence[int]) -> int:
        """Return in ns how long the call and its steps take without any bytes."""
        machines, call = self.machines(ranks), _CALL[way][how]
        inside, between = (_STEP[link][way][how] for link in (self._inside, "between"))
        if way == "tree":
            return call + 2 * round((len(ranks) / machines - 1) * inside + math.log2(machines) * between)
        if machines == 1:
            return call + steps * inside
        leaving = steps if len(ranks) == machines else steps // (len(ranks) - 1) * (machines - 1)
        return call + (steps - leaving) * max(inside, _POST[how]) + leaving * between


def _ns(nbytes: int, way: str, how: int, links: list[tuple[float, float, float]]) -> float:
    """Return how long the bytes take, with the protocol LL (`how` is 0) or Simple (1): as long as the slowest link."""
    full = _TREE_SHARE if way == "tree" else 1.0
    half = _TREE_SHARE / 3.8 if way == "tree" else 0.5
    return max(nbytes * share / (rate * full if how else min(rate * half, most)) for share, rate, most in links)


_BY_PAIRS = ("all_to_all", "gather", "scatter", "send", "receive")
_MESSAGE = lambda n: (1, 1)  # noqa: E731  # one step, all bytes
_WORK: dict[str, Any] = {  # of n ranks: bytes over the link for each of a rank's own part, and steps
    "all_reduce": lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
    "all_gather": lambda n: (n - 1, n - 1),
    "reduce_scatter": lambda n: ((n - 1) / n, n - 1),
    "all_to_all": lambda n: ((n - 1) / n, n - 1),
    "gather": lambda n: (n - 1, n - 1),
    "scatter": lambda n: (n - 1, n - 1),
    "broadcast": lambda n: (1, n - 1),
    "reduce": lambda n: (1, n - 1),
    "barrier": lambda n: (0, 2 * (n - 1)),
}
