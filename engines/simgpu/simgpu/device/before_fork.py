"""Work done once before ranks with a simulated GPU are forked.

Autocast's fallback changes PyTorch's table of each operator: every rank would have to copy all of them.
"""

from simgpu.device import dispatcher, ranks

__all__ = ["ranks"]  # imported for the ranks, with all that it imports itself

dispatcher.register_autocast()
