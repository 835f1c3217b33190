"""Will this training fit? The memory of a Transformer's training step by owner, against the memory of GPUs.

The model is that of `models.TransformerLM`: pre-norm, GELU, tied output layer, no dropout. The formulas count what
autograd keeps of it, tensor by tensor, in the manner of Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198,
section 4.1), whose layer has dropout besides. States of mixed precision, and what the stages of ZeRO divide:
Rajbhandari et al. 2020 (https://arxiv.org/abs/1910.02054, sections 3.1 and 5). Attention is fused unless told
otherwise: it keeps q, k, v, its result, and one number a row and head. Attention that is not fused is written out from
a product, a mask, a softmax and a product. The program holds the logits in a variable, as most do. Not counted: the
CUDA context, workspaces of libraries, fragmentation.
"""

from dataclasses import dataclass
from typing import Any

from course_utils import arguments, gpus, plots
from gpu_course.common.gpts import MODELS
from gpu_course.explorers import Choice, Explorer, Slider, Switch
from gpu_course.lesson07.explorers.fit_moments import FORMATS, OPTIMIZERS, Moment, Setting, moments

__all__ = ["FORMATS", "MODELS", "OPTIMIZERS", "OWN_SIZES", "WillItFit", "explore", "will_it_fit"]

OWN_SIZES = "sizes of your own"


@dataclass(frozen=True)
class WillItFit:
    """Bytes on one GPU at the moment of a training step at which most are alive, by owner, and that moment's name."""

    setting: Setting
    parameters: int  # how many the model has
    moments: tuple[Moment, ...]

    peak = property(lambda self: max(self.moments, key=lambda one: one.total_bytes), doc="The moment with most bytes.")
    peak_bytes = property(lambda self: self.peak.total_bytes, doc="Bytes at the peak.")

    def fitting(self) -> tuple[gpus.GPU, ...]:
        """Return the GPUs of the table whose memory is at least the peak, the smallest first."""
        return tuple(gpu for gpu in _by_memory() if gpu.room_bytes >= self.peak_bytes)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {plots.bytes_text(size)}" for name, size in self.peak.parts())
        return f"peak {plots.bytes_text(self.peak_bytes)} at the {self.peak.name}: {parts} (predicted)"


def will_it_fit(
    *, width: int, layers: int, heads: int, vocabulary: int, sequence: int, batch: int, fmt: str = "fp32",
    optimizer: str = "AdamW", checkpointing: bool = False, accumulation: int = 1, gpus: int = 1, stage: int = 0,
    fused: bool = True,
) -> WillItFit:  # fmt: skip
    """Return the memory that one training step takes on each of `gpus` GPUs, predicted.

    `batch` sequences of `sequence` tokens go through each GPU in a step, in `accumulation` parts. `fmt` is one of
    `FORMATS`, `optimizer` one of `OPTIMIZERS`, `stage` 0 to 3 of ZeRO. `checkpointing` keeps each block's input only.
    Raises ValueError or TypeError that names a wrong argument.
    """
    sizes = {
        "width": width, "layers": layers, "heads": heads, "vocabulary": vocabulary, "sequence": sequence,
        "batch": batch, "accumulation": accumulation, "gpus": gpus,
    }  # fmt: skip
    for name, size in sizes.items():
        arguments.whole(name, size)
    if width % heads:
        raise ValueError(f"width is {width} and heads is {heads}; width must be a multiple of heads")
    arguments.one_of("fmt", fmt, FORMATS)
    arguments.one_of("optimizer", optimizer, OPTIMIZERS)
    arguments.one_of("stage", arguments.whole("stage", stage, least=0), (0, 1, 2, 3))
    setting = Setting(**sizes, fmt=fmt, optimizer=optimizer, stage=stage, checkpointing=checkpointing, fused=fused)
    return WillItFit(setting, setting.parameters, moments(setting))


def _by_memory() -> list[gpus.GPU]:
    return sorted(gpus.ALL, key=lambda gpu: gpu.room_bytes)


def _of_model(*, model: str, **setting: Any) -> WillItFit:
    """Return `will_it_fit` for a model of `MODELS`, whose sizes stand for those given, or for `OWN_SIZES`."""
    return will_it_fit(**setting | (MODELS.get(model, {})))


def describe(fit: WillItFit) -> str:
    """Return the result in words."""
    s = fit.setting
    sizes = {"width": s.width, "layers": s.layers, "heads": s.heads, "vocabulary": s.vocabulary}
    name = next((name for name, known in MODELS.items() if known == sizes), "A model")
    parts = ", ".join(f"{owner} {plots.bytes_text(size)}" for owner, size in fit.peak.parts() if size)
    names = ", ".join(gpu.name for gpu in fit.fitting())
    many = f" on each of {s.gpus} GPUs (ZeRO stage {s.stage})" if s.gpus > 1 else ""
    kernel = "fused attention" if s.fused else "attention that is not fused"
    return (
        f"{name} of width {s.width:,}, {s.layers} layers, {s.heads} heads and a vocabulary of {s.vocabulary:,}: "
        f"{plots.count_text(fit.parameters)} parameters. {s.micro_batch} x {s.sequence:,} tokens at a time, {s.fmt}, "
        f"{s.optimizer}, {kernel}: {plots.bytes_text(fit.peak_bytes)}{many}, reached at the {fit.peak.name}: {parts}. "
        f"{f'Fits: {names}' if names else 'No GPU of the table has room'}. "
        "Predicted by formulas (Korthikanti et al. 2022; ZeRO: Rajbhandari et al. 2020); the CUDA context, workspaces "
        "and fragmentation come on top."
    )


def draw(fit: WillItFit) -> Any:
    """Return the picture: the peak by owner beside the memory of GPUs, and all moments of the step."""
    figure, (left, right) = plots.new(
        ("Peak by owner", "The moments of the step"), ylabel="GiB, predicted", columns=2, widths=(4, 5), height_in=4.2
    )
    _stack(left, [fit.peak], ["peak"])
    lines = _lines(fit)
    top = max(fit.peak_bytes, *(gpu.room_bytes for gpu in lines)) / 2**30
    for gpu in lines:
        height = gpu.room_bytes / 2**30
        left.axhline(height, color=plots.INK, linewidth=1.2)
        left.annotate(gpu.name, (0.99, height), (0, 2), xycoords=("axes fraction", "data"),
                      textcoords="offset points", ha="right", fontsize=8, color=plots.INK)  # fmt: skip
    left.set(ylim=(0, top * 1.1), xlim=(-0.6, 1.8))
    names = [moment.name.replace(" of the ", ",\n").replace(" step", "\nstep") for moment in fit.moments]
    _stack(right, fit.moments, names)
    right.set_ylim(0, fit.peak_bytes / 2**30 * 1.1)
    right.tick_params(axis="x", labelsize=7.5)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8.5)
    return figure


def _lines(fit: WillItFit) -> list[gpus.GPU]:
    """Return the GPUs to compare with: the largest that is too small, and the smallest that is not."""
    small = len(gpus.ALL) - len(fit.fitting())
    return _by_memory()[max(small - 1, 0) : small + 1]


def _stack(axes: Any, moments: Any, names: list[str]) -> None:
    """Draw one bar for each moment, its parts on top of each other."""
    sizes = [dict(moment.parts()) for moment in moments]
    parts = {owner: [size[owner] / 2**30 for size in sizes] for owner in sizes[0]}
    plots.stack(axes, names, parts, width=0.6, edgecolor="white", hatch=plots.hatch(plots.PREDICTED))
    axes.grid(False, axis="x")


def explore(**defaults: Any) -> Explorer:
    """Return the explorer of lesson 07; `defaults` sets controls, such as `layers=24` or `model="GPT-2"`."""
    powers = lambda first, last: tuple(2**n for n in range(first, last + 1))  # noqa: E731
    sizes = {"width": 1600, "layers": 48, "heads": 16, "vocabulary": 2**16}
    first = {"model": OWN_SIZES if sizes.keys() & defaults.keys() else "GPT-2 XL", **sizes, "sequence": 1024}
    first |= {"batch": 8, "fmt": "fp32", "optimizer": "AdamW", "accumulation": 1, "gpus": 1, "stage": 0, **defaults}
    controls = [
        Choice("model", "Model", (OWN_SIZES, *MODELS), first["model"], instead_of=tuple(sizes)),
        Slider("width", "Width", (128, 256, 512, 768, 1024, 1600, 2048, 4096, 8192), first["width"]),
        Slider("layers", "Layers", (2, 4, 8, 12, 24, 32, 48, 80), first["layers"]),
        Slider("heads", "Heads", (4, 8, 16, 32), first["heads"]),
        Slider("vocabulary", "Vocabulary", powers(8, 18), first["vocabulary"]),
        Slider("sequence", "Sequence", powers(7, 15), first["sequence"]),
        Slider("batch", "Batch", powers(0, 8), first["batch"]),
        Slider("accumulation", "Accumulation", powers(0, 6), first["accumulation"]),
        Choice("fmt", "Number format", tuple(FORMATS), first["fmt"]),
        Choice("optimizer", "Optimizer", tuple(OPTIMIZERS), first["optimizer"]),
        Slider("gpus", "GPUs", powers(0, 6), first["gpus"]),
        Choice("stage", "ZeRO stage", (0, 1, 2, 3), first["stage"]),
        Switch("checkpointing", "Checkpointing", defaults.get("checkpointing", False)),
        Switch("fused", "Fused attention", defaults.get("fused", True)),
    ]
    return Explorer("will it fit", _of_model, draw, describe, controls)
