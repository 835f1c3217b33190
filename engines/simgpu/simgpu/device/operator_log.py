"""Log of the kernels that operators would start on a GPU, whatever device their tensors are on."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from simgpu.clock.events import Log
from simgpu.device import collectives
from simgpu.device.operators import Plan
from simgpu.ground import composite, nodes
from simgpu.ground.quiet import Meter
from simgpu.ground.surroundings import Surroundings
from simgpu.ground.torch_internals import Args, Kwargs, Operator
from simgpu.machine.prices import Cost, price, price_of_copy


class OperatorLog(Meter, composite.Mode):
    """While it is entered, `log` grows by the kernels of the operators, in the current `stream` (GPU, number)."""

    def __init__(self) -> None:
        super().__init__()
        self.log, self._surroundings = Log(), Surroundings()
        self.stream = 0, 0

    def __torch_dispatch__(self, func: Operator, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        if any(kind.__name__ in ("DTensor", "AsyncCollectiveTensor") for kind in types):
            return NotImplemented  # PyTorch asks again for the tensors inside
        if collectives.is_one(func):
            return func(*args, **kwargs)  # which is noted
        if func.namespace == "prim":  # a question, such as the device of a tensor
            return func(*args, **kwargs)
        if self.quiet:
            return func(*args, **kwargs)
        plan = Plan.of(func)
        for kind in nodes.begun():
            self.log.called(kind)
        if plan.composite:
            with self:
                return composite.take_apart(func, args, kwargs)
        result = func(*args, **kwargs)
        if plan.row.memory_only or plan.name == "lift_fresh":
            return result
        if func.is_view:
            self.log.called("view")
        else:
            self._add(plan, args, kwargs, result)
        return result

    def _add(self, plan: Plan, args: Args, kwargs: Kwargs, result: Any) -> None:
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        adds = plan.name == "add_" and type(args[1]) is int and inputs[0].is_floating_point()
        if (adds or plan.name.startswith("_foreach")) and not any(tensor.dim() for tensor in inputs):
            return  # an optimizer counts its steps on the host
        if any(tensor.layout is not torch.strided for tensor in (*inputs, *outputs)):
            return  # the account of memory refuses it, in its own words
        before = {tensor.untyped_storage()._cdata for tensor in inputs}
        if not plan.mutates and all(tensor.untyped_storage()._cdata in before for tensor in outputs):
            if outputs:
                self.log.called("view")
            return  # nothing new was written
        recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        copies = plan.name in ("copy_", "_to_copy")
        cost = price_of_copy(inputs[-1], outputs[0]) if copies else price(plan, inputs, outputs, args, kwargs, result)
        self.kernel("copy_" if copies else plan.name, cost, recorded)

    def kernel(self, name: str, cost: Cost, recorded: bool = False) -> None:
        """Note a kernel, and whether autograd records it."""
        bare = self._surroundings.bare(nodes.phase(self.log.stepping, self.log.closure), recorded)
        self.log.kernel(self.stream, name, cost, bare)
