"""Check of shards on ranks against what one process holds."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def sharded_over(model: nn.Module, mesh: DeviceMesh) -> bool:
    """Return whether each parameter of `model` is sharded over `mesh`, which is told by its name from any other."""
    return all(isinstance(value, DTensor) and value.device_mesh == mesh for value in model.parameters())
