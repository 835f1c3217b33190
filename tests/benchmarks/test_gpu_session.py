"""Session on a real GPU, rehearsed: parts end in time, failures reach the file, and the summary names them."""

import json
import math

import pytest

from benchmarks import gpu_session


@pytest.mark.slow
def test_a_rehearsal_of_a_lesson_and_its_references_fails_nowhere():
    for stage in ("references", "lessons"):
        seen = gpu_session.run_part(stage, "00", math.inf, "T4")
        assert seen["seconds"] and not seen["failed"] and "ended" not in seen, seen
    assert seen["log"].count("== ") == len(seen["seconds"])


@pytest.mark.slow
def test_each_class_of_host_work_is_measured_in_a_rehearsal():
    seen = gpu_session.run_part("host", "all", math.inf, "T4")
    assert not seen["failed"] and all(us > 0 for us in seen["measured"].values()), seen
    classes = {name.partition(":")[0] for name in seen["measured"]}
    assert classes >= {"bare light", "bare library", "backward", "optimizer", "graph", "compiled", "wait", "view"}


def test_a_part_for_which_no_time_is_left_and_one_that_is_cut_say_so(tmp_path, monkeypatch):
    assert gpu_session.run_part("host", "all", 0.0, "T4")["not_run"]
    monkeypatch.setattr(gpu_session, "parts", lambda stage: ("all",))

    def run(stage, *_):
        if stage == "host":
            raise OSError("disk full")
        return {"failed": {stage: "raises"}, "ended": -9}

    monkeypatch.setattr(gpu_session, "run_part", run)
    result = gpu_session.session(0.1, "T4", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == result
    assert "all references: raises" in (text := gpu_session.summary(result))
    assert "lessons: 1 failed, 0 not reached; ended early or not run: all" in text
    assert result["stages"]["host"]["all"]["failed"] == {"session": "OSError('disk full')"}


def test_a_failure_is_noted_beside_what_is_known_and_is_gone_once_the_same_ends_well(tmp_path):
    found, seen = tmp_path / "found.json", {"failed": {}, "measured": {"sum": 1.0}}
    with gpu_session.noted("matmul", seen, found):
        raise RuntimeError("out of memory")
    known = json.loads(found.read_text())
    assert known["failed"] == {"matmul": "RuntimeError: out of memory"} and known["measured"] == {"sum": 1.0}
    with gpu_session.noted("matmul", seen, found):
        pass
    known = json.loads(found.read_text())
    assert not known["failed"] and known["seconds"]["matmul"] >= 0


def test_without_a_device_the_command_names_the_rehearsal(capsys):
    assert gpu_session.main([]) == 2
    assert "--face T4" in capsys.readouterr().err
