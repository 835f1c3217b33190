"""Further wrong answers to lesson 10, each with what the message must say."""

import torch


def _two_stages_a_rank(ranks, micro):
    lines = []
    for rank in range(ranks):
        turns = [("F", rank), ("F", rank + ranks), ("B", rank + ranks), ("B", rank)]
        lines.append(" ".join(f"{stage}{kind}{at}" for kind, stage in turns for at in range(micro)))
    return "\n".join(lines)


def _one_large_batch(line, stage, inputs, targets, loss_fn):
    x = torch.cat(inputs).detach().requires_grad_()
    loss_fn(stage(x), torch.cat(targets)).backward()
    parts = x.grad.split([len(part) for part in inputs])
    return [parts[int(word[1:])] for word in line.split() if word[0] == "I"]


WRONG = {
    "write_schedule": [
        ("has 2 stages, expected 1: one a rank", _two_stages_a_rank),
    ],
    "last_rank": [
        ("does not go through the stage by itself", _one_large_batch),
    ],
}
