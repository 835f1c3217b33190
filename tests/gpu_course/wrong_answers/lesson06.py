"""Further wrong answers to lesson 06, each with what the message must say."""

from torch.profiler import schedule


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
    ],
    "diagnose": [
        ("returns no dict", _says_nothing),
        ("case 4: no cause is named", _half_of_them),
        ("case 1: copies is not what keeps it back", _everything),
    ],
}
