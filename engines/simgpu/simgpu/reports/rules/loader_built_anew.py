"""The DataLoader, and its workers, start again."""

import weakref
from typing import Any

import torch
from torch.utils.data import TensorDataset

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


class LoaderBuiltAnew(Rule, about="time"):
    text = (
        "This builds the DataLoader anew again and again, and any workers start each time. Build it once, before the "
        "loop."
    )
    cure = "build it once, before the loop"

    def begin(self) -> None:
        self._loaders: dict[str, tuple[list[weakref.ref[Any]], int]] = {}  # by line: their data, and groups until then
        self._lines: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # that have built loaders
        self._used: set[str] = set()  # lines whose last loader has begun

    def on_loader_built(self, event: events.LoaderBuilt) -> None:
        """Note a loader that has the data of the one before, which was used, for the same optimizers.

        A sampler may choose another part of the same data, as in cross-validation.
        """
        line = places.place()
        before, groups = self._loaders.get(line, ([], -1))
        data = [] if event.sampled else _data_of(event.dataset)
        same = len(before) == len(data) > 0 and all(old() is new for old, new in zip(before, data, strict=True))
        if same and groups == self.program.groups and line in self._used:
            self.note(line)
        self._used.discard(line)
        self._lines[event.loader] = line
        self._loaders[line] = [weakref.ref(one) for one in data], self.program.groups

    def on_loader_begun(self, event: events.LoaderBegun) -> None:
        self._used.add(self._lines.get(event.loader, ""))


def _data_of(dataset: Any) -> list[Any]:
    """Return the objects that tell the data of a loader from those of another; none where nothing can be kept in mind.

    Two `TensorDataset`s of the same tensors have the same data.
    """
    data = list(dataset.tensors) if isinstance(dataset, TensorDataset) else [dataset]
    return data if all(hasattr(one, "__weakref__") or isinstance(one, torch.Tensor) for one in data) else []
