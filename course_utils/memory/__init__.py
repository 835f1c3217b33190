"""Which bytes are alive, at the peak, and whose are they? What happens under a budget?

    measured = memory.measure(train)                                         # on DEVICE
    ahead = simgpu.forecast(make_model, make_batch, torch.optim.AdamW)       # nothing is allocated
    print(memory.reconcile(ahead.memory, measured))

    with memory.budget("64 MiB"):                                            # the operation that goes over raises
        train()

    with memory.watch():                                                     # note where tensors are made
        train()
    print(memory.census())                                                   # what is alive now

While something measures, PyTorch does not take the fused path of `nn.TransformerEncoderLayer` in evaluation.
All sizes are bytes of storages: views share one, and a storage lives as long as anything, autograd included, holds it.
"""

from course_utils.memory.budgets import Budget, budget
from course_utils.memory.live import Census, census, watch
from course_utils.memory.measurements import Alive, Measured, measure
from course_utils.memory.reconciled import Reconciled, reconcile
from simgpu.accounting.ledger import OWNERS, Moment, Parts

__all__ = [
    "OWNERS", "Alive", "Budget", "Census", "Measured", "Moment", "Parts", "Reconciled", "budget", "census", "measure",
    "reconcile", "watch",
]  # fmt: skip
