"""Further wrong answers to lesson 14, each with what the message must say."""

import torch


def _prints_first(x, limit):
    print("clipping")
    centred = x - x.mean()
    return centred * (limit / centred.norm().clamp(min=limit))


def _decides(x, limit):
    centred = x - x.mean()
    return centred if centred.norm() <= limit else centred * (limit / centred.norm())


def _runs_eagerly(function, batches, backend):
    return [function(batch) for batch in batches]


def _lets_pytorch_find_out(function, batches, backend):
    compiled = torch.compile(function, backend=backend)
    return [compiled(batch) for batch in batches]


def _keeps_both(linear, norm):
    return torch.nn.Sequential(linear, norm)


def _scales_in_place(linear, norm):
    from gpu_course import lesson14

    folded = lesson14.fold.reference(linear, norm)
    with torch.no_grad():
        linear.weight.copy_(folded.weight)
    return folded


@torch.compiler.disable
def _is_never_compiled(x, limit):
    centred = x - x.mean()
    return centred * (limit / centred.norm().clamp(min=limit))


WRONG = {
    "clip": [
        ("nothing of it is compiled", _is_never_compiled),
        ('the graph breaks at: print("clipping")', _prints_first),
        ("the graph breaks at: return centred if centred.norm() <= limit else", _decides),
    ],
    "one_graph": [
        ("`backend` gets no graph", _runs_eagerly),
        ("is compiled twice", _lets_pytorch_find_out),
    ],
    "fold": [
        ("expected one nn.Linear", _keeps_both),
        ("both modules stay as they are", _scales_in_place),
    ],
}
