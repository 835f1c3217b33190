"""Device properties of a simulated GPU."""

import hashlib
import uuid
from dataclasses import dataclass, field

from simgpu.device import state


@dataclass(frozen=True)
class Properties:
    """Result of `torch.cuda.get_device_properties`; AttributeError for what no data sheet states."""

    name: str
    major: int
    minor: int
    total_memory: int  # bytes
    uuid: uuid.UUID
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""
    known: dict[str, int] = field(default_factory=dict, repr=False)

    def __getattr__(self, name: str) -> int:
        known = self.__dict__.get("known", {})
        if name in known:
            return known[name]
        raise AttributeError(f"the simulated GPU has no property {name!r}: its data sheet does not tell it")

    def __repr__(self) -> str:
        known = "".join(f", {name}={value}" for name, value in self.known.items())
        memory = f"total_memory={self.total_memory // 2**20}MB"
        return f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, {memory}{known})"


def of(index: int) -> Properties:
    """Return the properties of simulated GPU `index`."""
    spec, gpu = state.world.clock.machine.gpu, state.world.memory.gpus[index]
    major, minor = spec.compute_capability or (0, 0)
    stated = {"multi_processor_count": spec.multiprocessors, "max_threads_per_multi_processor": spec.generation.threads}
    known = {name: value for name, value in stated.items() if value is not None}
    digest = hashlib.md5(f"simgpu {spec.name} {index}".encode(), usedforsecurity=False).digest()
    return Properties(f"Simulated {spec.name}", major, minor, gpu.capacity_bytes, uuid.UUID(bytes=digest), known=known)
