"""Does the report name each habit in its line, in three styles of program, and say nothing of sound programs?"""

import contextlib
import io
import json
import linecache
import os
import re
import tempfile
import threading
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import simgpu
from simgpu.ground import turns
from simgpu.reports import own_work, session
from simgpu.reports.limits import limit
from simgpu.reports.rules import RULES
from tests import children
from tests.simgpu.rule_programs import BAD, GOOD, STYLES, edited
from tests.simgpu.simulated import read_programs
from tools import notebooks

PROGRAMS = tomllib.loads((Path(__file__).parent / "programs.toml").read_text(encoding="utf-8"))["program"]
PROGRAMS = [one for one in PROGRAMS if one.get("since", "2.10") <= torch.__version__]  # what older ones do otherwise
CASES = [  # each bad program in one of the three styles, and once a week in all
    pytest.param(style, code, edit, marks=[pytest.mark.slow] * ((at + number) % len(STYLES) > 0))
    for number, style in enumerate(STYLES)
    for at, (code, edit) in enumerate((code, edit) for code, edits in BAD.items() for edit in edits)
]


def reported(text, folder, name, data_ms=0.01, gpu="T4", ended=False, **names):
    """Run a program on CUDA's face of a `gpu`, in this process, with these names known, and return its report.

    A batch of a loader takes `data_ms`; None: what it takes here. The report is made before the session ends, or after.
    """
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    linecache.checkcache()
    with simgpu.cuda(gpu, record=True, data_ms=data_ms) as session:
        teacher = nn.Linear(16, 4).cuda()
        with contextlib.redirect_stdout(io.StringIO()):
            known = {"TEACHER": teacher, "BACK": torch.randn(4, 16).cuda(), "KEPT": [], "LOGS": {}}
            exec(compile(text, str(path), "exec"), {"__name__": "program", **known, **names})
        report = None if ended else session.report()
    return report or session.report()


@pytest.mark.parametrize(("style", "code", "edit"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_program_is_named_in_its_line_among_the_first_three(tmp_path, style, code, edit):
    *edits, named = edit
    report = reported(edited(style, *edits), tmp_path, "train", gpu="A100 80GB" if code == "odd-rows" else "T4")
    first = {one.code: one for one in report.suspects[:3]}
    assert code in first, f"{[(one.code, str(one)) for one in report.suspects]}"
    assert named in first[code].source and first[code].text
    others = [one for one in report.suspects if one.about == "result" and one.code != code]
    assert not others, "no other habit that spoils results is claimed"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("change", GOOD)
def test_a_good_program_gets_no_remark_of_any_rule(tmp_path, style, change):
    gpu = "A100 80GB" if change.startswith("odd-rows") else "T4"
    report = reported(edited(style, *GOOD[change]), tmp_path, "train", gpu=gpu)
    assert [(one.code, str(one)) for one in report.suspects] == []


@pytest.mark.parametrize(("name", "line", "habit"), [("ranks", 17, 14), ("ranks_again", 10, 15)])
def test_ranks_that_a_program_spawns_get_a_report_of_the_first_one(tmp_path, name, line, habit):
    """Those that fail before they train, after others that have trained, have none of their own."""
    program = tmp_path / "ranks.py"  # whole: the ranks of a forked process begin in another folder
    program.write_text(read_programs("habits")[name].replace("STORE", str(tmp_path / "store")), encoding="utf-8")
    ended = children.run("-m", "simgpu", "--gpus", "2", "--json", "out.json", program, cwd=tmp_path)
    values = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (values["steps"], values["gpus"], ended.returncode) == (3, 2, 1)
    assert [(one["code"], one["line"]) for one in values["habits"]] == [("ddp-bypassed", habit)]
    assert (values["failure"]["line"], values["failure"]["text"]) == (line, "at the end")
    assert ended.stderr.count("Report for") == 1 and "no report" not in ended.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=[program["name"] for program in PROGRAMS])
def test_a_program_gets_the_remarks_of_its_row(tmp_path, program):
    report = reported(program["text"], tmp_path, "program", ended=program.get("ended", False))
    found = sorted(
        (one for one in report.suspects if one.code == program.get("only", one.code)), key=lambda one: one.line
    )
    wanted = [remark.partition(" ") for remark in program["remarks"]]
    assert [one.code for one in found] == [code for code, _, _ in wanted], [str(one) for one in found]
    assert all(source in one.source for one, (_, _, source) in zip(found, wanted, strict=True))
    assert all(program.get("says", "") in one.text for one in found)
    assert report.steps == program.get("steps", report.steps)
    assert all(part in str(report) for part in program.get("report", []))


def test_every_rule_has_a_bad_program_and_a_good_one():
    elsewhere = {"data-loading", "messages-keep-waiting", "ddp-bypassed", "scheduler-never-steps"}  # above, test_report
    assert {code for code in RULES if not (BAD[code] and any(name.startswith(code) for name in GOOD))} == elsewhere


def test_the_guide_has_a_row_for_each_rule():
    guide = (Path(__file__).parents[2] / "docs" / "own_program.md").read_text(encoding="utf-8")
    assert notebooks.with_rules(guide) == guide, "python tools/notebooks.py --fix"
    assert notebooks.with_rules(guide.replace("| `small-batch`", "| `large-batch`")) == guide


def test_a_program_that_fails_is_said_to_first_and_nothing_is_said_to_fit(tmp_path):
    text = STYLES["loop"].replace("scores = model(x)\n", "scores = model.forwards(x)\n")
    (tmp_path / "broken.py").write_text(text, encoding="utf-8")
    ended = children.run("-m", "simgpu", "--report", "out.html", "broken.py", cwd=tmp_path)
    said = ended.stderr.partition("Report for")[2].splitlines()
    number = text.splitlines().index("        scores = model.forwards(x)") + 1
    assert said[1].startswith(f"The program failed at broken.py:{number}: AttributeError: ") and "forwards" in said[1]
    assert "It had not finished a step" in said[2] and ended.returncode == 1
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    for form in (ended.stderr, page):
        assert "It fits" not in form and "No line keeps" not in form
    assert 'class="answer bad"' in page and 'class="answer good"' not in page


def test_a_program_that_ends_by_itself_has_the_last_word(tmp_path):
    text = "import argparse, torch\nx = torch.ones(3).cuda()\nargparse.ArgumentParser().parse_args()\n"
    (tmp_path / "asks.py").write_text(text, encoding="utf-8")
    ended = children.run("-m", "simgpu", "asks.py", "--epochs", "1", cwd=tmp_path)
    assert ended.returncode == 2 and "unrecognized arguments: --epochs 1" in ended.stderr
    assert "Report for" not in ended.stderr
    assert "simgpu: no report: the program ended by itself at asks.py:3, before a first step" in ended.stderr


@pytest.mark.parametrize("name", ["nothing.py", "folder"])
def test_what_is_no_program_is_told(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "nothing.py").write_text("\n", encoding="utf-8")
    said = (
        "is an empty file" if name == "nothing.py" else "is a folder: name one of its programs, such as folder/train.py"
    )
    ended = children.run("-m", "simgpu", name, cwd=tmp_path)
    assert (ended.returncode, ended.stderr.strip()) == (1, f"python -m simgpu: '{name}' {said}".replace("/", os.sep))


def test_the_traceback_of_a_program_that_cannot_be_read_has_no_line_of_simgpu(tmp_path):
    (tmp_path / "typo.py").write_text("for i in range(3)\n    pass\n", encoding="utf-8")
    ended = children.run("-m", "simgpu", "typo.py", cwd=tmp_path)
    assert "The program failed at typo.py:1: SyntaxError" in ended.stderr and "programs.py" not in ended.stderr


STEPS = read_programs("habits")["steps"]
ENDS = read_programs("habits")["ends"]


@pytest.mark.parametrize("why", ENDS)
def test_what_ended_a_program_or_a_part_of_it_is_said_first_with_what_helps(tmp_path, why):
    line, said, status, *until = ENDS[why]
    (tmp_path / "ends.py").write_text(STEPS + read_programs("habits").get(line, f"{line}\n"), encoding="utf-8")
    (tmp_path / "unreadable.py").write_text("x = 1\ndef broken(:\n", encoding="utf-8")
    ended = children.run("-m", "simgpu", "ends.py", cwd=tmp_path)
    first = ended.stderr.partition("Report for")[2].splitlines()[1:3]
    assert said in first[0] and "It fits" not in ended.stderr and "No line keeps" not in ended.stderr
    assert first[1].startswith(*(until or ["Until then it had done 3 steps"])) and ended.returncode == status


def test_a_program_that_asks_nothing_of_a_gpu_gets_no_report(tmp_path):
    (tmp_path / "ends.py").write_text(STEPS.replace(".cuda()", "").replace(', device="cuda"', ""), encoding="utf-8")
    ended = children.run("-m", "simgpu", "ends.py", cwd=tmp_path)
    assert ended.stderr.startswith("simgpu: no report: nothing was asked of a GPU") and ended.returncode == 0


def test_a_limit_may_be_the_code_of_a_remark(tmp_path):
    report = reported(edited("loop", "optimizer.zero_grad()\n", "pass\n"), tmp_path, "train")
    broken = limit("gradients-never-cleared").broken(report)
    assert broken.startswith("gradients-never-cleared: train.py:") and limit("remarks>0").broken(report)
    assert limit("seed-in-each-step").broken(report) == "" and limit("remarks>9").broken(report) == ""
    (found,) = [one for one in report.to_dict()["suspects"] if one["code"] == "gradients-never-cleared"]
    assert found["about"] == "result" and found["where"].startswith("train.py:")


def test_a_compiled_program_has_the_graphs_that_it_has_without_a_report():
    """What watches calls of modules stands in no graph, and breaks none."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 4)
            self.last.register_forward_hook(lambda module, inputs, result: result * 2)

        def forward(self, x):
            return self.last(self.first(x).relu())

    def graphs(record):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        with simgpu.cuda("T4", record=record):
            model = Net().cuda()
            for run in (torch.compile(model), model):
                if run is model:
                    model.compile()
                for _ in range(2):
                    run(torch.ones(8, 16, device="cuda")).sum().backward()
        counted = torch._dynamo.utils.counters
        return dict(counted["stats"]), dict(counted["graph_break"])

    assert graphs(record=True) == graphs(record=False)
    assert graphs(record=True)[1] == {}
    torch._dynamo.reset()


def test_nothing_is_kept_of_tensors_and_models_that_are_gone():
    with simgpu.cuda("T4", record=True) as session:
        for _ in range(3):
            nn.Linear(4, 4).cuda()(torch.ones(2, 4).cuda()).sum().backward()
        recorded = session.session
        assert torch.cuda.memory_allocated() == 0, "a report that keeps models fills the memory that it counts"
        recorded.mark()
        assert not recorded.rules["moved-in-each-step"]._sent
        assert [one for model in recorded.program._parts for one in model.parameters()] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on Linux and macOS")
def test_a_child_process_such_as_a_worker_has_no_session():
    with simgpu.cuda("T4", record=True) as session:
        model = nn.Linear(4, 4)
        calls = session.session.passes.calls
        child = os.fork()
        if not child:
            model(torch.ones(2, 4))
            os._exit(calls.total())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        model(torch.ones(2, 4))
        assert calls.total() == 1


def test_a_rule_that_no_event_can_call_is_refused():
    class Misspelt:
        def on_bakward(self, event):
            """Wait for an event that there is not."""

    with simgpu.cuda("T4", record=True) as session, pytest.raises(ValueError, match="of Misspelt: on_bakward"):
        session.session._observer.listen(Misspelt())


def test_a_model_is_walked_through_once_until_it_gets_another_part():
    walks = []

    class Net(nn.Linear):
        def modules(self):
            walks.append(self)
            return super().modules()

    with simgpu.cuda("T4", record=True):
        model, x = Net(4, 4).cuda(), torch.ones(2, 4, device="cuda")
        walks.clear()
        for _ in range(3):
            model(x)
        assert len(walks) == 1
        model.more = nn.Dropout()
        model(x)
        assert len(walks) == 2


def test_garbage_of_others_that_goes_meanwhile_hides_no_growth(tmp_path):
    """Each step frees something that was there before the recording, and more than the loss that it keeps."""
    *edits, named = BAD["memory-grows"][0]
    old = [torch.empty(1 << 16, device="sim:0") for _ in range(64)]
    text = edited("loop", *edits).replace("KEPT.append(loss)", "KEPT.append(loss); OLD.pop()")
    report = reported(text, tmp_path, "train", OLD=old)
    assert [named in one.source for one in report.suspects if one.code == "memory-grows"] == [True]


def test_float64_that_is_the_default_is_chosen(tmp_path):
    try:
        torch.set_default_dtype(torch.float64)
        assert reported(edited("loop"), tmp_path, "chosen").suspects == []
    finally:
        torch.set_default_dtype(torch.float32)


LAYERS = read_programs("habits")["layers"]


@pytest.mark.parametrize("steps", ["4", "40"])
def test_a_run_that_is_cut_says_of_a_layer_only_what_it_saw(tmp_path, steps):
    (tmp_path / "layers.py").write_text(LAYERS, encoding="utf-8")
    children.run("-m", "simgpu", "--steps", steps, "--json", "out.json", "layers.py", cwd=tmp_path)
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["suspects"]
    said = "in the 4 steps seen. If no later one does" if steps == "4" else "in the whole run"
    assert {one["line"] for one in found} == ({9, 10, 11} if steps == "4" else {11})
    assert all(said in one["text"] for one in found)


GROWING = read_programs("habits")["growing"]


def test_of_few_steps_is_not_said_that_no_memory_grows(tmp_path):
    said = [str(reported(GROWING.replace("EACH", "pass"), tmp_path, "few", STEPS=n, TRAINS=True)) for n in (6, 18)]
    assert ["no memory was seen to grow in 16 turns" in one for one in said] == [False, True]
    assert "grow" not in said[0].partition("Memory at the peak")[0]


def test_work_of_the_first_step_is_no_work_of_each_step():
    """It has the imports of the program and what they load."""
    work = own_work.OwnWork(lambda: (0.0,))
    work.stop()
    for steps, lines in (([0.3], 1), ([0.3, 0.0], 0), ([0.3, 0.2, 0.0], 0), ([0.3, 0.2, 0.2, 0.0], 1)):
        work._steps = [Counter({"a.py:1": seconds} if seconds else {}) for seconds in steps]
        assert len(work.rows()) == lines
    imports = ("<frozen importlib._bootstrap>", 1, "_find")
    assert own_work._own_line([imports, ("<ipython-input-1-a>", 1, "<module>")]) == ""


def test_a_thread_is_looked_at_without_touching_its_frames():
    events = {"begun": threading.Event(), "end": threading.Event(), "ask": own_work.python_record}
    code = compile("\nrecord = ask(); begun.set(); end.wait(60)", "été.py", "exec")
    thread = threading.Thread(target=exec, args=(code, events))
    thread.start()
    with tempfile.TemporaryFile(buffering=0) as file:
        stack = own_work._stack(thread.ident, events["record"], file) if events["begun"].wait(60) else []
    events["end"].set()
    assert ("été.py", 2, "<module>") in stack


FAILS = read_programs("habits")["fails"]


def test_a_traceback_shows_lines_of_the_program_and_of_pytorch_only(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS, encoding="utf-8")
    ended = children.run("-m", "simgpu", "fails.py", cwd=tmp_path)
    files = re.findall(r'^  File "(.+?)", line \d+', ended.stderr, re.MULTILINE)
    packages = {Path(file).parts[-4:-1] for file in files} - {Path(files[0]).parts[-4:-1]}
    assert packages == {("torch", "nn", "modules")} and files.count(files[0]) == 2
    assert "During handling of the above exception" in ended.stderr and "same device" in ended.stderr


def test_waiting_for_a_processor_is_no_time_of_a_loader(monkeypatch):
    """Two busy neighbours make a batch come late; the clock of loaders stands while the thread waits its turn."""
    ns = iter([b"0 1000000 1", b"0 5000000 2"])
    monkeypatch.setattr(turns, "_SCHEDULED", type("File", (), {"read_bytes": lambda self: next(ns)})())
    monkeypatch.setattr(turns.time, "perf_counter", iter([10.0, 10.006]).__next__)
    begun_s = turns.elapsed_s()
    assert turns.elapsed_s() - begun_s == pytest.approx(0.002)
    monkeypatch.setattr(turns, "_SCHEDULED", turns.Path("/proc/none"))
    monkeypatch.setattr(turns.time, "perf_counter", lambda: 3.0)
    assert turns.elapsed_s() == 3.0


INFERENCE = read_programs("habits")["inference"]


@pytest.mark.parametrize(
    ("later_s", "codes"), [(1e-5, []), (5e-3, []), (0.03, ["data-loading"]), (0.4, ["data-loading"])]
)
def test_the_first_batch_of_a_run_says_nothing_of_its_loading(tmp_path, monkeypatch, later_s, codes):
    """It takes what is done once: with few batches, that was most of the time of an inference."""
    times = iter([0.0, 0.05, *(0.05 + later_s * ((number - 1) // 2) for number in range(2, 40))])
    monkeypatch.setattr(turns, "elapsed_s", times.__next__)
    report = reported(INFERENCE, tmp_path, "inference", data_ms=None, BATCHES=4)
    assert [one.code for one in report.suspects if one.code != "copies-keep-waiting"] == codes
    first = next(row for row in report.waits if row.cause == "first batch of a loader")
    assert first.seconds == pytest.approx(0.05, rel=0.01)


AGENT = read_programs("habits")["agent"]


def test_a_loss_that_is_read_once_an_episode_costs_next_to_nothing(tmp_path):
    """The actions are read anyway, so that the host waits for the backward pass once more at most."""
    plain = reported(AGENT, tmp_path, "agent", REWARD=1.0)
    reads = reported(AGENT + "    KEPT.append(loss.item())\n", tmp_path, "agent", REWARD=1.0)
    assert reads.suspects == [] and reads.step_time < 1.01 * plain.step_time


GENERATOR = read_programs("habits")["generator"]


@pytest.mark.parametrize("options", [["--steps", "3"], []])
@pytest.mark.parametrize("last", ["(-d(fake).mean()).backward()", "assert step < 2"])
def test_what_a_program_would_have_used_later_is_no_fault_of_a_run_that_is_cut(tmp_path, options, last):
    """The first optimizer's step ends the third step, or the program fails; the generator's turn would come."""
    (tmp_path / "gan.py").write_text(GENERATOR.replace("LAST", last), encoding="utf-8")
    done = children.run("-m", "simgpu", *options, "--json", tmp_path / "gan.json", "gan.py", cwd=tmp_path)
    codes = [one["code"] for one in json.loads((tmp_path / "gan.json").read_text())["suspects"]]
    assert codes == ([] if "backward" in last else ["forward-not-used"]), done.stderr


OVER_TIME = read_programs("habits")["over_time"]


@pytest.mark.parametrize(("error", "codes"), [("ValueError", set()), ("torch.OutOfMemoryError", {"memory-grows"})])
def test_a_loop_over_time_of_a_first_step_that_fails_is_no_growth(tmp_path, error, codes):
    (tmp_path / "loop.py").write_text(OVER_TIME.replace("ERROR", error), encoding="utf-8")
    done = children.run("-m", "simgpu", "--json", "loop.json", "loop.py", cwd=tmp_path)
    assert {one["code"] for one in json.loads((tmp_path / "loop.json").read_text())["suspects"]} == codes, done.stderr


def test_a_program_whose_first_step_comes_late_is_told_how_a_report_comes_sooner(tmp_path, monkeypatch):
    waited_s = iter([*[0.0] * 30, *[99.0] * 1000])
    monkeypatch.setattr(session.Recording, "real_s", property(lambda self: next(waited_s)))
    text = read_programs("habits")["late"]
    (tmp_path / "late.py").write_text(text, encoding="utf-8")
    shown = io.StringIO()
    with simgpu.cuda("T4", record=True, progress=shown):
        exec(compile(text, str(tmp_path / "late.py"), "exec"), {"__name__": "program"})
    said = shown.getvalue()
    assert said.count("no step has ended in 99 s") == 1 and "late.py:6 has called a model" in said
    assert "--shapes" in said
