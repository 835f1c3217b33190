"""Training of one small model in several ways, for tests: by one process, and on ranks by what PyTorch has for it.

Each function returns the losses, and by name the parameters and gradients after three steps. The model has tied
weights, sizes that no number of ranks divides, a frozen layer, and blocks that can be split.
"""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

with contextlib.suppress(ImportError):  # where simgpu is installed alone, no test starts ranks
    from ranklaunch import preload, rank_device

    preload("torch._dynamo")  # else each of the first ranks imports it, by the first step of an optimizer

WIDTH, WORDS, BATCH, STEPS = 8, 13, 8, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.uneven = nn.Linear(WIDTH, 7)
        self.back = nn.Linear(7, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.back(self.uneven(self.frozen(x))))


def made(blocks: int = 2) -> Model:
    torch.manual_seed(0)
    return Model(blocks)


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (BATCH, 5), generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), x.roll(1, 1).flatten())


def _whole(value: torch.Tensor | None) -> torch.Tensor | None:
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return None if value is None else value.detach().cpu()


def train(model: nn.Module, data, plain: nn.Module | None = None, **options) -> dict:
    """Train for three steps on what `data(step)` gives and return parameters and gradients, whole, by name."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, data(step)).backward()
        optimizer.step()
    found = {}
    for name, parameter in (plain or model).named_parameters():
        found[name], found[f"{name}.grad"] = _whole(parameter), _whole(parameter.grad)
    return found


def one_process() -> dict:
    return train(made(), batch)


def shared(way: str, device: torch.device, blocks: int = 2) -> nn.Module:
    """Return the model shared by "ddp", "fsdp", "tensor", or "both" of the last two, these on 2 x 2 ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, n = made(blocks).to(device), dist.get_world_size()
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
    if way == "both":
        mesh = init_device_mesh(device.type, (2, n // 2), mesh_dim_names=("fsdp", "tensor"))
    else:
        mesh = init_device_mesh(device.type, (n,), mesh_dim_names=(way,))
    if way != "fsdp":
        for block in model.blocks:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if way != "tensor":
        for block in model.blocks:
            fully_shard(block, mesh=mesh["fsdp"])
        fully_shard(model, mesh=mesh["fsdp"])
    return model


def foreach(way: str) -> bool | None:
    """Of plain tensors and DTensors together PyTorch's foreach optimizers say that they do not take them."""
    return False if way == "tensor" else None


def trained(way: str) -> dict:
    """Train it; tensor parallel ranks get the same batch, others a part of it."""
    model = shared(way, rank_device())
    parts = {"tensor": 1, "both": 2}.get(way, dist.get_world_size())
    at = dist.get_rank() * parts // dist.get_world_size()

    def mine(step: int) -> torch.Tensor:
        return batch(step)[at * BATCH // parts : (at + 1) * BATCH // parts].to(rank_device())

    return train(model, mine, plain=getattr(model, "module", model), foreach=foreach(way))


# ---- pipelines: as many equal layers as ranks and schedules need, one or two stages a rank --------------------------


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def pipeline_alone(count: int = 4, micro: int = 4) -> dict:
    model = nn.Sequential(*layers(count))
    return _train_stages({0: model}, lambda step: _pass(model, step, micro))


def _points(step: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))


def _pass(model: nn.Module, step: int, micro: int) -> None:
    for part in _points(step).chunk(micro):
        (F.mse_loss(model(part), part) / micro).backward()


def _train_stages(stages: dict[int, nn.Module], run) -> dict:
    parameters = [p for stage in stages.values() for p in stage.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        run(step)
        optimizer.step()
    return {
        f"{first + int(at)}.{name}{end}": value.detach().cpu()
        for first, stage in stages.items()
        for at, layer in stage.named_children()
        for name, parameter in layer.named_parameters()
        for end, value in (("", parameter), (".grad", parameter.grad))
    }


def pipeline(name: str, micro: int = 4) -> dict:
    """A schedule of torch.distributed.pipelining; those that interleave have two stages a rank."""
    from torch.distributed import pipelining

    rank, n, device = dist.get_rank(), dist.get_world_size(), rank_device()
    kind = getattr(pipelining, f"Schedule{name}")
    several = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
    all_layers = layers(2 * n if several else n)
    if not several:
        mine = [rank]
    else:
        mine = [rank, 2 * n - 1 - rank] if "ZBV" in name or "DualPipeV" in name else [rank, n + rank]
    modules = {at: nn.Sequential(all_layers[at]).to(device) for at in mine}
    stages = [pipelining.PipelineStage(module, at, len(all_layers), device) for at, module in modules.items()]
    schedule = kind(stages if several else stages[0], micro, loss_fn=F.mse_loss)

    def run(step: int) -> None:
        points = _points(step).to(device)
        first, final = 0 in mine, len(all_layers) - 1 in mine
        schedule.step(*([points] if first else []), **({"target": points, "losses": []} if final else {}))

    return _train_stages(modules, run)
