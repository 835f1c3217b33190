"""Is the data there, the same each time, and the same for any number of workers?"""

import codeop
import io

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from course_utils import data


def test_digits_are_images_and_labels():
    images, labels = data.digits()
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert (labels.shape, labels.dtype) == ((1797,), torch.int64)
    assert (images.min(), images.max()) == (0, 1)
    assert labels.unique().tolist() == list(range(10))
    from sklearn.datasets import load_digits  # 2 seconds, which other processes need not spend

    stored = load_digits()
    assert torch.equal(images[:, 0] * 16, torch.from_numpy(stored.images).float())
    assert torch.equal(labels, torch.from_numpy(stored.target))


def test_text_is_long_english_in_one_order():
    text = data.text()
    assert len(text) > 300_000
    assert text.count(b" the ") > 3_000
    assert text is data.text()
    assert text.index(b'The "assert" statement') == 0  # the first by name


def test_tokens_are_the_bytes_and_belong_to_the_caller():
    tokens = data.tokens()
    assert (tokens.dtype, bytes(tokens.tolist())) == (torch.int64, data.text())
    small = data.tokens(torch.uint8)
    small.zero_()
    assert torch.equal(data.tokens(torch.uint8).long(), tokens)


def test_a_text_batch_is_windows_of_the_text_and_repeats_with_its_generator():
    x, y = data.text_batch(4, 9, torch.Generator().manual_seed(1))
    assert x.shape == y.shape == (4, 9) and x.dtype == y.dtype == torch.int64
    assert x.is_contiguous() and y.is_contiguous()
    for row, later in zip(x.tolist(), y.tolist(), strict=True):
        assert bytes([*row, later[-1]]) in data.text()
        assert row[1:] == later[:-1]
    again = data.text_batch(4, 9, torch.Generator().manual_seed(1))
    assert torch.equal(x, again[0]) and not torch.equal(x, data.text_batch(4, 9, torch.Generator().manual_seed(2))[0])


def test_code_lines_are_prose_and_code_in_turn_and_the_parser_agrees():
    lines = data.code_lines()
    assert len(lines) > 1000 and lines is data.code_lines()
    assert [label for _, label in lines] == [0, 1] * (len(lines) // 2)
    assert all(10 <= len(text) <= 60 and text.isascii() for text, _ in lines)
    for text, label in lines:
        assert is_statement(text) == (label == 1), text
    assert not any(text.startswith((">>>", "...")) for text, _ in lines)
    assert len({text for text, _ in lines}) > 0.95 * len(lines)


def is_statement(line):
    """Return whether `line` may stand in a function, as a statement or its beginning: `codeop` knows the latter."""
    try:
        codeop.compile_command(f"def f():\n    {line}")
    except SyntaxError:
        return False
    return True


def test_a_crop_is_an_image_and_its_label_and_bytes_are_the_same_image():
    crops, small = data.PhotoCrops(40, size=24), data.PhotoCrops(40, size=24, dtype=torch.uint8)
    assert {label for _, label in crops} == set(range(len(data.PHOTO_CLASSES)))
    for (image, label), (whole, same) in zip(crops, small, strict=True):
        assert (image.shape, image.dtype, whole.dtype) == ((3, 24, 24), torch.float32, torch.uint8) and label == same
        assert image.min() >= 0 and image.max() <= 1 and image.std() > 0.01
        assert (image - whole / 255).abs().max() <= 1 / 255


def test_the_label_says_which_photograph_and_which_turn():
    """A mean of many crops, turned back, is nearest to the mean of unturned crops of the same photograph."""
    crops = data.PhotoCrops(400, size=16)
    groups = [[] for _ in data.PHOTO_CLASSES]
    for image, label in crops:
        groups[label].append(image.rot90(-(label % 4), (1, 2)))
    means = torch.stack([torch.stack(group).mean(0) for group in groups])
    upright = means[[0, 4]]
    nearest = (means[:, None] - upright).flatten(2).norm(dim=2).argmin(dim=1)
    assert nearest.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    turned_wrongly = torch.stack([mean.rot90(1, (1, 2)) for mean in means])
    assert (means[1:4] - upright[0]).norm() < (turned_wrongly[1:4] - upright[0]).norm()


def samples(crops):
    return torch.stack([image for image, _ in crops])


def test_a_sample_depends_on_seed_epoch_and_index_alone():
    crops = data.PhotoCrops(3, size=8)
    first = samples(crops)
    torch.manual_seed(5)
    assert torch.equal(samples(crops), first) and torch.equal(samples(data.PhotoCrops(3, size=8)), first)
    assert torch.equal(crops[-1][0], first[2])
    crops.set_epoch(1)
    assert crops.epoch == 1 and not torch.equal(samples(crops), first)
    crops.set_epoch(0)
    assert torch.equal(samples(crops), first)
    assert len(torch.unique(torch.cat([first, samples(data.PhotoCrops(3, size=8, seed=1))]), dim=0)) == 6


@pytest.mark.parametrize(("context", "workers"), [(None, 2), ("spawn", 1)])
def test_workers_give_the_same_samples_and_see_the_next_epoch(context, workers):
    crops = data.PhotoCrops(8, size=8)
    loader = DataLoader(
        crops, batch_size=4, num_workers=workers, persistent_workers=True, multiprocessing_context=context
    )
    for epoch in (0, 3):
        crops.set_epoch(epoch)
        images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
        assert torch.equal(images, samples(crops))
        assert labels.tolist() == [label for _, label in crops]
    del loader


def test_random_numbers_depend_on_the_workers_and_are_the_callers_generator():
    numbers = data.RandomNumbers(4)
    torch.manual_seed(3)
    first = [number for number, _ in numbers]
    torch.manual_seed(3)
    assert first == [torch.rand(()) for _ in range(4)] and [index for _, index in numbers] == [0, 1, 2, 3]
    batches = []
    for workers in (0, 2):
        torch.manual_seed(3)
        batches += list(DataLoader(numbers, batch_size=4, num_workers=workers))
    assert len(batches) == 2 and not torch.equal(batches[0][0], batches[1][0])


def test_the_files_are_decoded_for_each_sample(monkeypatch):
    opened = []
    original = Image.open
    monkeypatch.setattr(Image, "open", lambda file: opened.append(type(file)) or original(file))
    often = samples(data.PhotoCrops(3))
    assert opened == [io.BytesIO] * 3
    data._decoded_once.cache_clear()
    once = [samples(data.PhotoCrops(3, decode_once=True)) for _ in range(4)][-1]
    assert len(opened) <= 3 + 2
    assert torch.equal(often, once)


@pytest.mark.parametrize(("make", "error", "words"), [
    (lambda: data.PhotoCrops(0), ValueError, "length"),
    (lambda: data.PhotoCrops(2, seed=-1), ValueError, "seed"),
    (lambda: data.PhotoCrops(2, dtype=torch.int64), ValueError, "dtype"),
    (lambda: data.PhotoCrops(2).set_epoch(-1), ValueError, "epoch"),
    (lambda: data.PhotoCrops(2)[2], IndexError, "index"),
    (lambda: data.text_batch(4, 0), ValueError, "context"),
    (lambda: data.text_batch(4, 10**9), ValueError, "context"),
    (lambda: data.text_batch(0, 4), ValueError, "batch"),
])  # fmt: skip
def test_wrong_arguments_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make()
