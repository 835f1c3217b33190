"""Recorded runs: read, checked, drawn with their labels, and written only from a real GPU. The file here is made up."""

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
import torch

from course_utils import devices, gpus, plots, recorded

SAMPLES = Path(__file__).parent / "recorded"
REAL = Path(__file__).parents[2] / "notebooks" / "recorded"
SAMPLE = json.loads((SAMPLES / "made-up-gpu.json").read_text(encoding="utf-8"))
IDENTITY = {name: SAMPLE[name] for name in ("schema", "device", "date", "versions")}
SCHEMA = json.loads((SAMPLES.parent / "recorded_schema.json").read_text(encoding="utf-8"))
CURVE = {"xs": [1e3, 1e6], "xlabel": "bytes", "ylabel": "GB/s"}


@pytest.fixture
def samples(monkeypatch):
    """Let the module find the made-up file instead of the real ones."""
    monkeypatch.delenv("COURSE_RECORD", raising=False)
    monkeypatch.setattr(recorded, "_REPOSITORY", SAMPLES)


@pytest.fixture
def recording(monkeypatch, tmp_path):
    """Record into a fresh folder, on a machine that seems to have a GPU."""
    folder = tmp_path / "notebooks" / "recorded"
    folder.parent.mkdir()
    monkeypatch.setenv("COURSE_RECORD", "1")
    monkeypatch.setattr(recorded, "_REPOSITORY", folder)
    monkeypatch.setattr(recorded, "_identity", lambda device: copy.deepcopy(IDENTITY))
    monkeypatch.setattr(devices, "pick", lambda: torch.device("cuda", 0))
    return folder


def drawn(key="02.transfer_bandwidth", title="", **given):
    """Return the picture of what `recorded.compare` finds."""
    return plots.curves(recorded.compare(key, **{**CURVE, **given}), title)


def labels(figure):
    return {line.get_label(): line.get_linestyle() for line in figure.axes[0].get_lines()}


def faults(data):
    checker = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
    return [error.json_path for error in checker.iter_errors(data)]


@pytest.mark.parametrize("folder", [REAL, SAMPLES])
def test_every_recorded_file_fits_the_schema_and_is_named_after_its_gpu(folder):
    files = sorted(folder.glob("*.json"))
    for path in files:
        data = json.loads(path.read_text(encoding="utf-8"))
        assert not faults(data)
        assert path.stem == re.sub(r"[^a-z0-9]+", "-", data["device"].lower()).strip("-")
    assert len(recorded.load(folder)) == len(files)
    assert ((SAMPLES / "made-up-gpu.json") in files) == (folder is SAMPLES)


BANDWIDTH = ["entries", "02.transfer_bandwidth"]
LAUNCH = ["entries", "03.launch"]
NUMBERS = "must have finite numbers, as many in each curve as in x"  # which a schema does not tell
FAULTS = [  # where, what stands there instead (... for nothing), and what reading such a file says, None if it does not
    (["schema"], 2, "schema is 2, it must be 1"),
    (["device"], "Simulated T4", None),
    (["date"], "yesterday", None),
    (["date"], ..., "it has no 'date'"),
    (["more"], 1, None),
    (["versions", "driver"], ..., None),
    (["versions"], "2.13", None),
    (["entries"], [1], "'list' object has no attribute 'items'"),
    (LAUNCH, 5, "int"),
    (["entries", "transfer"], {"value": 1.0, "unit": "s"}, None),
    ([*LAUNCH, "unit"], ..., None),
    ([*LAUNCH, "value"], "fast", "must be real number"),
    ([*LAUNCH, "value"], float("nan"), NUMBERS),
    ([*BANDWIDTH, "x"], [1.0], NUMBERS),
    ([*BANDWIDTH, "curves", "pinned"], [1.0, float("inf")], NUMBERS),
]


def spoilt(path, new, folder):
    """Return the sample with the entry at `path` replaced, or removed where `new` is ..., and write it into a file."""
    data = copy.deepcopy(SAMPLE)
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = new
    if new is ...:
        del place[path[-1]]
    (folder / "bad.json").write_text(json.dumps(data), encoding="utf-8")
    return data


@pytest.mark.parametrize(("path", "new", "phrase"), FAULTS)
def test_a_file_with_a_fault_does_not_fit_the_schema_and_a_damaged_one_is_not_read(path, new, phrase, tmp_path):
    assert bool(faults(spoilt(path, new, tmp_path))) == (phrase != NUMBERS)
    if phrase is not None:
        with pytest.raises(ValueError, match=rf"^bad\.json: .*{re.escape(phrase)}"):
            recorded.load(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "5"])
def test_a_file_that_is_no_json_or_no_object_is_rejected(tmp_path, text):
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"^bad\.json: "):
        recorded.load(tmp_path)


def test_runs_are_loaded_with_their_label_and_a_value_is_shown_with_what_was_recorded_and_predicted(samples):
    (run,) = recorded.load()
    assert run.label == "recorded on Made-up GPU, 2026-01-02, torch 2.13.0, CUDA 13.0"
    assert recorded.load(SAMPLES.parent / "no such folder") == []
    shown = recorded.value("03.launch", 6.0, "us", predicted={"T4": 5})
    assert str(shown).splitlines() == [
        "6 us (live)",
        "4.5 us (recorded on Made-up GPU, 2026-01-02, torch 2.13.0, CUDA 13.0)",
        "5 us (predicted, T4)",
    ]
    assert shown._repr_html_().count("<tr>") == 3
    assert not any("published" in label for label in labels(drawn(ys={"pinned": [2, 20]})))
    assert "published" not in str(recorded.value("03.launch", 6.0, "us"))


def test_curves_are_drawn_by_provenance(samples):
    figure = drawn(ys={"pinned": [2, 20]}, predicted={"T4": [1, 15]}, title="Copies")
    run = "recorded on Made-up GPU, 2026-01-02, torch 2.13.0, CUDA 13.0"
    assert labels(figure) == {
        "pinned, live": "-",
        f"pageable, {run}": "--",
        f"pinned, {run}": "--",
        "T4, predicted": ":",
    }
    assert figure.axes[0].get_xlabel() == "bytes" and repr(figure) == "Picture(Copies)"
    colours = {line.get_label().split(",")[0]: line.get_color() for line in figure.axes[0].get_lines()}
    assert len(set(colours.values())) == 3  # pinned, pageable and T4; live and recorded share the curve's colour


@pytest.mark.parametrize(("given", "expected"), [
    ({"ys": [2, 20], "simulated": True, "predicted": {"T4": [1, 15]}}, {"simulated": "-.", "T4, predicted": ":"}),
    ({"ys": {"CPU": [2, 20], "GPU": [3, 4]}, "simulated": ["GPU"]}, {"CPU, live": "-", "GPU, simulated": "-."}),
    ({"ys": {"a": torch.ones(2), "b": np.ones(2)}, "xs": range(1, 3)}, {"a, live": "-", "b, live": "-"}),
    ({"ys": {}, "predicted": {"T4": (1.0, 2.0)}}, {"T4, predicted": ":"}),  # on a machine that measures nothing
])  # fmt: skip
def test_what_is_not_recorded_is_left_out(samples, given, expected):
    assert labels(drawn("02.nothing_recorded", **given)) == expected


@pytest.mark.parametrize(("change", "phrase"), [
    ({"key": "transfer"}, "key is 'transfer'"),
    ({"ys": [1]}, "ys has 1 numbers for 2"),
    ({"ys": {"a": [1, "x"]}}, "ys['a'][1] must be a number, not 'x'"),
    ({"ys": [1, float("nan")]}, "ys[1] must be a finite number, not nan"),
    ({"ys": 5}, "ys must be a list of numbers, not 5"),
    ({"xs": None}, "xs must be a list of numbers, not None"),
    ({"xs": [], "ys": []}, "ys has 0 numbers for 0"),
    ({"simulated": "GPU"}, "simulated is 'GPU', it may be True, False or names of curves: ['']"),
    ({"simulated": ["GPU"]}, "simulated is ['GPU'], it may be"),
    ({"predicted": {"T4": 3}}, "predicted['T4'] must be a list of numbers, not 3"),
])  # fmt: skip
def test_wrong_arguments_of_compare_are_named(samples, change, phrase):
    arguments = {"key": "02.transfer_bandwidth", "ys": [1, 2], **CURVE, **change}
    with pytest.raises((ValueError, TypeError), match=re.escape(phrase)):
        recorded.compare(**arguments)


@pytest.mark.parametrize(("change", "phrase"), [
    ({"key": "launch"}, "key is 'launch'"),
    ({"live": "x"}, "live must be a number, not 'x'"),
    ({"live": float("inf")}, "live must be a finite number, not inf"),
])  # fmt: skip
def test_wrong_arguments_of_value_are_named(samples, change, phrase):
    with pytest.raises((ValueError, TypeError), match=re.escape(phrase)):
        recorded.value(**{"key": "03.launch", "live": 6.0, "unit": "us", **change})


# ---- what others published -------------------------------------------------------------------------------------------

FACTS = recorded.facts()
NOT_IN_THE_TABLE = {
    "A100", "A100 SXM", "Quadro RTX 6000", "RTX 4060 Ti", "RTX A6000", "RTX PRO 6000 Max-Q", "TITAN RTX", "V100",
    "V100 PCIe",
}  # fmt: skip
LESSONS = [path.read_text(encoding="utf-8") for path in REAL.parent.glob("[0-9]*.ipynb")]


@pytest.fixture
def unrecorded(monkeypatch, tmp_path):
    """Let the module find no recorded run."""
    monkeypatch.delenv("COURSE_RECORD", raising=False)
    monkeypatch.setattr(recorded, "_REPOSITORY", tmp_path)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact.key}-{fact.gpu}-{max(fact.y):g}")
def test_a_published_fact_says_what_where_when_and_on_which_gpu(fact):
    assert recorded._KEY.fullmatch(fact.key) and fact.what and fact.by
    assert re.sub(r"^\d × ", "", fact.gpu) in {gpu.name for gpu in gpus.ALL} | NOT_IN_THE_TABLE
    assert re.fullmatch(r"20\d\d(-[01]\d(-[0-3]\d)?)?", fact.date)
    assert re.fullmatch(r"https://github\.com/\S+/((blob|tree)/[0-9a-f]{10}/\S+|(issues|pull)/\d+)", fact.address)
    assert all(isinstance(number, int | float) and number > 0 for number in fact.x + fact.y)
    assert len(fact.y) == (len(fact.x) or 1) and list(fact.x) == sorted(set(fact.x))
    assert {other.unit for other in recorded.facts(fact.key)} == {fact.unit}


@pytest.mark.parametrize("key", sorted({fact.key for fact in FACTS}))
def test_a_published_number_has_the_unit_that_its_lesson_prints(key):
    calls = [call for text in LESSONS for call in re.findall(rf'value\(\\"{re.escape(key)}\\", .*?\\"(.*?)\\"', text)]
    assert all(unit == recorded.facts(key)[0].unit for unit in calls)
    drawn = [call for text in LESSONS for call in re.findall(rf'compare\([\s",\\n]*?{re.escape(key)}\\"', text)]
    numbers = recorded.facts(key, longer=False)
    assert not calls or not any(fact.x for fact in numbers)  # a curve cannot stand beside one number
    assert len(drawn) + len(calls) <= 1


def test_no_published_number_no_peak_and_no_bus_is_faster_than_the_data_sheet():
    table = {gpu.name: gpu for gpu in gpus.ALL}
    checked = 0
    for fact in FACTS:
        row, lesson = table.get(fact.gpu), fact.key.partition(".others")[0]
        limits = {"03.sum_gbps": "bandwidth_gbps", "02.transfer_bandwidth": "bus_gbps"}
        if row and lesson in limits:
            assert max(fact.y) < getattr(row, limits[lesson])
            checked += 1
        elif row and (formats := re.fullmatch(r"03\.matmul_tflops\.(\w+)|03\.roofline", fact.key)):
            assert max(fact.y) < row.peak_tflops[formats[1] or "fp32"]
            checked += 1
    assert checked > 15


def test_published_facts_are_drawn_in_their_style_where_nothing_is_recorded(unrecorded):
    figure = drawn(ys={"pinned": [2, 20]})
    axes = figure.axes[0]
    found = {line.get_label(): line for line in axes.get_lines()}
    t4 = found["pinned, published: T4, router-gao, 2024-03-07"]
    assert list(t4.get_xdata()) == [32_000_000] and list(t4.get_ydata()) == [9.7]
    assert t4.get_linestyle() == "--" and t4.get_marker() not in ("None", "")  # a pattern of dashes has no name
    assert t4.get_color() == found["pinned, live"].get_color() and found["pinned, live"].get_marker() == "None"
    assert axes.get_legend() is None and len(figure.legends) == 1  # below: so long a text would cover the curves
    plots.legend(axes, loc="best")
    assert len(figure.legends) == 1


def test_a_published_number_for_any_size_is_a_line_across(unrecorded):
    axes = drawn("03.sum_gbps", ys={"GPU": [2, 20]}).axes[0]
    (line,) = [line for line in axes.get_lines() if "H200" in line.get_label()]
    assert list(line.get_xdata()) == [1e3, 1e6] and list(line.get_ydata()) == [4010, 4010]
    assert line.get_marker() == "None"


def test_a_published_number_is_printed_with_its_label_and_on_request_with_its_address(unrecorded):
    live, told = str(recorded.value("03.tf32_speedup", 5.5, "times as fast with TF32 allowed")).splitlines()
    assert live == "5.5 times as fast with TF32 allowed (live)"
    assert told.startswith("7 times as fast with TF32 allowed (") and told.endswith("; published: A100, PyTorch, 2020)")
    shown = str(recorded.published("03.matmul_tflops"))
    assert "256.5 TFLOP/s (the highest of " in shown and "794.5 TFLOP/s (best product found" in shown
    assert shown.count("https://github.com/") == len(shown.splitlines()) == len(recorded.facts("03.matmul_tflops"))
    assert not recorded.facts("03.matmul")  # keys are whole words
    with pytest.raises(ValueError, match=r"key is '03\.nothing', published are 02\.transfer_bandwidth, "):
        recorded.published("03.nothing")


# ---- recording -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [torch.device("cpu"), SimpleNamespace(type="sim"), torch.device("cuda", 0)])
def test_the_cpu_and_simulated_numbers_are_never_recorded(recording, monkeypatch, device):
    monkeypatch.setattr(devices, "pick", lambda: device)
    simulated = device.type == "cuda"  # numbers of the simulated GPU on a machine that has a real one
    for call in (
        lambda: recorded.value("03.launch", 1.0, "us", simulated=simulated),
        lambda: recorded.compare("02.transfer_bandwidth", ys=[1, 2], simulated=simulated, **CURVE),
    ):
        with pytest.raises(RuntimeError, match="records real GPUs only"):
            call()
    assert not recording.exists()


def test_what_was_measured_on_the_cpu_beside_a_gpu_is_drawn_and_not_recorded(recording):
    assert labels(drawn("09.scaling", ys=[1, 2], device="cpu")) == {"live": "-"} and not recording.exists()
    recorded.compare("09.scaling", ys=[1, 2], device=torch.device("cuda", 1), **CURVE)
    assert list(recorded.load()[0].entries) == ["09.scaling"]


def test_calls_write_one_file_for_the_gpu_and_merge(recording):
    recorded.value("03.launch", 4.123456789, "us")
    recorded.compare("02.transfer_bandwidth", ys={"pinned": [1, 2]}, **CURVE)
    assert recorded.load()[0].entries["03.launch"]["value"] == 4.12346  # six digits
    recorded.value("03.launch", 5.0, "us")
    assert [path.name for path in recording.iterdir()] == ["made-up-gpu.json"]
    (run,) = recorded.load()
    assert list(run.entries) == ["02.transfer_bandwidth", "03.launch"]
    assert run.entries["03.launch"] == {"value": 5.0, "unit": "us"}
    text = (recording / "made-up-gpu.json").read_text(encoding="utf-8")
    assert text.endswith("}\n") and text == json.dumps(json.loads(text), indent=1) + "\n"


def test_other_versions_start_the_file_anew(recording, monkeypatch):
    recorded.value("03.launch", 4.0, "us")
    newer = copy.deepcopy(IDENTITY)
    newer["versions"]["torch"] = "2.15.0"
    monkeypatch.setattr(recorded, "_identity", lambda device: newer)
    recorded.value("03.other", 4.0, "us")
    (run,) = recorded.load()
    assert list(run.entries) == ["03.other"] and run.versions["torch"] == "2.15.0"


def test_a_failed_write_leaves_the_old_file(recording, monkeypatch):
    recorded.value("03.launch", 4.0, "us")
    before = (recording / "made-up-gpu.json").read_bytes()
    monkeypatch.setattr(recorded.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        recorded.value("03.launch", 9.0, "us")
    assert (recording / "made-up-gpu.json").read_bytes() == before
    assert len(list(recording.iterdir())) == 1


def test_nothing_is_written_unless_asked_for_and_nothing_can_be_without_a_clone(recording, monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_RECORD", "0")
    recorded.value("03.launch", 4.0, "us")
    assert not recording.exists()
    monkeypatch.setenv("COURSE_RECORD", "1")
    monkeypatch.setattr(recorded, "_REPOSITORY", tmp_path / "site-packages" / "notebooks" / "recorded")
    with pytest.raises(RuntimeError, match="needs a clone"):
        recorded.value("03.launch", 1.0, "us")


def test_the_best_products_are_those_that_lessons_show():
    shown = {fact.gpu: fact.y[0] for fact in recorded.facts() if fact.key == "03.matmul_tflops.bf16"}
    both = {gpu.name: gpu.best_bf16_tflops for gpu in gpus.ALL if gpu.best_bf16_tflops and gpu.name in shown}
    assert {"H100 SXM", "B200", "MI300X"} <= both.keys() and both.items() <= shown.items()
