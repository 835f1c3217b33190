"""What did this code do: how many operators, copies, host reads, FLOPs and messages to other ranks?

    with counting.count() as counts:
        y = model(x.to(device))
    print(counts)

The counts are the same on every machine that runs the program on the same kind of device; times are not. What happens
in the backward pass is counted. Work that other Python threads or processes do is not. While something counts, PyTorch
does not take the fused path of `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` in evaluation.
"""

from course_utils.counting.operators import Copy, Counts, count

__all__ = ["Copy", "Counts", "count"]
