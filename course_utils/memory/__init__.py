"""Which bytes are alive, at the peak, and whose are they? What happens under a budget?

    predicted = memory.estimate(make_model, make_batch, torch.optim.AdamW)   # nothing is allocated
    measured = memory.measure(train)                                         # on DEVICE
    print(memory.reconcile(predicted, measured))

    with memory.budget("64 MiB"):                                            # the operation that goes over raises
        train()

    with memory.watch():                                                     # note where tensors are made
        train()
    print(memory.census())                                                   # what is alive now

While something measures, PyTorch does not take the fused path of `nn.TransformerEncoderLayer` in evaluation.
All sizes are bytes of storages: views share one, and a storage lives as long as anything, autograd included, holds it.
"""

from course_utils.memory.budgets import Budget, budget
from course_utils.memory.estimates import Estimate, Reconciled, estimate, reconcile
from course_utils.memory.live import Census, census, watch
from course_utils.memory.measurements import Alive, Measured, Moment, measure
from simgpu.ledger import OWNERS, Parts

__all__ = [
    "OWNERS", "Alive", "Budget", "Census", "Estimate", "Measured", "Moment", "Parts", "Reconciled", "budget", "census",
    "estimate", "measure", "reconcile", "watch",
]  # fmt: skip
