"""Do the ranks hold shards, and do the shards make up what one process holds? The exercises on sharding."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def sharded_over(model: nn.Module, mesh: DeviceMesh) -> bool:
    """Return whether each parameter of `model` is sharded over `mesh`, which is told by its name from any other."""
    return all(isinstance(value, DTensor) and value.device_mesh == mesh for value in model.parameters())
