"""Real data that needs no download.

Handwritten digits and two photographs come with scikit-learn, text and code come with Python. `PhotoCrops` is made for
the study of feeding: each sample is decoded from a JPEG file and changed at random when it is asked for, which takes
milliseconds, and is the same for any number of worker processes.
"""

import ast
import contextlib
import functools
import io
from doctest import DocTestParser
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset

from course_utils import arguments

__all__ = [
    "PHOTO_CLASSES", "PhotoCrops", "RandomNumbers", "code_lines", "digits", "text", "text_batch", "tokens",
]  # fmt: skip

_PHOTOS = ("china.jpg", "flower.jpg")
PHOTO_CLASSES = tuple(f"{name[:-4]}, {turn}°" for name in _PHOTOS for turn in (0, 90, 180, 270))
_LIBRARY = ("logging", "statistics", "difflib", "shutil", "subprocess")  # modules whose docstrings are long
_DECODED = (320, 213)  # the JPEG decoder can halve the photographs while it decodes them


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 1,797 handwritten digits: images (1797, 1, 8, 8), float32 in 0..1, and labels (1797,), int64 in 0..9.

    Source: scikit-learn's `load_digits`, a part of the UCI data set "Optical recognition of handwritten digits".
    """
    rows = np.loadtxt(_sklearn() / "data" / "digits.csv.gz", delimiter=",", dtype=np.int64)  # 64 pixels and the label
    images = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8)).float() / 16  # stored as 0..16
    return images, torch.from_numpy(rows[:, -1].copy())


@functools.cache
def text() -> bytes:
    """Return Python's own help texts, in the order of their names: some hundred thousand bytes of English, UTF-8.

    They differ between versions of Python, and so do results that depend on them.
    """
    return "\n\n".join(topics[name].strip() for name in sorted(topics)).encode("utf-8")


def tokens(dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Return the bytes of `text()` as numbers from 0 to 255: a tensor (length,) of `dtype`; uint8 takes least room."""
    return _text_bytes().to(dtype, copy=True)


@functools.cache
def _text_bytes() -> torch.Tensor:
    return torch.frombuffer(bytearray(text()), dtype=torch.uint8)


def text_batch(batch: int, context: int, generator: torch.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `batch` windows of `text()` from random places: x and y, int64 (batch, context), y one byte later."""
    whole, places = _text_bytes(), arguments.whole("context", context)
    if places >= len(whole):
        raise ValueError(f"context is {context}, the text has {len(whole)} bytes: it must be below that")
    first = torch.randint(len(whole) - places, (arguments.whole("batch", batch),), generator=generator)
    both = whole[first[:, None] + torch.arange(places + 1)].long()
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def _source(name: str) -> str:
    """Return the text of a module of Python's library, which is not imported."""
    spec = find_spec(name)
    assert spec is not None and isinstance(spec.loader, SourceFileLoader)
    return spec.loader.get_source(name) or ""


@functools.cache
def code_lines() -> tuple[tuple[str, int], ...]:
    """Return lines of Python's own library, prose and code in turn: pairs (line, label), 0 for prose and 1 for code.

    They are more than 1,000, of 10 to 60 ASCII characters. Python's parser gives the labels: prose stands in docstrings
    and is no example, code is a statement, which the parser writes anew. The lines differ between versions of Python.
    """
    pairs = []
    for name in _LIBRARY:
        prose, code = _prose_and_code(ast.parse(_source(name)))
        pairs += [pair for text, statement in zip(prose, code, strict=False) for pair in ((text, 0), (statement, 1))]
    return tuple(pairs)


def _prose_and_code(tree: ast.Module) -> tuple[list[str], list[str]]:
    """Return the lines of a module's docstrings without examples, and the first lines of its statements, each once."""
    prose, code = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            parts = DocTestParser().parse(ast.get_docstring(node) or "")
            prose += [line.strip() for part in parts if isinstance(part, str) for line in part.splitlines()]
        if isinstance(node, ast.Assign | ast.Return | ast.If | ast.For):
            code.append(ast.unparse(node).splitlines()[0])
    prose, code = ([line for line in dict.fromkeys(lines) if _fits(line)] for lines in (prose, code))
    return [line for line in prose if not _is_code(line)], code


def _fits(line: str) -> bool:
    return 10 <= len(line) <= 60 and line.isascii()


def _is_code(line: str) -> bool:
    """Return whether Python reads `line` as a statement, or as the first line of one."""
    for block in (line, f"{line} pass"):
        with contextlib.suppress(SyntaxError):
            ast.parse(block)
            return True
    return False


def _sklearn() -> Path:
    """Return the folder of scikit-learn's data sets. Finds the package without its import, which takes seconds."""
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("scikit-learn is not installed: pip install scikit-learn")
    return Path(spec.submodule_search_locations[0]) / "datasets"


@functools.cache
def _files() -> tuple[bytes, ...]:
    """Return the two photographs as they are stored: JPEG."""
    return tuple((_sklearn() / "images" / name).read_bytes() for name in _PHOTOS)


def _decoded(photo: int) -> Image.Image:
    """Return a photograph as a PIL image of half its height and width."""
    image = Image.open(io.BytesIO(_files()[photo]))
    image.draft("RGB", _DECODED)
    image.load()
    return image


_decoded_once = functools.cache(_decoded)


class PhotoCrops(Dataset):
    """`length` random squares of two photographs: pairs (image, label), decoded and changed when they are asked for.

    An image is a tensor (3, size, size): of float32 in 0..1, or of uint8 in 0..255 if `dtype` says so. The label, 0 to
    7, is one of `PHOTO_CLASSES`: which photograph, and by which angle the square was turned. Place, size, mirroring and
    brightness are drawn from `seed`, the epoch and the index alone, so that neither the number of workers nor their
    order matters. Call `set_epoch` before each epoch. Another `seed` gives other squares of the same photographs.
    `decode_once` keeps the decoded photographs in memory, in each process, and gives the same samples.
    """

    def __init__(
        self, length: int, size: int = 32, seed: int = 0, dtype: torch.dtype = torch.float32, decode_once: bool = False
    ) -> None:
        self.length, self.size = arguments.whole("length", length), arguments.whole("size", size)
        self.seed = arguments.whole("seed", seed, least=0)
        if dtype not in (torch.float32, torch.uint8):
            raise ValueError(f"dtype is {dtype!r}, it may be torch.float32 or torch.uint8")
        self.dtype, self.decode_once = dtype, decode_once
        # Workers that live for several epochs hold a copy of the data set; this number they share with the main process
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()

    def __len__(self) -> int:
        return self.length

    @property
    def epoch(self) -> int:
        """The epoch whose samples are given."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Give the samples of `epoch` from now on, in workers that run already too."""
        self._epoch.fill_(arguments.whole("epoch", epoch, least=0))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        decode = _decoded_once if self.decode_once else _decoded
        draw = np.random.default_rng([self.seed, self.epoch, _place(index, self.length)])
        label = int(draw.integers(len(PHOTO_CLASSES)))
        photo, turns = divmod(label, 4)
        image = decode(photo)
        side = draw.uniform(80, 160)
        left, top = draw.uniform(0, image.width - side), draw.uniform(0, image.height - side)
        box = (left, top, left + side, top + side)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if draw.random() < 0.5:
            image = ImageOps.mirror(image)
        pixels = np.rot90(np.asarray(image, dtype=np.float32) * draw.uniform(0.7, 1.3), turns)
        pixels = torch.from_numpy(np.clip(pixels, 0, 255).transpose(2, 0, 1).copy())
        return (pixels.to(torch.uint8) if self.dtype is torch.uint8 else pixels / 255), label


class RandomNumbers(Dataset):
    """`length` numbers from PyTorch's global generator, whatever the index: the samples depend on the workers."""

    def __init__(self, length: int) -> None:
        self.length = arguments.whole("length", length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(()), _place(index, self.length)


def _place(index: int, length: int) -> int:
    """Return `index` counted from the front. Raises IndexError, which also ends a `for` loop over a data set."""
    position = index + length if index < 0 else index
    if not 0 <= position < length:
        raise IndexError(f"index is {index}, the data set has {length} samples")
    return int(position)
