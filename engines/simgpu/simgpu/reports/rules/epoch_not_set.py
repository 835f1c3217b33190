"""A sampler of ranks gives each epoch the same order."""

import weakref
from typing import Any

import torch

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


class EpochNotSet(Rule, about="result"):
    text = "Every epoch sees the samples in the same order. Call `sampler.set_epoch(epoch)` before each epoch."
    cure = "`sampler.set_epoch(epoch)` before each epoch"

    def begin(self) -> None:
        self._orders: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()  # epoch, step
        self._same = ""  # the line whose sampler has the order of the epoch before

    def on_ordered(self, event: events.Ordered) -> None:
        """Take an order for one of training where gradients are on, until a backward pass proves it."""
        sampler, self._same = event.sampler, ""
        if sampler.shuffle and torch.is_grad_enabled():
            epoch, step = self._orders.get(sampler, (-1, -1))
            if epoch == sampler.epoch and step < self.program.step:
                self._same = places.place()
            self._orders[sampler] = sampler.epoch, self.program.step

    def on_backward(self, event: events.Backward) -> None:
        if self._same:
            self.note(self._same)
        self._same = ""
