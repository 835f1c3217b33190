"""What does a program learn of a simulated GPU that it asks for its properties?"""

import hashlib
import uuid
from dataclasses import dataclass, field

from simgpu.device import state
from simgpu.machine.gpus import GPU

# Streaming multiprocessors, as torch.cuda reports them. A100, H100: https://notes.haroldbenoit.com/ML/Engineering/GPUs/Hardware.
# V100: https://hmc-tech.com/gpu/nvidia_v100-vs-nvidia_t40. T4: https://huggingface.co/RajBhope/gpu-runtime-predictor.
# L40S and RTX 3090: their shaders, 18,176 and 10,496, in https://hmc-tech.com/gpu/nvidia-l40s-vs-nvidia-t40 and in
# https://huggingface.co/spaces/lambdabrendan/Lambda-LLM-Calculator, 128 to a multiprocessor.
_MULTIPROCESSORS = {
    "T4": 40, "V100 SXM2 16GB": 80, "V100 SXM2 32GB": 80, "A100 40GB": 108, "A100 80GB": 108, "L40S": 142,
    "H100 SXM": 132, "RTX 3090": 82,
}  # fmt: skip


@dataclass(frozen=True)
class Properties:
    """What `torch.cuda.get_device_properties` returns; an attribute that no data sheet tells raises AttributeError."""

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


def memory_bytes(spec: GPU) -> int:
    """Return the memory of a GPU as its driver reports it where that is published, else by its name, in bytes."""
    return (spec.memory_mib or spec.memory_gb * 1024) * 2**20


def _threads_of(major: int, minor: int) -> int:
    """Return how many threads a multiprocessor of this compute capability holds, by the CUDA programming guide."""
    if (major, minor) == (7, 5):
        return 1024
    return 1536 if major == 12 or (major, minor) in ((8, 6), (8, 9)) else 2048


def of(index: int) -> Properties:
    """Return the properties of simulated GPU `index`."""
    spec, gpu = state.world.clock.rates.spec, state.world.memory.gpus[index]
    major, minor = spec.compute_capability or (0, 0)
    known = {"multi_processor_count": _MULTIPROCESSORS[spec.name]} if spec.name in _MULTIPROCESSORS else {}
    known["max_threads_per_multi_processor"] = _threads_of(major, minor)
    digest = hashlib.md5(f"simgpu {spec.name} {index}".encode(), usedforsecurity=False).digest()
    return Properties(f"Simulated {spec.name}", major, minor, gpu.capacity_bytes, uuid.UUID(bytes=digest), known=known)
