"""Further wrong answers to lesson 06, each with what the message must say."""

from torch.profiler import schedule

from gpu_course.checks import edit

# fmt: off
_KEPT, _MEAN = "loss.detach()", "torch.stack(losses).mean().item()"
_STEP, _GAPS = "optimizer.step()", "gaps.append((until, begin - until, max(spent, key=spent.get)))"
_CLOCK = "            synchronize()\n            begin_ms = clock()\n"


def _a_list(first, last):
    return [step for step in range(first, last + 1)]


def _a_bool(first, last):
    return lambda step: first <= step <= last


def _never_saves(first, last):
    ours = schedule(wait=first - 1, warmup=1, active=last - first + 2, repeat=1)
    return lambda step: ours(step if step <= last else 10**6)


def _says_nothing():
    return None


def _half_of_them():
    return {number: {"loader"} for number in (1, 2, 3)}


def _everything():
    return {number: {"loader", "copies", "tiny operators", "synchronisation", "host work"} for number in range(1, 8)}


WRONG = {
    "record_steps": [
        ("returns no schedule", _a_list),
        ("returns no ProfilerAction", _a_bool),
        ("does not hand the profile over", _never_saves),
        ("raises", edit("wait=first - 1", "wait=-1")),
        ("the result is '-----wRRR", edit("first - 1", "first - 1 + (first > 4)")),
    ],
    "idle_gaps": [
        ("entries", edit("if begin > until:", "if begin >= until:")),
        ("is 5.5, expected 5.0", edit("begin - until, max(spent", "begin - until + 0.5, max(spent")),
        ("is of type tuple, expected str", edit("max(spent, key=spent.get)", "spent.most_common(1)[0]")),
        ("is None", edit("return gaps", "gaps.sort()")),
        ("entries", edit("return gaps", "return gaps[-1:]")),
        ("[0] is 5.0, expected 0.0", edit(_GAPS, "gaps.append((begin - until, until, max(spent, key=spent.get)))")),
        ("modifies its input", edit("kernels = sorted(", "events.sort(key=lambda e: e['ts']); kernels = sorted(")),
        ("expected 4.0", edit("(end_us, end_us)", "(max(e['ts'] + e['dur'] for e in events),) * 2")),
        ("train.py:2", edit("max(spent, key=spent.get)", "min(spent, key=spent.get)")),
    ],
    "share_of_time": [
        ("of type list, expected dict", edit("return shares", "return [shares[cat] for cat in shares]")),
        ("is 0.12, expected 0.125", edit("busy / end_us", "round(busy / end_us, 2)")),
        ("is 0.2, expected 0.625", edit("max(0.0, end - max(begin, until))", "end - max(begin, until)")),
        ("is 0.875", edit("busy / end_us", "1 - busy / end_us")),
        ("3 entries, expected 1", edit('{e["cat"] for e in events}', '("kernel", "copy", "host")')),
        ("expected 0.79", edit("busy += max(0.0, end - ", "busy += max(0, int(end) - ")),
        ("is 0.0, expected 0.125", edit('e["cat"] == cat)', 'e["name"] == cat)')),
    ],
    "at_most": [
        ("raises KeyError", edit("idle_ms[cause] for cause in removed", "idle_ms[cause + ' '] for cause in removed")),
        ("is 1.2, expected 1.25", edit("total_ms / (", "round(total_ms / (", "removed))", "removed)), 1)")),
        ("expected 2.5", edit("removed)", "removed[:1])")),
        ("expected 2.0", edit("total_ms - sum", "total_ms + sum")),
    ],
    "diagnose": [
        ("returns no dict", _says_nothing),
        ("case 4: no cause is named", _half_of_them),
        ("case 1: copies is not what keeps it back", _everything),
        ("case 7: slow is none of the causes", edit('7: {"none"}', '7: {"slow"}')),
        ("case 1: none is not what keeps it back", edit('{"tiny operators"}', '{"none"}')),
        ("case 6: that is not all", edit('6: {"loader", "synchronisation"}', '6: {"synchronisation"}')),
        ("without it at most", edit('2: {"synchronisation"}', '2: {"synchronisation", "tiny operators"}')),
    ],
    "repair_reads": [
        ("moves the synchronisation", edit(_KEPT, "loss.detach().tolist()", _MEAN, "sum(losses) / len(losses)")),
        ("moves the synchronisation", edit(_STEP, f"{_STEP}; torch.accelerator.synchronize()")),
        ("moves the synchronisation", edit(_STEP, f"{_STEP}; print(f'{{loss:.3f}}')")),
        ("is faster by doing less", edit("in photos", "in list(photos", "True):", "True))[:4]:")),
        ("is faster by doing less", edit("model(x / 255), y", "model(x[::2] / 255), y[::2]")),
        ("is faster by doing less", edit(_STEP, f"{_STEP} if len(losses) % 2 else None")),
        ("does more than before", edit(_KEPT, "F.cross_entropy(model(x / 255), y).detach()")),
        ("changes the result", edit("x / 255", "x / 256 - 0.5")),
        ("is of type Tensor", edit(".item()", "")),
        ("is slow for another reason", edit(_STEP, f"{_STEP}; [loss.detach() * 1 for _ in range(200)]")),
    ],
    "repair_both": [
        ("does not read the clock twice", edit("(clock() - begin_ms) / (len(losses) - 1)", "0.275",
                                               "begin_ms = clock()", "pass")),
        ("starts the clock while the GPU is still busy", edit(_CLOCK, "            begin_ms = clock()\n")),
        ("leaves out more than the first step", edit("if number == 0", "if number == 1")),
        ("leaves a cause as it is: loader", edit("num_workers=8", "num_workers=1")),
        ("does not return a tuple of three", edit(", step_ms\n", "\n")),
        ("is 0.000", edit("/ (len(losses) - 1)", "/ (len(losses) - 1) / 1000")),
        ("[1] is 0.05", edit("largest = torch.maximum(largest, p.grad.abs().max())", "largest = p.grad.abs().max()")),
        ("[1] is 0.06", edit("p.grad.abs().max()", "p.grad.max()")),
    ],
}
