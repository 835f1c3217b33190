"""Items on placement: devices, copies, views and sizes, and on machines whose GPU does not work."""

import dataclasses
import random

import torch

from course_utils import devices
from course_utils.devices import MINIMUM_DRIVER
from gpu_course.exam import running
from gpu_course.exam.items import Item, but, choice, generator, number


@generator("place", "to-in-place", "created-where-used", short=True, simulated=True)
def where_after_to(draw: random.Random) -> Item:
    """How many tensors end on the device?"""
    n = draw.randint(2, 9)
    lines = [
        *draw.sample([f"a = torch.ones({n})", f"b = torch.zeros({n + 1})", f"c = torch.ones({n}, device=device)"], 3),
        *draw.sample(["a.to(device)", "b = b.to(device)", "c.cpu()"], 3),
        draw.choice(["d = c + 1", "d = c.cpu()"]),
        draw.choice(["e = a * 2", "e = b * 2"]),
    ]
    program = "\n".join(lines)

    def on_device(text: str) -> int:
        names = running.run(text)
        return sum(names[name].device.type == "sim" for name in "abcde")

    changed = program.replace("a.to(device)", "a = a.to(device)").replace("\nc.cpu()", "\nc = c.cpu()")
    wrong = {on_device(program.replace("a.to(device)", "a = a.to(device)")): "to-in-place"}
    wrong |= {on_device(changed): "to-in-place", 5: "devices-mix"}
    steps = (
        "`.to` and `.cpu` return a tensor and leave the old one where it was, so a line without `=` changes nothing.",
        "A result is where its operands are.",
        f"So {(answer := on_device(program))} of the five tensors are on the device.",
    )
    text = "How many of the five tensors a to e are on the device at the end?"
    return number(text, answer, wrong, steps, lambda: on_device(program), shown=running.numbered(lines))


_MIXED = {  # a line, and what makes it right or wrong: x is on the device, y and one are on the CPU
    "x + y": True, "torch.cat([x, y])": True, "x * y.sum(0, keepdim=True)": True, "torch.dot(x, y)": True,
    "torch.where(x > 0, x, y)": True, "x + y.sum()": False, "x * one": False, "x + y.to(device)": False,
    "x.cpu() + y": False, "x[0] + y.sum()": False, "x - y.mean()": False, "x.max() * one": False,
}  # fmt: skip


@generator("place", "devices-mix", short=True, simulated=True)
def does_it_mix(draw: random.Random) -> Item:
    """Which line raises an error?"""
    bad = draw.choice([line for line, raises in _MIXED.items() if raises])
    lines = draw.sample([bad, *draw.sample([line for line, raises in _MIXED.items() if not raises], 4)], 5)
    n = draw.randint(3, 9)
    start = f"x = torch.ones({n}, device=device)\ny = torch.ones({n})\none = torch.tensor(1.0)"

    def raising() -> str:
        names, raised = running.run(start), []
        for line in lines:
            try:
                eval(line, names)
            except RuntimeError:
                raised.append(line)
        (only,) = raised
        return only

    steps = (
        "`x` is on the device, `y` and `one` are on the CPU.",
        "A CPU tensor of zero dimensions may join in arithmetic; all others must be on the device of the rest.",
        f"So `{bad}` raises an error.",
    )
    text = "Each line is run by itself, after the lines above. Which one raises an error?"
    wrong = {line: "devices-mix" for line in lines if line != bad}
    return choice(draw, text, raising(), wrong, steps, raising, shown=start)


@generator("place", "attributes-move-along", short=True, simulated=True)
def what_moves(draw: random.Random) -> Item:
    """How many tensors of a module does `.to` move?"""
    n = draw.randint(2, 8)
    parts = [
        f"self.layer = nn.Linear({n}, {draw.randint(2, 8)})",
        f"self.scale = nn.Parameter(torch.ones({n}))",
        f'self.register_buffer("mean", torch.zeros({n}))',
        f'self.register_buffer("mask", torch.ones({n}), persistent=False)',
        f"self.table = torch.zeros({n})",
        f"self.layers = [nn.Linear({n}, {n})]",
        f"self.more = nn.ModuleList([nn.Linear({n}, {n})])",
    ]
    chosen = [*draw.sample(parts[:4], 2), parts[4], draw.choice(parts[5:])]
    draw.shuffle(chosen)
    lines = ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        {part}" for part in chosen]
    lines += ["", "net = Net().to(device)"]
    program = "\n".join(lines)

    def moved() -> int:
        net = running.run(program)["net"]
        return sum(tensor.device.type == "sim" for tensor in [*net.parameters(), *net.buffers()])

    answer = moved()
    everything = sum(2 if "Linear" in part else 1 for part in chosen)
    buffers = sum("register_buffer" in part for part in chosen)
    wrong = {everything: "attributes-move-along", answer + 1: "attributes-move-along"}
    wrong |= but(answer, {answer - buffers: "attributes-move-along", 4: "attributes-move-along"})
    steps = (
        "`.to` moves parameters and registered buffers; a linear layer has two parameters.",
        "A tensor that is a plain attribute, and layers in a Python list, stay behind.",
        f"So {answer} tensors are on the device.",
    )
    text = "How many tensors does the last line move to the device? A linear layer holds two, weight and bias."
    return number(text, answer, wrong, steps, moved, shown=running.numbered(lines))


@generator("place", "views-are-copies", short=True)
def view_or_copy(draw: random.Random) -> Item:
    """Which value does a tensor show after its view has changed?"""
    rows, columns = draw.randint(2, 3), draw.randint(3, 4)
    row, column, new = draw.randrange(rows), draw.randrange(columns), draw.randint(50, 99)
    make = draw.choice(["table.T", "table.T.clone()", f"table.view({columns}, {rows}).view_as(table).T"])
    lines = [
        f"table = torch.arange({rows * columns}).view({rows}, {columns})",
        f"other = {make}",
        f"other[{column}, {row}] = {new}",
        f"table[{row}, {column}] += 1",
    ]
    program = "\n".join(lines)

    def value() -> int:
        return running.run(program)["table"][row, column].item()

    answer, old = value(), row * columns + column
    wrong = but(answer, {old + 1: "views-are-copies", new + 1: "views-are-copies"})
    wrong |= {old: "views-are-copies", new: "views-are-copies", column * rows + row + 1: "dimension-by-feel"}
    steps = (
        f"`table[{row}, {column}]` begins as {old}.",
        "A transposed tensor or a view looks at the same memory; `clone` has memory of its own.",
        f"So `table[{row}, {column}]` is {answer} at the end.",
    )
    text = f"What is `table[{row}, {column}]` at the end?"
    return number(text, answer, wrong, steps, value, shown=running.numbered(lines))


_CAUSES = {
    "the build has no CUDA": "any-driver",
    "there is no NVIDIA driver": "any-driver",
    "the driver is too old for the build": "any-driver",
    "CUDA_VISIBLE_DEVICES hides the GPU": "variable-any-time",
    "the build has no kernels for this GPU": "available-means-working",
    "nothing: kernels run": "available-means-working",
}


def _report(draw: random.Random, cause: str) -> devices.Report:
    """Return the report of a machine on which `cause` holds."""
    build, driver = draw.choice([("12.6", "560.35.03"), ("12.8", "570.86.15"), ("13.0", "580.65.06")])
    minor = draw.randint(0, 4)
    report = devices.Report(
        "Linux", "6.8", "x86_64", f"3.{draw.randint(11, 13)}", f"2.{9 + minor}.0+cu{build.replace('.', '')}",
        cuda_build=build, driver=driver, cuda_available=True, capability=draw.choice(["7.5", "8.0", "8.6", "9.0"]),
    )  # fmt: skip
    hidden = {"cuda_available": False, "capability": None}
    changes = {
        "the build has no CUDA": {**hidden, "cuda_build": None, "torch": f"2.{9 + minor}.0+cpu"},
        "there is no NVIDIA driver": {**hidden, "driver": None},
        "the driver is too old for the build": {
            **hidden,
            "cuda_build": "13.0",
            "driver": f"5{draw.choice([35, 50, 70])}.54.15",
        },
        "CUDA_VISIBLE_DEVICES hides the GPU": {**hidden, "visible_devices": draw.choice(["", "-1"])},
        "the build has no kernels for this GPU": {
            "capability": draw.choice(["6.0", "6.1"]),
            "kernel_error": "no kernel image is available for execution on the device",
        },
    }
    return dataclasses.replace(report, **changes.get(cause, {}))


_FIRST_CAUSE: dict[str, str] = dict(zip(
    ("cpu-only build", "no driver", "driver too old", "hidden", "unsupported capability", "works"), _CAUSES, strict=True
))  # fmt: skip


def _first_cause(report: devices.Report) -> str:
    """Return the first cause that holds for `report`, a key of `_FIRST_CAUSE`."""
    if report.cuda_available:  # only a kernel that ran proves that the GPU works
        return "works" if report.kernel_error is None else "unsupported capability"
    if report.cuda_build is None:
        return "cpu-only build"
    if report.driver is None:
        return "no driver"
    build, driver = (int(version.split(".")[0]) for version in (report.cuda_build, report.driver))
    return "driver too old" if driver < MINIMUM_DRIVER[build] else "hidden"


@generator("place", "any-driver", "available-means-working", short=True)
def why_no_gpu(draw: random.Random) -> Item:
    """Why does a machine not use its GPU?"""
    report = _report(draw, draw.choice(list(_CAUSES)))
    fields = ("torch", "cuda_build", "driver", "visible_devices", "cuda_available", "capability", "kernel_error")
    values = {name: getattr(report, name) for name in fields}
    if values["visible_devices"] == "":
        values["visible_devices"] = '"" (set, and empty)'
    shown = "\n".join(f"{name:16} {value}" for name, value in values.items())

    def cause() -> str:
        return _FIRST_CAUSE[_first_cause(report)]

    steps = (
        "Is CUDA available? Then only the first kernel tells whether it works.",
        "If not: has the build CUDA, is there a driver, is it new enough (525 for CUDA 12, 580 for CUDA 13)?",
        f"Here the first cause that holds is: {cause()}.",
    )
    text = "A machine with an NVIDIA GPU gives this report. What is wrong, if anything?"
    return choice(draw, text, cause(), _CAUSES, steps, cause, shown=shown)


@generator("place", "device-names-are-global", short=True)
def which_gpu(draw: random.Random) -> Item:
    """Which GPU of the machine is behind a device name?"""
    count = draw.randint(5, 8)
    seen = draw.sample(range(count), 3)
    asked = draw.randrange(3)
    setting = ",".join(map(str, seen))

    def behind() -> int:
        return int(setting.split(",")[asked])

    wrong = {asked: "device-names-are-global", sorted(seen)[asked]: "device-names-are-global"}
    wrong |= {seen[asked - 1]: "device-names-are-global"}
    steps = (
        f"The program sees the GPUs {setting}, in this order, and numbers them from 0.",
        f"cuda:{asked} is entry {asked} of the list, GPU {behind()}.",
    )
    text = (
        f"A machine has {count} GPUs, numbered from 0. A program is started with CUDA_VISIBLE_DEVICES={setting}. Which "
        f"GPU of the machine is `cuda:{asked}` in it?"
    )
    return number(text, behind(), wrong, steps, behind)


@generator("place", "units-are-alike", "elements-are-bytes", short=True)
def size_of_tensor(draw: random.Random) -> Item:
    """How many MiB does a tensor take?"""
    rows, columns = draw.choice([3, 5, 6, 7, 9, 11]) * 1024, draw.choice([512, 1024, 2048])
    dtype = draw.choice([torch.float16, torch.bfloat16, torch.float64, torch.int64])
    nbytes = rows * columns * dtype.itemsize

    def measured() -> float:
        return torch.empty(rows, columns, dtype=dtype, device="meta").nbytes / 2**20

    wrong = {
        nbytes / 1e6: "units-are-alike",
        rows * columns * 4 / 2**20: "elements-are-bytes",
        rows * columns / 2**20: "elements-are-bytes",
        8 * nbytes / 2**20: "units-are-alike",
    }
    steps = (
        f"{rows} × {columns} elements of {dtype.itemsize} bytes.",
        f"1024 × 1024 bytes are a MiB, so this is {nbytes / 2**20:g} MiB.",
    )
    text = f"How many MiB does a tensor of shape ({rows}, {columns}) and dtype {dtype} take?"
    return number(text, nbytes / 2**20, wrong, steps, measured, unit="MiB")
