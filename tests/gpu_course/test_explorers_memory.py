"""Do the formulas of the two memory explorers give what the simulated GPU measures and what PyTorch's shapes say?"""

import re

import pytest
import torch

import simgpu
from course_utils import devices, gpus, memory, plots
from gpu_course.lesson07.explorers import will_it_fit
from gpu_course.lesson07.explorers.will_it_fit import MODELS, OWN_SIZES
from tests.course_utils import training_programs as programs
from tests.gpu_course.explorer_settings import settings

simulated = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
SMALL = {"width": 64, "layers": 2, "heads": 4, "vocabulary": 512, "sequence": 32, "batch": 4}
MORE = {
    "the loss": {"width": 512, "layers": 4, "heads": 8, "vocabulary": 65536, "sequence": 256, "batch": 8,
                 "optimizer": "SGD", "fmt": "bf16 autocast"},
    "parameters": {"width": 1024, "layers": 2, "heads": 16, "vocabulary": 4096, "sequence": 128, "batch": 1},
    "the embedding": {"width": 512, "layers": 4, "heads": 8, "vocabulary": 65536, "sequence": 256, "batch": 2,
                      "optimizer": "SGD, momentum", "checkpointing": True},
    "4 parts, not fused, autocast": {"width": 512, "layers": 2, "heads": 8, "vocabulary": 8192, "sequence": 1024,
                                     "batch": 8, "fmt": "bf16 autocast", "fused": False, "accumulation": 4},
}  # fmt: skip
CONFIGURATIONS = {**programs.CONFIGURATIONS, **MORE}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in MORE))
    for name in CONFIGURATIONS
])  # fmt: skip
def test_the_formula_is_within_a_tenth_of_the_estimate(name):
    setting = CONFIGURATIONS[name]
    program = programs.program_of(setting)
    fit, estimate = will_it_fit.will_it_fit(**setting), programs.estimated(program, devices.chosen(place()))
    assert fit.parameters == estimate.parameters
    assert fit.peak_bytes == pytest.approx(estimate.peak_bytes, rel=0.1)


def place():
    """Return the simulated GPU where there is one: optimizers work on all parameters at once there, as on CUDA."""
    if simgpu.unavailable() is None:
        simgpu.enable()
        return torch.device("sim", 0)
    return None


def measured(setting):
    """Return the bytes at the peak of the setting's second step on the simulated GPU."""
    device = place()
    model = programs.language_model(setting).to(device)
    chosen = programs.OPTIMIZERS[setting["optimizer"]](model.parameters())
    batch = [torch.zeros(setting["batch"], setting["sequence"], dtype=torch.int64).to(device) for _ in range(2)]
    step = programs.stepping(programs.program_of(setting), device.type)
    step(model, batch, chosen)
    return memory.measure(lambda: step(model, batch, chosen), device).peak_bytes


@simulated
@pytest.mark.parametrize("optimizer", programs.OPTIMIZERS)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("batch", "accumulation", "vocabulary"), [
    (4, 2, 512), (1, 1, 16), *(pytest.param(4, 1, size, marks=pytest.mark.slow) for size in (512, 16))
])  # fmt: skip
def test_the_formula_is_nearly_the_simulated_gpus_peak(optimizer, recompute, batch, accumulation, vocabulary):
    setting = SMALL | {"batch": batch, "vocabulary": vocabulary, "optimizer": optimizer}
    setting |= {"accumulation": accumulation, "checkpointing": recompute, "fmt": "fp32"}
    assert will_it_fit.will_it_fit(**setting).peak_bytes == pytest.approx(measured(setting), rel=0.02)


@simulated
@pytest.mark.parametrize("fmt", ["fp32", "bf16 autocast"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("batch", "accumulation"), [(4, 1), (4, 2)])
def test_attention_that_is_not_fused_keeps_its_scores_as_the_simulated_gpu_does(fmt, recompute, batch, accumulation):
    setting = SMALL | {"sequence": 256, "vocabulary": 64, "batch": batch, "optimizer": "SGD", "fmt": fmt}
    setting |= {"accumulation": accumulation, "checkpointing": recompute, "fused": False}
    fit = will_it_fit.will_it_fit(**setting)
    assert fit.peak_bytes > 1.5 * will_it_fit.will_it_fit(**setting | {"fused": True}).peak_bytes
    assert fit.peak_bytes == pytest.approx(measured(setting), rel=0.02)


def test_the_formula_holds_in_every_setting():
    for setting in settings(will_it_fit.explore()):
        fit = will_it_fit.explore().compute(**setting)
        assert all(size >= 0 for moment in fit.moments for _, size in moment.parts())
        assert fit.peak_bytes == max(moment.total_bytes for moment in fit.moments)
        assert sum(size for _, size in fit.peak.parts()) == fit.peak_bytes
        assert all(gpu.room_bytes >= fit.peak_bytes for gpu in fit.fitting())
        assert will_it_fit._of_model(**setting | {"batch": 2 * setting["batch"]}).peak_bytes >= fit.peak_bytes


def test_sharding_divides_what_its_stage_says():
    parts = [will_it_fit.will_it_fit(**SMALL, gpus=4, stage=stage).moments[-1] for stage in (0, 1, 2, 3)]
    assert [parts[0].optimizer_bytes / p.optimizer_bytes for p in parts] == pytest.approx([1, 4, 4, 4], rel=1e-3)
    assert [parts[0].gradients_bytes / p.gradients_bytes for p in parts] == pytest.approx([1, 1, 4, 4], rel=1e-3)
    assert [parts[0].parameters_bytes / p.parameters_bytes for p in parts] == pytest.approx([1, 1, 1, 4], rel=1e-3)
    assert will_it_fit.will_it_fit(**SMALL, gpus=1, stage=3).moments == will_it_fit.will_it_fit(**SMALL).moments


def test_states_have_the_bytes_that_the_formats_and_optimizers_say():
    count = will_it_fit.will_it_fit(**SMALL).parameters
    for fmt, optimizer, size in (
        ("fp32", "AdamW", 8), ("fp32", "SGD", 0), ("fp32", "SGD, momentum", 4), ("fp32", "AdamW, 8-bit", 2),
        ("bf16, fp32 master", "AdamW", 12), ("bf16 autocast", "AdamW", 8),
    ):  # fmt: skip
        assert will_it_fit.will_it_fit(**SMALL, fmt=fmt, optimizer=optimizer).peak.optimizer_bytes == size * count


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 65}, "multiple of heads"), ({"batch": 0}, "batch must be at least 1"), ({"fmt": "int3"}, "fmt is"),
        ({"optimizer": "Adagrad"}, "optimizer is"), ({"stage": 4}, "stage is"), ({"stage": -1}, "stage must be"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        will_it_fit.will_it_fit(**SMALL | wrong)


def test_pictures_and_words_say_what_the_numbers_say():
    explorer = will_it_fit.explore()
    fit = explorer.compute()
    _, right = explorer.figure().axes
    tops = {}
    for bar in right.patches:
        tops[round(bar.get_x(), 3)] = max(tops.get(round(bar.get_x(), 3), 0), bar.get_y() + bar.get_height())
    assert sorted(tops.values()) == pytest.approx(sorted(m.total_bytes / 2**30 for m in fit.moments))
    assert "predicted" in str(fit) and plots.bytes_text(fit.peak_bytes) in explorer.caption()
    assert "No GPU of the table has room" in explorer.caption(model="GPT-3 175B")


@pytest.mark.parametrize(
    "setting", [{}, {"batch": 1, "optimizer": "SGD"}, {"model": "GPT-2", "sequence": 128, "batch": 1}]
)
def test_words_list_every_gpu_that_fits_and_the_picture_shows_the_smallest_of_them(setting):
    explorer = will_it_fit.explore()
    fit, words = explorer.compute(**setting), explorer.caption(**setting)
    fits = re.search(r"Fits: ([^.]+)\.", words)[1].split(", ")
    assert fits == [gpu.name for gpu in fit.fitting()] and fits
    assert {gpu.name for gpu in gpus.ALL if gpu.room_bytes >= fit.peak_bytes} == set(fits)
    drawn = [text.get_text() for text in explorer.figure(**setting).axes[0].texts]
    assert drawn[-1] == fits[0] and len(drawn) == (1 if len(fits) == len(gpus.ALL) else 2)
    assert not set(drawn[:-1]) & set(fits)


STATED = {
    "GPT-2": 124e6, "GPT-2 medium": 355e6, "GPT-2 large": 774e6, "GPT-2 XL": 1558e6, "Cerebras-GPT 2.7B": 2.7e9,
    "Cerebras-GPT 6.7B": 6.7e9, "Cerebras-GPT 13B": 13e9, "GPT-3 175B": 175e9,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_known_models_have_the_parameters_that_their_makers_state(name):
    explorer = will_it_fit.explore(sequence=1024 if name.startswith("GPT-2") else 2048)
    assert explorer.compute(model=name).parameters == pytest.approx(STATED[name], rel=0.02)
    assert explorer.caption(model=name).startswith(f"{name} of width")
    assert not explorer.caption(model=OWN_SIZES).startswith(name)


def test_sizes_are_set_where_no_known_model_is_chosen(monkeypatch):
    monkeypatch.setattr(plots, "png", lambda figure: b"")
    explorer = will_it_fit.explore(layers=24)
    assert explorer.defaults["model"] == OWN_SIZES and explorer.compute().setting.layers == 24
    explorer.widget()
    shown = lambda: [name for name, box in explorer.boxes.items() if box.layout.display is None]  # noqa: E731
    assert shown() == [control.name for control in explorer.controls]
    explorer.boxes["model"].value = "GPT-2"
    assert set(explorer.boxes) - set(shown()) == {"width", "layers", "heads", "vocabulary"}
    explorer.boxes["model"].value = OWN_SIZES
    assert shown() == [control.name for control in explorer.controls]
