"""The exercise “Resume”."""

from typing import Any

import torch
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.lesson05.resuming import resumes


@exercise(
    minutes=15,
    difficulty=3,
    hints=(
        "Model, optimizer and scheduler have state_dict and load_state_dict. Random numbers: torch.get_rng_state().",
        "The step is a number. Keep it in self.step, which is 0 at the start.",
        "Keep the three parts in __init__. state_dict() has an entry for the state_dict() of each part, for the step "
        "and for torch.get_rng_state(). If the model is on a device, "
        "torch.get_device_module(device).get_rng_state(device) is one more. load_state_dict puts each entry back, with "
        "the part's load_state_dict or with set_rng_state.",
    ),
)
class Progress:
    """All that a run needs to go on; `step` counts the steps that are done."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        self.device = next(model.parameters()).device
        self.step = 0  # the position in the data follows from it

    def state_dict(self) -> dict:
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"step": self.step, "random": torch.get_rng_state()}
        if self.device.type != "cpu":  # dropout on the device draws from the device's generator
            state["device_random"] = torch.get_device_module(self.device).get_rng_state(self.device)
        return state

    def load_state_dict(self, state: dict) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.step = state["step"]
        torch.set_rng_state(state["random"])
        if self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(state["device_random"], self.device)


Progress.exempt(
    "each part knows its own state, whatever model and optimizer it belongs to",
    "evaluation frozen all_frozen shared old_gradients two_groups double_model scalar_parameter",
)
Progress.exempt("a state is what state_dict() made", "no_entries order default_type")
Progress.exempt("it is handed a model, which cannot be kept for later", "second_call")


@Progress.checks
def _(case: Case) -> None:
    resumes(case)
