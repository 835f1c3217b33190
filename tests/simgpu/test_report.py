"""Does a report name the line that is at fault, and are its values those of the run, in every form?"""

import io
import json
import os
from html.parser import HTMLParser

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import simgpu
from simgpu.clock.lines import Error
from simgpu.clock.player import play
from simgpu.device import state
from simgpu.reports import ranks
from simgpu.reports.limits import limit
from simgpu.reports.words import nothing_asked
from tests import children
from tests.simgpu.simulated import read_programs

HEAD = read_programs("report")["head"]
FAULTS = read_programs("report")["faults"]


def run(folder, *command):
    return children.run("-m", "simgpu", *command, cwd=folder)


def train(steps=4, width=64, batch=32):
    """Train for some steps, from data that is on the host."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(batch, width).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


@pytest.fixture
def report():
    with simgpu.cuda(gpus=2, record=True) as session:
        train()
        return session.report()


def test_a_line_that_costs_next_to_nothing_is_not_named():
    with simgpu.cuda(record=True) as session:
        x = torch.randn(2048, 512, device="cuda")
        weight = nn.Parameter(torch.randn(512, 2048, device="cuda"))
        optimizer = torch.optim.SGD([weight])
        for _ in range(3):
            (x @ weight).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        (x @ weight).sum().item()
        report = session.report()
    assert report.suspects == [] and report.busy > 0.9
    assert repr(report).startswith("<Report for simulated T4: It fits: ")
    assert all("Its kernels say where the time goes." in form for form in (str(report), report.html()))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_line_at_fault_is_named_first(tmp_path, fault):
    loop, line = FAULTS[fault]["loop"], FAULTS[fault]["line"]
    (tmp_path / "train.py").write_text(HEAD + loop)
    ended = run(tmp_path, "--json", "out.json", "train.py")
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert found["suspects"][0]["source"] == line
    assert ended.stderr.partition("Look at first\n1. ")[2].partition("\n")[0].endswith(line)
    if fault == "graphs are summed":
        assert found["growth"][0]["held_by"] == "total"
    elif fault == "graphs are kept":
        assert found["growth"][0]["held_by"].startswith("kept (a list")
    else:
        assert found["waits"][0]["source"] == line


def test_a_read_before_loading_is_charged_with_what_its_repair_gains():
    def reported(data_ms, reads):
        torch.manual_seed(0)
        with simgpu.cuda("T4", gpus=2, record=True, data_ms=data_ms, shapes=True) as session:
            model = nn.Sequential(nn.Linear(64, 1024), nn.Linear(1024, 1024)).cuda()
            optimizer = torch.optim.SGD(model.parameters())
            for batch in torch.utils.data.DataLoader(torch.randn(2048, 64), batch_size=512):
                loss = model(batch.pin_memory().to("cuda", non_blocking=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if reads:
                    loss.item()
                    (loss > 1).item()
            return session.report()

    for data_ms, first in ((0.1, "loss.item()"), (300.0, "for batch in torch.utils.data.DataLoader")):
        with_reads, without = reported(data_ms, True), reported(data_ms, False)
        gain = with_reads.step_time - without.step_time
        waited = [row.seconds for row in with_reads.waits if row.source in ("loss.item()", "(loss > 1).item()")]
        assert with_reads.suspects[0].source.startswith(first)
        assert sum(waited) == pytest.approx(gain, rel=0.2) and gain > 1e-4
        assert with_reads.phases["data"] >= data_ms / 1e3  # still the time for which the GPU waits for data
        assert "A batch of a DataLoader takes" in with_reads.text()
        assert with_reads.wait_count == 3 and limit("waits>2").broken(with_reads)  # two reads, one loader


def test_launches_that_a_read_makes_late_are_charged_to_it():
    def reported(reads):
        with simgpu.cuda("T4", gpus=2, record=True, shapes=True) as session:
            large, small = torch.ones(2048, 1024, device="cuda"), torch.ones(8, device="cuda")
            for _ in range(3):
                total = (large @ large.T).sum()
                if reads:
                    total.item()
                for _ in range(60):
                    small = small + 1
                simgpu.step()
            return session.report()

    with_reads, without = reported(True), reported(False)
    gain = with_reads.step_time - without.step_time
    assert with_reads.suspects[0].source == "total.item()" and not without.suspects
    assert with_reads.waits[0].seconds == pytest.approx(gain, rel=0.1) and gain > 1e-4
    assert with_reads.launching == pytest.approx(without.launching, abs=0.01)  # no gap counts twice


def test_a_replay_on_the_same_gpu_takes_exactly_as_long_as_the_run():
    with simgpu.cuda(gpus=2, record=True) as face:
        train()
        session = face.session
        again = play(session.log.events, session.machine, len(state.world.memory.gpus))
        assert again.total_ns == round(session.simulated_s * 1e9)


def test_copies_between_gpus_are_told_what_makes_fewer_of_them():
    with simgpu.cuda("T4", gpus=2, record=True) as session:
        model = nn.DataParallel(nn.Linear(2048, 2048).cuda())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(64, 2048, device="cuda")).sum().backward()
            optimizer.step()
        copies = [one for one in session.report().suspects if "a copy to another GPU" in one.text]
    assert {one.code for one in copies} == {"copies-keep-waiting"}
    assert all("DistributedDataParallel" in one.text and "pinned" not in one.text for one in copies)


def test_a_step_with_many_more_operations_than_the_others_is_left_out():
    """As one that also makes a sample of a language model, in every five-hundredth step of a long run."""

    def run(sampled):
        with simgpu.cuda("T4", record=True) as session:
            model = nn.Linear(8, 8).cuda()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for step in range(6):
                optimizer.zero_grad()
                model(torch.ones(64, 8, device="cuda")).sum().backward()
                optimizer.step()
                with torch.no_grad():
                    for _ in range(100 if step == sampled else 0):
                        model(torch.ones(1, 8, device="cuda")).sum().item()
            return session.report()

    plain, with_sample = run(None), run(2)
    assert (plain.recorded, plain.odd) == (5, 0) and (with_sample.recorded, with_sample.odd) == (4, 1)
    assert with_sample.step_time == pytest.approx(plain.step_time, rel=0.05)
    assert with_sample.suspects == plain.suspects
    (once,) = with_sample.once
    assert once.seconds > plain.step_time and "longer, as at" in str(with_sample) and not plain.once


def test_what_if_on_another_gpu_is_what_a_run_there_takes():
    with simgpu.cuda("T4", gpus=2, record=True) as here:
        train(width=1024, batch=512)
        expected = here.report().what_if(gpu="H100 SXM")
    with simgpu.cuda("H100 SXM", gpus=2, record=True) as there:
        train(width=1024, batch=512)
        measured = there.report()
    assert expected.step_time == pytest.approx(measured.step_time, rel=1e-9)
    assert (expected.peak, expected.capacity) == (measured.peak, measured.capacity)


def test_the_owners_are_the_whole_peak(report):
    parameters = 4 * (64 * 64 + 64 + 64 + 1)
    assert report.owners["weights"] == report.owners["gradients"] == parameters
    assert report.owners["optimizer"] >= 2 * parameters
    assert sum(report.owners.values()) == report.peak == sum(row.bytes for row in report.memory_lines)


def test_phases_add_up_to_the_step(report):
    assert set(report.phases) >= {"copy", "forward", "backward", "optimizer"}
    assert sum(report.phases.values()) == pytest.approx(report.step_time)
    assert report.steps == 4 and report.recorded == 3 and report.step_kind == "AdamW.step()"


def test_autocast_and_fused_are_near_to_what_they_take():
    def trained(amp, fused):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        batch = torch.randn(256, 1024).cuda()
        for _ in range(3):
            with torch.autocast("cuda", enabled=amp):
                loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def report_of(amp=False, fused=False):
        with simgpu.cuda("T4", gpus=2, record=True, shapes=True) as session:  # a CPU is slow at 16 bits
            trained(amp, fused)
            return session.report()

    plain = report_of()
    assert plain.what_if(amp=True).step_time == pytest.approx(report_of(amp=True).step_time, rel=0.15)
    assert plain.what_if(fused=True).step_time == pytest.approx(report_of(fused=True).step_time, rel=0.02)


def test_a_larger_batch_takes_what_a_run_with_it_takes():
    with simgpu.cuda("T4", gpus=2, record=True) as session:
        train(width=1024, batch=512)
        doubled = session.report().what_if(batch=2)
    with simgpu.cuda("T4", gpus=2, record=True) as session:
        train(width=1024, batch=1024)
        measured = session.report()
    assert doubled.step_time == pytest.approx(measured.step_time, rel=0.15)
    assert doubled.peak == pytest.approx(measured.peak, rel=0.05)


def test_a_larger_batch_takes_longer_to_load_and_leaves_data_on_the_gpu_as_it_is():
    with simgpu.cuda("T4", record=True, data_ms=20) as session:
        data = torch.randn(2**20, 2, device="cuda")
        loader = DataLoader(torch.arange(2**12), batch_size=512)
        model = nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for index in loader:
            model(data[index]).square().mean().backward()
            optimizer.step()
        report = session.report()
    twice = report.what_if(batch=2)
    assert report.owners["others"] >= data.nbytes > 20 * (twice.peak - report.peak)
    assert twice.step_time - report.step_time == pytest.approx(20e-3, rel=0.1)


@pytest.mark.parametrize("steps", [4, 8])
def test_a_step_is_a_usual_one_after_a_sample_of_very_many_operators(monkeypatch, steps):
    for part in ("session", "gather"):
        monkeypatch.setattr(f"simgpu.reports.{part}.EVENTS", 100)
    with simgpu.cuda("T4", record=True) as session:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(steps):
            model(torch.ones(2, 8, device="cuda")).sum().backward()
            for _ in range(100 * (step == 0)):  # as an evaluation before the training
                model(torch.ones(2, 8, device="cuda"))
            optimizer.step()
            for _ in range(400 * (step == 0)):  # as a language model writes, letter by letter
                model(torch.ones(2, 8, device="cuda"))
        report = session.report()
    assert report.odd == 1 and sum(row.count for row in report.launches) < 20
    assert report.recorded == 2


def test_copies_that_are_not_pinned_are_told_with_what_pinning_saves_where_no_remark_names_them():
    with simgpu.cuda(record=True) as session:
        model = nn.Sequential(nn.Linear(512, 2048), nn.Linear(2048, 2048)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for x in torch.randn(4, 256, 512):
            model(x.cuda()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        report = session.report()
    saved = report.step_time - report.what_if(pinned=True).step_time
    said = f"({saved / report.step_time:.0%}) less.", f"not pinned is copied at {report.copies[0].where}. "
    assert report.suspects == [] and 0 < saved < 0.05 * report.step_time
    assert all(words in form for words in said for form in (str(report), report.html()))


def test_the_largest_batch_fits_and_more_does_not(report):
    most = report.what_if(batch="max")
    assert most.fits and not report.what_if(batch=most.batch * 1.01).fits


def test_ranks_and_a_price(report):
    one, eight = report.what_if(steps=8000, price=2.5), report.what_if(gpus=8, steps=8000, price=2.5)
    assert one.hours == pytest.approx(8000 * report.step_time / 3600) and one.cost == pytest.approx(2.5 * one.hours)
    assert eight.step_time > one.step_time  # the gradients travel
    assert eight.hours == pytest.approx(one.hours / 8 * eight.step_time / one.step_time)
    assert eight.assumptions and not one.assumptions


def test_pinned_copies_and_graphs_make_a_step_shorter(report):
    assert report.what_if(pinned=True).step_time < report.step_time
    assert report.what_if(compiled=True).step_time < report.step_time


class Page(HTMLParser):
    """Looks at a page: which elements are open, and what they say."""

    void = ("meta", "br", "wbr")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.addresses, self.texts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_is_whole_stands_alone_and_can_be_heard(report):
    page = Page()
    page.feed(report.html())
    assert not page.open and not page.addresses
    assert "http" not in report.html() and "url(" not in report.html() and "@import" not in report.html()
    tags = [tag for tag, _ in page.seen]
    assert tags.count("h1") == 1 and tags.count("caption") == tags.count("table") >= 6
    assert all("aria-label" in attrs for tag, attrs in page.seen if tag == "meter")
    assert ("html", {"lang": "en"}) in page.seen
    assert all("scope" in attrs for tag, attrs in page.seen if tag == "th")
    assert "color-scheme: light dark" in report.html() and "<strong>test_<wbr>report.py:" in report.html()


def test_what_a_line_says_is_escaped_on_the_page():
    with simgpu.cuda(gpus=2, record=True) as session:
        print((torch.ones(3).cuda() > 0).any().item(), "<script>alert()</script>")
        page = session.report().html()
    assert "&lt;script&gt;" in page and "<script" not in page


def test_json_has_the_values(report):
    found = json.loads(report.json())
    assert found["gpu"] == report.gpu.name and found["peak"] == report.peak and found["step_time"] == report.step_time
    assert found["waits"][0]["source"] == report.waits[0].source and "test_report" in found["waits"][0]["where"]
    assert len(found["options"]) == len(report.options) and found["evidence"]["regime"] == report.evidence.regime


def test_a_report_is_saved_by_its_ending(report, tmp_path):
    for ending, text in ((".html", "<!DOCTYPE html>"), (".json", "{"), (".txt", "Report for ")):
        report.save(tmp_path / f"out{ending}")
        assert (tmp_path / f"out{ending}").read_text(encoding="utf-8").startswith(text)
    with pytest.raises(ValueError, match="must end in one of"):
        report.save(tmp_path / "out.pdf")


def test_limits(report):
    assert "idle is " in limit("idle>1%").broken(report) and not limit("idle>100%").broken(report)
    assert limit("peak>1KiB").broken(report).endswith("above the limit of 1 KiB")
    assert limit("step>1us").broken(report) and not limit("step>1s").broken(report)
    assert limit("launches<1000000").broken(report).startswith("launches is ")
    assert "sought over 4 steps" in limit("memory-grows").broken(report)  # to have seen nothing is not enough
    for wrong in ("idle", "speed>3", "step>3", "peak>many", "idle>x%", "idle>30", "waits>nan"):
        with pytest.raises(ValueError):
            limit(wrong)


def test_loading_data_is_work_of_the_host_at_the_line_that_asks_for_it():
    data = torch.utils.data.DataLoader(torch.randn(12, 8), batch_size=4)
    with simgpu.cuda(gpus=2, record=True, data_ms=2.0) as session:
        for batch in data:
            batch.cuda().sum().item()
            simgpu.step()
        report = session.report()
    assert report.waits[0].cause == "data loading" and report.waits[0].source == "for batch in data:"
    assert report.waits[0].seconds == pytest.approx(2e-3, rel=0.02)
    assert report.step_kind == "simgpu.step()" and report.steps == 3


def test_a_report_made_after_the_end_has_the_memory_of_the_run():
    with simgpu.cuda("T4", gpus=2, memory="1 MiB"):
        with simgpu.cuda("T4", memory="64 MiB", record=True) as session:
            torch.ones(2**20, device="cuda").sum().item()
            within = session.report()
        after = session.report()
    assert after.capacity == within.capacity == 64 * 2**20
    assert after.fits and after.what_if().fits


def test_memory_that_is_not_there_is_an_error_with_its_line():
    with simgpu.cuda(gpus=2, memory="1 MiB", record=True) as session:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**20, device="cuda")
        torch.ones(2000).to("cuda", non_blocking=True)  # legal, so no error
        report = session.report()
    assert not report.fits
    assert {one.kind: one.source for one in report.errors} == {"out of memory": 'torch.empty(2**20, device="cuda")'}


def test_a_failed_kernel_is_named_by_its_own_line():
    with pytest.raises(torch.AcceleratorError), simgpu.cuda(gpus=2, errors="asynchronous", record=True) as session:
        table, far = torch.zeros(4, device="cuda"), torch.tensor([7], device="cuda")
        table[far], table[far + 1]
        table.sum().item()
    errors = session.report().errors
    assert errors[0].kind == "a kernel failed" and errors[0].source == "table[far], table[far + 1]"
    assert errors[1].kind == "a kernel failed, and a later line says so" and errors[1].source == "table.sum().item()"


def test_shapes_alone_take_the_same_time_and_memory():
    def reported(shapes):
        with simgpu.cuda("T4", gpus=2, record=True, shapes=shapes) as session:
            train(steps=3, width=1024, batch=512)
            net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten()).cuda()
            with torch.autocast("cuda"):
                net(torch.randn(8, 3, 32, 32).cuda()).square().mean().backward()
            simgpu.step()
            return session.report()

    plain, shaped = reported(False), reported(True)
    assert shaped.step_time == plain.step_time and shaped.peak == plain.peak and shaped.owners == plain.owners
    assert "No values were computed" in shaped.text() and "No values were computed" not in plain.text()
    assert not state.world.only_shapes


SHAPES = read_programs("report")["shapes"]


def test_shapes_alone_take_no_memory_also_backward_and_in_the_optimizer(tmp_path):
    pytest.importorskip("resource")
    (tmp_path / "train.py").write_text(SHAPES)
    ended = run(tmp_path, "--no-report", "--shapes", "--gpu", "A100 80GB", "train.py")
    assert ended.returncode == 0 and float(ended.stdout) < 1.3, ended.stderr  # the logits alone: 2.6


def test_without_a_session_there_is_no_report():
    with simgpu.cuda(gpus=2) as face, pytest.raises(RuntimeError, match="record=True"):
        face.report()


def test_nothing_is_left_behind():
    loader = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    with simgpu.cuda(gpus=2, record=True):
        train(steps=1)
    world = state.world
    assert world.clock.log is None and world.memory.watcher is None and "fail" not in vars(world)
    assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is loader


def test_the_command_line_stops_writes_and_fails(tmp_path):
    (tmp_path / "train.py").write_text(HEAD + FAULTS["a value is read in the loop"]["loop"])
    asked = ("--steps", "3", "--report", "out.html", "--json", "out.json", "--trace", "trace.json", "--memory", "1GB")
    ended = run(tmp_path, *asked, "--price", "2", "--run-steps", "1000", "--fail-if", "launches>2", "train.py")
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.count("loss ") == 2  # the third step ends in the optimizer
    assert ended.stderr.splitlines()[-1].startswith("simgpu: launches is ")
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["steps"] == 3
    assert (tmp_path / "out.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert any(event.get("cat") == "kernel" for event in trace["traceEvents"])
    catches = "try:\n        optimizer.step()\n    except:\n        pass"
    (tmp_path / "catches.py").write_text((tmp_path / "train.py").read_text().replace("optimizer.step()", catches))
    caught = run(tmp_path, *asked, "catches.py")
    assert caught.returncode == 0 and caught.stdout.count("loss ") == 3  # the fourth step does not end
    (tmp_path / "cpu.py").write_text("import torch\ntorch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()\n")
    unused = run(tmp_path, "--fail-if", "idle>30%", "--json", "cpu.json", "cpu.py")
    assert unused.returncode == 4 and not json.loads((tmp_path / "cpu.json").read_text(encoding="utf-8"))["used"]
    for option, value, words in (("--fail-if", "speed>1", "a limit is a name"), ("--json", "no/x.json", "no folder")):
        wrong = run(tmp_path, option, value, "train.py")
        assert wrong.returncode == 2 and words in wrong.stderr and wrong.stderr.count("\n") == 1


KEEPS = read_programs("report")["keeps"]
ENDS = read_programs("report")["ends"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and forks of POSIX")
@pytest.mark.parametrize("end", ENDS)
def test_however_a_program_ends_its_report_has_what_was_seen_with_the_cause_first(tmp_path, end):
    status, words = ENDS[end]
    (tmp_path / "train.py").write_text(KEEPS.replace("END", end), encoding="utf-8")
    ended = run(tmp_path, "--json", "out.json", "train.py")
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert ended.returncode == status and words in ended.stderr, ended.stderr
    assert ended.stderr.count("Report for") == 1 and found["steps"] == 12
    assert [one["code"] for one in found["suspects"]] == ["memory-grows"]
    assert "no step has ended" not in ended.stderr


def test_how_far_a_program_and_a_long_step_are_is_written_every_few_seconds(monkeypatch):
    told = io.StringIO()
    monkeypatch.setattr("simgpu.reports.session._PROGRESS_S", -1.0)
    with simgpu.cuda(record=True, progress=told):
        train(steps=2)
    with simgpu.cuda(record=True, progress=told):
        for _ in range(600):
            torch.ones(4, device="cuda")
    first, second, third, fourth = told.getvalue().splitlines()
    assert first.startswith("simgpu: step 1, ") and second.startswith("simgpu: step 2, ")
    assert third.startswith("simgpu: in step 1, ") and " operations so far" in fourth


def test_passes_that_an_optimizer_calls_are_forward_and_backward():
    """As in a step with a closure, which LBFGS needs and Lightning always gives."""
    with simgpu.cuda(record=True) as session:
        model, x = nn.Linear(64, 64).cuda(), torch.randn(256, 64, device="cuda")
        optimizer = torch.optim.SGD(model.parameters())

        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        report = session.report()
    assert list(report.phases) == ["forward", "backward", "optimizer"] and all(report.phases.values())
    assert report.owners["activations"] > 0


def test_a_report_for_a_gpu_that_nothing_connects_to_others_asks_for_no_cluster_and_no_pinned_memory():
    with simgpu.mps(record=True) as session:
        model = nn.Linear(400_000, 4).to("mps")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            model(torch.ones(16, 400_000).to("mps", non_blocking=number > 0)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    report = session.report()
    assert [one.code for one in report.suspects] == ["copies-keep-waiting"]
    assert "pinned" not in str(report) and "CUDA" not in str(report) and "cuda" not in nothing_asked(report)
    assert "Apple" in str(report) and {option.gpus for option in report.options} == {1}
    with pytest.raises(ValueError, match="nothing connects several of Apple M1"):
        report.what_if(gpus=8)


def test_a_rank_records_whatever_has_ended_it(tmp_path):
    ranks.Record(1).write(tmp_path)
    for steps, text in enumerate(("x" * 10_000, "é" * 5_000, "short"), start=1):
        ranks.Record(1, steps, Error("train.py", 3, "", "ValueError", text)).write(tmp_path)
        assert ranks.Ranks(tmp_path).first_failure(None).text == text
