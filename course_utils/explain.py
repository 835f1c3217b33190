"""What does this error mean, and what do I do now?

with explain.caught() as c:
    torch.ones(3, device=DEVICE) + torch.ones(3)
print(c)
"""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Caught", "Explanation", "caught", "explain", "names"]


@dataclass(frozen=True)
class Explanation:
    """What happened, why, and what to do now; `name` is the kind of error, "unknown" where it is not known here."""

    name: str
    what: str
    why: str
    now: str

    def __str__(self) -> str:
        return f"What: {self.what}\nWhy:  {self.why}\nNow:  {self.now}"

    def _repr_html_(self) -> str:
        rows = (("What", self.what), ("Why", self.why), ("Now", self.now))
        return "<table>{}</table>".format(
            "".join(f"<tr><th>{head}</th><td>{html.escape(text)}</td></tr>" for head, text in rows)
        )


@dataclass
class Caught:
    """What `caught` caught: the error, once there was one, and its explanation; prints as the explanation."""

    error: BaseException | None = None
    explanation: Explanation | None = None

    def __str__(self) -> str:
        return str(self.explanation)

    def _repr_html_(self) -> str:
        return self.explanation._repr_html_() if self.explanation else ""


def explain(error: BaseException) -> Explanation:
    """Return the explanation of `error`, in words that hold on every device.

    An error that is not known here is said to be unknown, with its type and the first line of its message.
    """
    if not isinstance(error, BaseException):
        raise TypeError(f"error is a {type(error).__name__}, it must be an exception")
    message = str(error)
    for name, pattern, what, why, now in _KNOWN:
        found = re.search(pattern, message, re.DOTALL)
        if found:
            parts = {key: value for key, value in found.groupdict().items() if value is not None}
            return Explanation(name, _fill(what, parts), why, now)
    first = (message.strip().partition("\n")[0] or "no message")[:200]
    return Explanation(
        "unknown",
        f"{type(error).__name__}: {first}",
        "this course has no explanation of this error.",
        "read the message and the last line of your own code in the traceback; print shapes, dtypes and devices there.",
    )


@contextmanager
def caught(*kinds: type[BaseException]) -> Iterator[Caught]:
    """Catch the error that the block is written to raise, so that a lesson can print its explanation.

    `kinds` are the types that may come (default: Exception). A block that raises nothing is an AssertionError: then the
    lesson would show an error that there is not.
    """
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"kinds holds {kind!r}, it may hold types of errors, such as RuntimeError")
    result, wanted = Caught(), kinds or (Exception,)
    try:
        yield result
    except wanted as error:
        result.error, result.explanation = error.with_traceback(None), explain(error)
    else:
        raise AssertionError("the block was to raise an error, and it raised none")


def names() -> tuple[str, ...]:
    """Return the kinds of errors that are known here."""
    return tuple(name for name, *_ in _KNOWN)


def _fill(text: str, parts: dict[str, str]) -> str:
    """Put the parts of the message into `text`, or use its general form, after the bar, where a part is missing."""
    special, _, general = text.partition(" | ")
    try:
        return special.format(**parts)
    except KeyError:
        return general


_DEVICE = r"(?:cpu|cuda|sim|mps|xpu|meta)(?::\d+)?"

# Name, pattern in the message, what ("special | general"), why, now. The first that fits is taken.
_KNOWN: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "rank hang",
        r"^\d+ of \d+ ranks had not returned after",
        "ranks waited for one another until their time was over.",
        "each collective needs all ranks, in the same order; one left early, or called another one.",
        "read where each rank was; let all ranks call the same collectives, outside of any if on the rank.",
    ),
    (
        "rank died",
        r"^rank (?P<a>\d+) (?:was killed by|ended (?:the process )?with|wrote into the connection)",
        "the process of rank {a} ended before its function returned.",
        "C++ code gave up (as it does at collectives of different sizes), the system wanted its memory, or it left.",
        "read what it printed before; compare the shapes that each rank sends, and the memory that it takes.",
    ),
    (
        "rank result",
        r"^ranks? [\d, and]+ returned an? .*cannot be sent|^what rank \d+ returned cannot be rebuilt",
        "what a rank returned cannot be sent to this process.",
        "a result is pickled: open files, locks, generators and wrapped models do not travel.",
        "return tensors, numbers, text, or a state_dict.",
    ),
    (
        "rank start",
        r"^rank \d+ was not ready after",
        "a rank did not join the others in time.",
        "starting a process imports PyTorch; on a busy machine, or with little memory, that takes long.",
        "try again, with fewer ranks; close other notebooks.",
    ),
    (
        "dead worker",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)",
        "a worker of the DataLoader ended while it was needed.",
        "the system ends a process that takes too much memory, or shared memory; crashes in C++ end it too.",
        "use fewer workers or num_workers=0, where an error shows its line; in a container give more shared memory.",
    ),
    (
        "used before fork",
        r"Cannot re-initialize \w+ in forked subprocess",
        "a forked process used the device that its parent had used before.",
        "a fork copies the memory of the host, not the state of the device.",
        "let workers make CPU tensors and move the batch in the main process, or start them with 'spawn'.",
    ),
    (
        "cannot pickle",
        r"[Cc]an(?:not|'t) pickle|Can't get (?:local object|attribute)|cannot be sent to the ranks",
        "an object cannot be sent to another process.",
        "it is pickled to be sent: functions and classes by their name, locks and generators not at all.",
        "write functions and classes in a module or at the top of a cell, and open files inside the function.",
    ),
    (
        "unused parameter",
        r"Expected to have finished reduction in the prior iteration",
        "DistributedDataParallel waited for the gradient of a parameter that took no part in the loss.",
        "it averages each gradient when all ranks have it; one that never comes leaves the step unfinished.",
        "use or remove the parameter, or pass find_unused_parameters=True.",
    ),
    (
        "port in use",
        r"EADDRINUSE|[Aa]ddress already in use",
        "the port on which the ranks were to meet is taken.",
        "one program at a time listens on a port; a run that was not ended keeps it.",
        "end the old run, or choose a free port: MASTER_PORT, or torchrun --standalone.",
    ),
    (
        "dtypes differ",
        r"have the same dtype|expected scalar type \w+ but found \w+|can't be cast to the desired output type"
        r"|Input type \((?:c10::\w+|[a-z ]+)\) and"
        r"|Input type \((?P<kind>torch\.(?:\w+\.)?)\w+\) and (?:weight|bias) type \((?P=kind)\w+\)"
        r"|Input type \((?P<maker>[A-Z]{3}|Meta)\w+\) and (?:weight|bias) type \((?P=maker)\w+\)",
        "one operation got tensors of two dtypes that it does not mix.",
        "matrix products and layers need one dtype; NumPy's float64 is a frequent guest.",
        "print the dtypes; convert one with .to(other.dtype).",
    ),
    (
        "two devices",
        r"Expected all tensors to be on the same device"
        rf"(?:.*?(?P<a>{_DEVICE})(?: and |, different.*? on )(?P<b>{_DEVICE}))?"
        rf"|must be on the same device|Tensor on device {_DEVICE} is not on the expected device {_DEVICE}"
        r"|is on cpu but expected on mps|Placeholder storage has not been allocated on MPS"
        r"|Input type \(.*\) and weight type \(.*\) should be the same",
        "one operation got tensors on two devices, {a} and {b}. | one operation got tensors on two devices.",
        "an operation runs on one device, and PyTorch moves no operand there for you (only a CPU tensor of no "
        "dimension may join).",
        "print the .device of each operand, and move the small one with .to(other.device).",
    ),
    (
        "no such device",
        r"invalid device ordinal|Invalid device id|device index (?P<index>\d+)? ?out of range|device_index >= 0"
        r"|device (?:index )?is out of range",
        "there is no device with this index.",
        "indices start at 0, so one device is index 0 only; CUDA_VISIBLE_DEVICES may hide others.",
        "compare the index with device_count(), or leave it out for the current device.",
    ),
    (
        "numpy of a device tensor",
        rf"can't convert (?P<a>{_DEVICE}) device type tensor to numpy",
        "a tensor on {a} cannot become a NumPy array.",
        "NumPy reads the memory of the host only.",
        "copy it first: tensor.cpu().numpy(). The copy waits for the device, so do it rarely.",
    ),
    (
        "numpy needs detach",
        r"Can't call numpy\(\) on Tensor that requires grad",
        "a tensor that takes part in autograd cannot become a NumPy array.",
        "NumPy could change values that the backward pass needs.",
        "use tensor.detach().cpu().numpy().",
    ),
    (
        "out of memory",
        r"out of memory(?:.*?Tried to allocate (?P<size>[\d.]+ [KMG]iB|\d+ bytes))?",
        "the device had no room for {size} more. | the device had no room for a tensor.",
        "parameters, gradients, optimizer state, activations and tensors that are still referred to all need memory.",
        "use a smaller batch, delete references to what is not needed, use torch.no_grad() when not training.",
    ),
    (
        "no kernel",
        r"no kernel image is available|invalid device function",
        "this build of PyTorch has no kernels for this GPU.",
        "a build is made for certain compute capabilities, and this GPU is older or newer than they are.",
        "run devices.diagnose(): it names the capability and the build that fits.",
    ),
    (
        "index on the device",
        r"device-side assert triggered",
        "a kernel met an impossible value, nearly always an index out of range.",
        "kernels run later than the line that started them, so the line in the traceback may be the wrong one.",
        "restart the kernel (a simulated GPU: simulator.reset()), run the code on the CPU: there the index is named.",
    ),
    (
        "illegal memory access",
        r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction",
        "a kernel read or wrote where it may not.",
        "a kernel is wrong, your own or a library's; the line in the traceback may be the wrong one.",
        "restart the kernel, set CUDA_LAUNCH_BLOCKING=1 before importing torch, and run it again: that names the line.",
    ),
    (
        "library of the device",
        r"(?P<a>(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|HIPBLAS)_STATUS_\w+|miopenStatus\w+)|cuDNN error"
        r"|unable to find an engine to execute",
        "a library of the device failed with {a}. | a library of the device failed.",
        "mostly too little memory is left for it, or an earlier kernel failed, as with an index out of range.",
        "restart the kernel; try a smaller batch, then the same on the CPU, where a wrong index has its own error.",
    ),
    (
        "device busy",
        r"devices?(?:\(s\) is/are| are) busy or unavailable",
        "the device takes no further program.",
        "it may be set to serve one program at a time, and another one, or an old kernel, has it.",
        "nvidia-smi names the programs on it: end yours, or choose another device.",
    ),
    (
        "no cuda",
        r"Torch not compiled with \w+ enabled|Found no NVIDIA driver|NVIDIA driver on your system is too old"
        r"|No (?:CUDA|HIP) GPUs are available|not linked with support for (?:mps|cuda|xpu) devices|CUDA unknown error"
        r"|system not yet initialized|Could not run 'aten::empty\S*' with arguments from the '(?:MPS|CUDA|XPU)'",
        "this PyTorch cannot use the device that was asked for.",
        "the build has no support for it, or there is no driver or no GPU.",
        "run devices.diagnose() for the cause; write device=DEVICE instead of a fixed name.",
    ),
    (
        "saved on another device",
        r"Attempting to deserialize object on (?:a )?\w+ device",
        "the file holds tensors of a device that this machine does not have.",
        "torch.load puts each tensor back where it was saved from, unless told otherwise.",
        'load with map_location="cpu" or map_location=DEVICE.',
    ),
    (
        "refused pickle",
        r"Weights only load failed",
        "the file holds more than tensors, and was not read.",
        "it is a pickle that wants to call functions on your machine, and weights_only=True allows none.",
        "ask for a file that holds a state_dict, or for safetensors; weights_only=False runs whatever the file says.",
    ),
    (
        "unknown device name",
        r"Expected one of .* device type at start of device string: (?P<name>\w+)",
        "{name!r} is not the name of a device type.",
        "types are words such as cpu, cuda or mps, with an index after a colon.",
        "write device=DEVICE, or one of those words.",
    ),
    (
        "no float64 on mps",
        r"MPS framework doesn't support float64",
        "the GPU of a Mac has no float64.",
        "NumPy's numbers are float64 unless told otherwise.",
        "convert first: tensor.to(torch.float32), then .to(DEVICE).",
    ),
    (
        "shapes of a matrix product",
        r"mat1 and mat2 shapes cannot be multiplied \((?P<a>\w+) and (?P<b>\w+)\)|first two dimensions of batch2",
        "matrices of shapes {a} and {b} cannot be multiplied. | two batches of matrices cannot be multiplied.",
        "in (n, k) @ (k, m) the inner sizes must be equal; in a batch the numbers of matrices too.",
        "print both shapes; transpose one with .T or .mT, or give the layer the input size that arrives.",
    ),
    (
        "shapes do not broadcast",
        r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\)",
        "sizes {a} and {b} meet in one dimension and do not fit.",
        "shapes are compared from the last dimension on; two sizes fit when they are equal or one of them is 1.",
        "print both shapes; add a dimension of size 1 with [:, None] where it is missing.",
    ),
    (
        "view of strided memory",
        r"view size is not compatible with input tensor's size and stride",
        "this shape cannot be a view of the tensor's memory.",
        "after a transpose or a slice the elements are not in one row, and .view never copies.",
        "use .reshape(…), which copies where it must.",
    ),
    (
        "wrong number of elements",
        r"shape '(?P<a>\[.*?\])' is invalid for input of size (?P<b>\d+)",
        "{b} elements do not fill the shape {a}.",
        "a new shape must hold exactly as many elements as the old one.",
        "multiply the sizes; write -1 for one dimension to have it computed.",
    ),
    (
        "sizes in cat or stack",
        r"Sizes of tensors must match except in dimension|stack expects each tensor to be equal size",
        "tensors of different shapes cannot be joined.",
        "cat needs equal sizes in all other dimensions, stack in all of them.",
        "print the shapes; pad the short ones, or join along another dimension.",
    ),
    (
        "channels",
        r"to have (?P<a>\d+) channels, but got (?P<b>\d+) channels instead",
        "the convolution expects {a} channels and got {b}.",
        "images are (batch, channels, height, width).",
        "print the shape of the input; move the channels with .permute(0, 3, 1, 2) if they are last.",
    ),
    (
        "target dtype",
        r"expected target dtype to be .*?, but got (?P<a>\w+)|nll_loss\w*\" not implemented for '(?P<b>\w+)'"
        r"|Found dtype \w+ but expected|for argument #\d+ 'indices' to have one of",
        "labels or indices have a dtype that the function does not take.",
        "cross_entropy and embedding take int64 classes and indices; mse_loss and binary_cross_entropy take floats.",
        "convert them where they are made: .long() for classes, .float() for values.",
    ),
    (
        "one value per channel",
        r"Expected more than 1 value per channel when training, got input size torch\.Size\((?P<a>\[.*?\])\)",
        "BatchNorm got one value for each channel, in an input of size {a}.",
        "in training it subtracts the mean of the batch, and of one value nothing is left.",
        "use larger batches, drop_last=True for the last one, or model.eval() where you do not train.",
    ),
    (
        "no grad",
        r"does not require grad and does not have a grad_fn",
        "backward() found nothing to differentiate.",
        "no tensor with requires_grad=True took part, or it was cut off by no_grad, detach, .item() or .numpy().",
        "check loss.requires_grad, and follow it back to the parameters.",
    ),
    (
        "not a scalar",
        r"grad can be implicitly created only for scalar outputs",
        "backward() was called on a tensor with more than one element.",
        "a gradient belongs to one number, the loss.",
        "reduce first: loss.mean().backward().",
    ),
    (
        "backward twice",
        r"backward through the graph a second time",
        "the graph of this loss was used up by an earlier backward().",
        "saved values are freed after the first pass; a tensor kept from the last step still leads into its old graph.",
        "compute the loss anew, or detach what is carried from step to step.",
    ),
    (
        "changed in place",
        r"modified by an inplace operation(?:: \[[\w.]+ (?P<a>\[[\d, ]*\]))?|leaf Variable that requires grad",
        "a tensor of shape {a} that autograd needs was changed in place."
        " | a tensor that autograd needs was changed in place.",
        "the backward pass would compute with the wrong values.",
        "write y = y + 1 instead of y += 1; change parameters under torch.no_grad() only.",
    ),
    (
        "more than one value",
        r"cannot be converted to Scalar|Boolean value of Tensor with more than one value",
        "a tensor of several elements was used as one number.",
        ".item(), if and while need exactly one value.",
        "reduce it first: .sum(), .any(), .all(), or choose one element.",
    ),
    (
        "index out of range",
        r"index out of range in self|Target -?\d+ is out of bounds|is out of bounds for dimension",
        "an index is larger than the size that it points into.",
        "indices run from 0 to size - 1; labels and tokens are indices too.",
        "print the largest index, and compare it with the number of classes, tokens or rows.",
    ),
    (
        "lost partner",
        r"Connection (?:closed|reset) by peer|Timed out waiting \d+ms|failed to pass monitoredBarrier"
        r"|NCCL error|collective operation timeout",
        "another rank was expected and did not answer.",
        "it failed, left early, or waits in another collective; its own error came first.",
        "look for the error of the other rank, and for ranks that skip a collective.",
    ),
    (
        "rank raised",
        r"^ranks? (?P<a>\d+).*? raised (?P<b>[\w.]+):",
        "rank {a} raised {b}.",
        "an error in the function that the ranks run; the others ended because of it.",
        "read its lines in the message; run the function alone in this process, where you can look at its values.",
    ),
    (
        "worker raised",
        r"Caught (?P<a>\w+) in DataLoader worker process",
        "a worker of the DataLoader raised {a}.",
        "the data set runs in another process; the message holds the traceback of that process.",
        "read its last lines; with num_workers=0 the error comes in your own process.",
    ),
)  # fmt: skip
