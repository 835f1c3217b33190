"""Further wrong answers to lesson 10, each with what the message must say."""

from course_utils.checks import edit


def _two_stages_a_rank(ranks, micro):
    lines = []
    for rank in range(ranks):
        turns = [("F", rank), ("F", rank + ranks), ("B", rank + ranks), ("B", rank)]
        lines.append(" ".join(f"{stage}{kind}{at}" for kind, stage in turns for at in range(micro)))
    return "\n".join(lines)


# fmt: off
_FORWARD, _INPUT = 'line.append(f"F{early + at}")', "sent += torch.autograd.grad(loss, x, retain_graph=True)"
_WEIGHTS = "loss.backward(inputs=[p for p in stage.parameters() if p.requires_grad])"

WRONG = {
    "write_schedule": [
        ("returns list, expected one text", edit('"\\n".join(lines)', "lines")),
        ("it must be once", edit('f"F{at}"', 'f"F{0}"')),
        ("'f0' on rank 0 is no action such", edit(_FORWARD, 'line.append(f"f{early + at}")')),
        ("has 1 lines and 3 micro-batches, expected 2 and 3", edit("range(ranks)", "range(max(1, ranks - 1))")),
        ("expected 2 and 3", edit("range(micro):", "range(micro := min(micro, 2)):")),
        ("has 2 stages, expected 1: one a rank", _two_stages_a_rank),
        ("rank 0 sends F", edit("range(early)]", "range(early)]\n        line = line[::-1] if rank else line")),
        ("deadlock: rank 0 waits in B0 for B0 of rank 1", edit(
            "lines.append(", 'line = line if ranks < 3 else "F0 B0 F1 B1".split() if rank == 0 else '
            '"F0 F1 B0 B1".split()\n        lines.append(')),
    ],
    "last_rank": [
        ("backward through the graph a second time", edit("x, retain_graph=True", "x")),
        ("raises RuntimeError", edit("if p.requires_grad]", "]")),
        ("raises RuntimeError", edit(".requires_grad_()", "")),
        ("weights before W", edit(_INPUT, "loss.backward(retain_graph=True); sent.append(x.grad)", _WEIGHTS, "pass")),
        ("goes forward before W is done", edit(
            "held, sent = {}, []", "held, sent, late = {}, [], []",
            "loss = held.pop(at)[1]\n            loss.backward(",
            "late.append(held.pop(at)[1])\n    for loss in late:\n        loss.backward(")),
        ("gradients of the weights: those of the mean", edit("int(action[1:])", "int(action[1])")),
        ("expected", edit("sent += ", "sent += [x] or ")),
    ],
}
