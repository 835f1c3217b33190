"""Does no test judge by seconds? What reads a clock of the machine, or waits for less than a minute, is refused."""

import ast

import pytest

from tests.notebooks import walls

CLOCKS = {
    "clock_gettime", "cpu_times", "default_timer", "getrusage", "monotonic", "monotonic_ns", "perf_counter",
    "perf_counter_ns", "process_time", "process_time_ns", "thread_time", "thread_time_ns", "time_ns", "timeit",
}  # fmt: skip
MAY = {"tests/waiting.py", "tests/notebooks/on_face.py"}  # the second prints how long each cell took
WAITS = {"communicate", "join", "wait"}  # methods whose first argument says for how long
LEAST_S = 60
TEXTS = {path: text for path, text in walls.texts("tests").items() if path not in MAY}


def hasty(text: str) -> list[str]:
    """Return the lines that read a clock, or wait for less than a minute: then a busy machine decides."""
    lines, nodes = text.splitlines(), ast.walk(ast.parse(text))
    return [lines[at - 1].strip() for at in sorted({node.lineno for node in nodes if reads(node) or is_short(node)})]


def reads(node: ast.AST) -> bool:
    """Return whether a node names a clock of the machine: `time.time`, or one of `CLOCKS` of whatever module."""
    if isinstance(node, ast.ImportFrom):
        return any(one.name in CLOCKS or (node.module, one.name) == ("time", "time") for one in node.names)
    if isinstance(node, ast.Attribute):
        return node.attr in CLOCKS or ast.unparse(node) == "time.time"
    return isinstance(node, ast.Name) and node.id in CLOCKS


def is_short(node: ast.AST) -> bool:
    """Return whether a node is a call that waits for less than a minute. The limits of `launch` are what is tested."""
    if not isinstance(node, ast.Call):
        return False
    names = {"timeout", "timeout_s"} if ast.unparse(node.func) == "children.run" else {"timeout"}
    given = [one.value for one in node.keywords if one.arg in names]
    if isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
        given += node.args[:1]
    numbers = [one.value for one in given if isinstance(one, ast.Constant)]
    return any(isinstance(number, int | float) and number < LEAST_S for number in numbers)


def test_no_test_reads_a_clock_or_waits_for_less_than_a_minute():
    assert len(TEXTS) > 100
    assert [f"{path}: {line}" for path, text in TEXTS.items() for line in hasty(text)] == []


@pytest.mark.parametrize("line", [
    "assert time.perf_counter() - begin < 5", "begin = time.time()", "from time import monotonic as now",
    "import time as t; begin = t.process_time()", "while timeit.default_timer() < end: pass", "x = perf_counter()",
    "from time import time", "cost = timeit.timeit(work)", "spent = psutil.Process().cpu_times().user",
    "thread.join(5)", "assert event.wait(0.5)", "process.communicate(timeout=30)", "subprocess.run(command, timeout=1)",
    "answer = queue.get(timeout=10)", "done = children.run('-c', code, timeout_s=20)",
])  # fmt: skip
def test_a_line_that_a_busy_machine_decides_is_refused(line):
    assert hasty(f"work()\n{line}\nwork()") == [line]


@pytest.mark.parametrize("line", [
    "until(lambda: not left)", "process.wait(60)", "thread.join()", "words = ', '.join(found)", "time.sleep(600)",
    "assert clock.now_s == 3", "launch(work, timeout_s=0.5)", "monkeypatch.setattr(time, 'monotonic', lambda: 0.0)",
])  # fmt: skip
def test_a_line_that_no_machine_decides_is_not(line):
    assert hasty(line) == []
