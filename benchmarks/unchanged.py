"""Public programs, unchanged, on CUDA's face, against their figures on the CPU.

    python -m benchmarks.unchanged FOLDER [--only TEXT] [--write FILE]

`FOLDER` holds clones of public repositories under their own names, such as FOLDER/nanoGPT. Each program runs twice, as
it is: bare, and by `python -m simgpu`. Nothing of it is changed; where its data cannot be had, small data of the same
form is made, and its own options say a small size and few steps. Prints a row for each program: how each run ended
(for a notebook and tests: how many cells or tests passed), its last figure, and the processor's seconds of the run on
the face, with its report, as a multiple of those of the bare run. Exit status 1 if one failed on the face,
or has another figure there than on the CPU without a reason in the list.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from course_utils import tables

LIMIT_S = 900.0  # of one run


# ---- data in the place of what cannot be had ----------------------------------------------------------------------
def digits(folder: Path, place: str) -> None:
    """Write the 1,797 digits of scikit-learn, in 28 x 28 points, in the form of MNIST, into a place in `folder`."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.kron(found.images / 16 * 255, np.ones((3, 3)))[:, :24, :24].astype(np.uint8)
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    raw = folder / place / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", slice(0, 1500)), ("t10k", slice(1500, None))):
        for kind, values in (("images-idx3", images[part]), ("labels-idx1", found.target[part].astype(np.uint8))):
            sizes = b"".join(int(size).to_bytes(4, "big") for size in values.shape)
            head = bytes([0, 0, 8, values.ndim]) + sizes
            (raw / f"{name}-{kind}-ubyte").write_bytes(head + values.tobytes())
            (raw / f"{name}-{kind}-ubyte.gz").touch()


def photographs(folder: Path, place: str, parts: str, count: str, side: str) -> None:
    """Write so many small pictures of noise into each of the parts of a place in `folder`."""
    from PIL import Image

    noise = np.random.default_rng(0)
    for part in parts.split(","):
        (folder / place / part).mkdir(parents=True, exist_ok=True)
        for number in range(int(count)):
            picture = noise.integers(0, 255, (int(side), int(side), 3), dtype=np.uint8)
            Image.fromarray(picture).save(folder / place / part / f"{number}.jpg")


def cora(folder: Path) -> None:
    """Write a graph of 2,708 papers with 1,433 words, seven subjects and 5,429 citations, made by chance."""
    numbers = np.random.default_rng(0)
    words = numbers.integers(0, 2, (2708, 1433))
    subjects = numbers.integers(0, 7, 2708)
    (folder / "cora").mkdir(exist_ok=True)
    rows = (f"{i}\t" + "\t".join(map(str, words[i])) + f"\tsubject_{subjects[i]}" for i in range(2708))
    (folder / "cora" / "cora.content").write_text("\n".join(rows))
    pairs = numbers.choice(2708 * 2708, 5429, replace=False)
    (folder / "cora" / "cora.cites").write_text("\n".join(f"{one // 2708}\t{one % 2708}" for one in pairs))


def shakespeare(folder: Path) -> None:
    """Write a text and its letters as numbers, as nanoGPT's prepare.py does; the text is the program's own."""
    text = "".join(path.read_text() for path in sorted(folder.glob("*.py")))
    place = folder / "data" / "shakespeare_char"
    (place / "input.txt").write_text(text)
    subprocess.run([sys.executable, "prepare.py"], cwd=place, check=True, capture_output=True)


def wikitext(folder: Path) -> None:
    """Write the first lines of the validation text as all three texts."""
    place = folder / "data" / "wikitext-2"
    lines = (place / "valid.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, count in (("train", 60), ("test", 30), ("valid", 30)):
        (place / f"{name}.txt").write_text("".join(lines[:count]), encoding="utf-8")


def small_gpt2(folder: Path) -> None:
    """Write a GPT-2 of two layers that reads bytes, with its tokenizer, and a text: the program's own."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer
    from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

    place = folder / "gpt2-small"
    place.mkdir()
    words = [*bytes_to_unicode().values(), "<|endoftext|>"]
    (place / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (place / "merges.txt").write_text("#version: 0.2\n")
    GPT2Tokenizer(str(place / "vocab.json"), str(place / "merges.txt")).save_pretrained(place)
    torch.manual_seed(0)
    sizes = GPT2Config(vocab_size=len(words), n_layer=2, n_head=2, n_embd=32, n_positions=128)
    GPT2LMHeadModel(sizes).save_pretrained(place)
    (folder / "training_data.txt").write_text((folder / "main.py").read_text() * 4)


def copied(folder: Path, name: str, other: str) -> None:
    """Copy a file of the program."""
    shutil.copy(folder / name, folder / other)


MAKERS: dict[str, Callable[..., None]] = {
    one.__name__: one for one in (digits, photographs, cora, shakespeare, wikitext, small_gpt2, copied)
}


# ---- programs -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Program:
    """A program of a repository: where, how it is started, its data, and which of its figures is compared.

    `bare` are other arguments for the run on the CPU, of programs that must be told the device. `dressed`: the CPU says
    there that it is an accelerator, for programs that shuffle their data where they find one. `figure` is a regular
    expression whose last match in the output counts. `other` says why the figures differ by right. With `steps` the
    program begins with seeds and ends after so many steps of its first optimizer, in both runs; its figure is then the
    sum of the absolute values of what that optimizer trains.
    """

    repository: str
    folder: str
    command: str
    bare: str | None = None
    data: str = ""
    figure: str = r"[Ll]oss:?\s+([-\d.e]+)"
    other: str = ""
    dressed: bool = False
    gpus: int = 1
    steps: int | None = None

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.folder}: {self.command}".replace("/.:", ":")


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PROGRAMS = [Program(**row) for row in _TABLE["program"]]


@dataclass(frozen=True)
class Ended:
    """How one run ended: `result` in words, its last `figure`, the processor's seconds, and what it printed."""

    result: str
    figure: str
    seconds: float
    output: str


def _run(command: list[str], folder: Path, repository: Path) -> tuple[int, str, float]:
    begun = _used_s()
    found = os.pathsep.join([str(repository), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = {"MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": found}
    environment = os.environ | options
    try:
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"stopped after {LIMIT_S:.0f} s", _used_s() - begun
    return done.returncode, done.stdout + done.stderr, _used_s() - begun


def _used_s() -> float:
    """Return the processor's seconds of all runs until now; 0 on Windows, which does not count them."""
    times = os.times()
    return times.children_user + times.children_system


def run(program: Program, repositories: Path, *, face: bool) -> Ended:
    """Run a program in a copy of its repository, bare or with CUDA's face."""
    with tempfile.TemporaryDirectory() as made:
        copied = Path(made) / program.repository
        shutil.copytree(repositories / program.repository, copied, ignore=shutil.ignore_patterns(".git"))
        folder = copied / program.folder
        if program.data:
            maker, *given = program.data.split()
            MAKERS[maker](folder, *given)
        text = program.command if face or program.bare is None else program.bare
        before = ["-m", "simgpu", "--gpus", str(program.gpus)] if face else []
        if program.dressed and not face:
            before = ["-c", _TABLE["dressed"]]
        if program.steps is not None:
            (Path(made) / "steps.py").write_text(_TABLE["steps"])
            before += [str(Path(made) / "steps.py"), str(program.steps)]
        status, output, seconds = _run([*before, *text.split()], folder, copied)
    found = re.findall(program.figure, output)
    return Ended("ends well" if status == 0 else _reason(output), found[-1] if found else "", seconds, output)


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.strip().splitlines() if re.match(r"\s*[\w.]*(Error|Exception)\b", line)]
    return f"fails: {(lines or output.strip().splitlines()[-1:] or ['?'])[-1][:120]}"


def main() -> bool:
    """Print the table; return whether all ran on the face, with the CPU's figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the repositories are")
    parser.add_argument("--only", default="", help="programs whose line has this text")
    parser.add_argument("--write", type=Path, help="a file for what each run printed, as JSON")
    given = parser.parse_args()
    rows, wrong, told = [], 0, {}
    for program in PROGRAMS:
        if given.only not in program.name or not (given.folder / program.repository).exists():
            continue
        bare, ours = (run(program, given.folder, face=face) for face in (False, True))
        equal = "equal" if bare.figure == ours.figure else program.other or "DIFFERENT"
        wrong += ours.result != "ends well" or (bare.result == "ends well" and equal == "DIFFERENT")
        cost = f"{ours.seconds / bare.seconds:.2f}" if bare.seconds and bare.result == "ends well" else ""
        seconds = f"{ours.seconds:.0f}"
        rows.append([program.name, bare.result, ours.result, bare.figure, ours.figure, equal, seconds, cost])
        told[program.name] = [bare.output, ours.output]
        print(" | ".join(rows[-1]), flush=True)
        if given.write:
            given.write.write_text(json.dumps(told, indent=1))
    heads = ("program", "bare CPU", "CUDA's face", "figure", "figure on the face", "", "s", "× bare")
    print(tables.text(rows, heads))
    return wrong == 0


if __name__ == "__main__":
    raise SystemExit(not main())
