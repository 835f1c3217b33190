"""Where are the parts of the model, and does it compute what it should? The exercises of lesson 04."""

from gpu_course.lesson04.causal_mask import causal_mask
from gpu_course.lesson04.files import save_elsewhere
from gpu_course.lesson04.forward_on_two import forward_on_two
from gpu_course.lesson04.last_states import last_states
from gpu_course.lesson04.load_checkpoint import load_checkpoint
from gpu_course.lesson04.MaskedLinear import MaskedLinear
from gpu_course.lesson04.places import places

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "MaskedLinear", "places", "load_checkpoint", "causal_mask", "last_states", "forward_on_two", "save_elsewhere",
]  # fmt: skip
