"""Further wrong answers to lesson 06, each with what the message must say."""

from torch.profiler import schedule

from gpu_course.checks import edit

# fmt: off
_KEPT = "loss.detach()"
_STEP = "optimizer.step()"
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
    ],
    "idle_gaps": [
        ("is None", edit("return gaps", "gaps.sort()")),
        ("raises ValueError", edit(', default=""', "")),
        ("modifies its input", edit("kernels = sorted(", "events.sort(key=lambda e: e['ts']); kernels = sorted(")),
    ],
    "at_most": [
        ("raises KeyError", edit("idle_ms[cause] for cause in removed", "idle_ms[cause + ' '] for cause in removed")),
    ],
    "diagnose": [
        ("returns no dict", _says_nothing),
        ("case 4: no cause is named", _half_of_them),
        ("case 1: copies is not what keeps it back", _everything),
        ("case 7: slow is none of the causes", edit('7: {"none"}', '7: {"slow"}')),
        ("case 1: none is not what keeps it back", edit('{"tiny operators"}', '{"none"}')),
    ],
    "repair_reads": [
        ("does more than before", edit(_KEPT, "F.cross_entropy(model(x / 255), y).detach()")),
        ("is slow for another reason", edit(_STEP, f"{_STEP}; [loss.detach() * 1 for _ in range(200)]")),
    ],
    "repair_both": [
        ("does not read the clock twice", edit("(clock() - begin_ms) / (len(losses) - 1)", "0.275",
                                               "begin_ms = clock()", "pass")),
        ("starts the clock while the GPU is still busy", edit(_CLOCK, "            begin_ms = clock()\n")),
        ("leaves out more than the first step", edit("if number == 0", "if number == 1")),
        ("does not return a tuple of three", edit(", step_ms\n", "\n")),
    ],
}
