"""Machine that a program runs on: a GPU, the host that feeds it, and the link to other GPUs."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from simgpu.machine import gpus, hosts
from simgpu.machine.cluster import Cluster
from simgpu.machine.hosts import Host
from simgpu.machine.rates import Costs, Rates


@dataclass(frozen=True)
class Machine:
    """A GPU, its host, and where several exchange messages their `link`: all that the clock takes times from.

    `gpu` is a row of `gpus`, `host` one of `hosts`. `costs` are what the time model adds to the data sheet.
    """

    gpu: gpus.GPU
    host: Host = hosts.DEFAULT
    link: Cluster | None = None
    costs: Costs = field(default_factory=Costs)

    @classmethod
    def of(cls, gpu: "str | gpus.GPU", host: "str | Host" = hosts.DEFAULT, costs: Costs | None = None) -> "Machine":
        """Return the machine with a GPU and a host, each a row or its name. Raises TypeError or ValueError."""
        row = gpu if isinstance(gpu, gpus.GPU) else gpus.get(gpu, "gpu")
        return cls(row, hosts.get(host), costs=costs or Costs())

    @cached_property
    def rates(self) -> Rates:
        """The rates that kernels of the GPU reach."""
        return Rates(self.gpu, self.costs)

    @property
    def usual_costs(self) -> bool:
        """Whether the costs of the GPU are those that were compared with published times."""
        return self.costs == Costs()

    @property
    def caveat(self) -> str:
        """What is not stated of the GPU that its times would depend on, in a sentence, or nothing."""
        if not self.costs.limits or self.gpu.limited_by_power:
            return ""
        of_chip = self.gpu.power_w is not None
        lacks = f"operations a watt of {self.gpu.generation.name}" if of_chip else f"watts of the {self.gpu.name}"
        return f"the {lacks} are not stated: power limits no product here, as it may on the real card"

    def with_gpu(self, gpu: gpus.GPU) -> "Machine":
        """Return the same machine with another GPU, also at its links."""
        return replace(self, gpu=gpu, link=self.link and replace(self.link, gpu=gpu.name))
