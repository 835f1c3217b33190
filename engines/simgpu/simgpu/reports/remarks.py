"""What is worth a look in a program, why, and what is to be written instead? Each remark has a code that stays."""

from dataclasses import dataclass

from simgpu.clock.lines import Line

__all__ = ["REMARKS", "Remark", "Suspect", "remark"]


@dataclass(frozen=True)
class Remark:
    """What is said of a habit: what it is about, "result", "time" or "memory", what it does, and what to write.

    `by_hand` is said in a program that has no optimizer.
    """

    about: str
    text: str
    by_hand: str = ""


# By code. Those of waits and of growing memory get their text from the run (`report`).
REMARKS: dict[str, Remark] = {
    "gradients-never-cleared": Remark(
        "result",
        "Nothing clears the gradients, so each step also repeats all the steps before it. Write "
        "`optimizer.zero_grad()` before this line.",
        "Nothing clears the gradients, so each step also repeats all the steps before it. Set `weight.grad = None` of "
        "each weight before this line.",
    ),
    "gradients-cleared-too-early": Remark(
        "result",
        "This clears the gradients between `backward()` and `step()`, so the step changes nothing. Clear them before "
        "`backward()`.",
    ),
    "gradients-thrown-away": Remark(
        "result",
        "This clears gradients that no step has used, so of several batches only the last one counts. Clear them once, "
        "after `step()`.",
    ),
    "optimizer-of-other-parameters": Remark(
        "result",
        "Parameters of this optimizer get no gradient: the model that is trained, or a part of it, is not the one that "
        "it was made for. Make the optimizer last, from the parameters of the model that you train.",
    ),
    "optimizer-never-steps": Remark(
        "result",
        "Backward passes made gradients for this optimizer, and `zero_grad()` cleared them, but its `step()` was never "
        "called, so its parameters have not changed. Call `step()` after `backward()`.",
    ),
    "backward-without-model": Remark(
        "result",
        "This backward pass begins at a tensor that was made of a number, such as by `torch.tensor(loss)`, so no "
        "gradient reaches a model. Compute the loss from the model's result, by operations that have gradients.",
    ),
    "layer-not-registered": Remark(
        "result",
        "This layer gets gradients, but it is no part of its model, and no optimizer has its parameters: a list or a "
        "dict of Python hides it. Keep such layers in an `nn.ModuleList`, an `nn.ModuleDict` or an attribute.",
    ),
    "layer-never-called": Remark(
        "result",
        "Nothing has called this layer in these steps, so it does nothing. Call it in `forward`, or take it out.",
    ),
    "gradients-clipped-too-late": Remark(
        "result",
        "This clips gradients when a step has used them already, or none has come, so it limits nothing. Clip them "
        "between `backward()` and `step()`.",
    ),
    "gradients-clipped-while-scaled": Remark(
        "result",
        "The gradients are still multiplied by the scaler's factor, so that nearly all of them are clipped. Call "
        "`scaler.unscale_(optimizer)` before this line.",
    ),
    "training-in-evaluation-mode": Remark(
        "result",
        "The model is trained in evaluation mode: dropout is off, and batch norm learns nothing. Call `model.train()` "
        "before.",
    ),
    "evaluation-in-training-mode": Remark(
        "result",
        "The model is evaluated in training mode: dropout is on, and batch norm learns from these data. Call "
        "`model.eval()` before, and `model.train()` afterwards.",
    ),
    "dropout-in-evaluation": Remark(
        "result",
        "`F.dropout` drops in evaluation too, unless it is told the mode. Add `training=self.training`, or use a layer "
        "`nn.Dropout`.",
    ),
    "loss-of-all-pairs": Remark(
        "result",
        "One of these has the shape (N, 1) and the other one (N,), so each result is compared with all N numbers that "
        "are wanted. Give both the same shape, as by `.squeeze(1)`.",
    ),
    "softmax-before-cross-entropy": Remark(
        "result",
        "`cross_entropy` gets probabilities and applies softmax once more, so the model learns slowly. Give it the "
        "logits, without softmax.",
    ),
    "sigmoid-before-loss": Remark(
        "result",
        "This loss gets the numbers of a sigmoid and squashes them once more, so the model learns slowly. Give it the "
        "scores, without sigmoid.",
    ),
    "probabilities-without-logarithm": Remark(
        "result",
        "`nll_loss` gets probabilities, and takes them for their logarithms, so the model learns slowly. Write "
        "`log_softmax` in the place of `softmax`.",
    ),
    "optimizer-built-anew": Remark(
        "result",
        "This builds an optimizer anew for the same model, and what it knew of earlier gradients, such as momentum, is "
        "lost. Build it once, before the loop; a scheduler changes its learning rate.",
    ),
    "float16-without-scaler": Remark(
        "result",
        "The forward pass computes in float16, in which small gradients become zero. Multiply the loss by a "
        "`torch.amp.GradScaler`, or use bfloat16.",
    ),
    "ddp-bypassed": Remark(
        "result",
        "This calls the model inside of DistributedDataParallel, so no gradients are averaged and each rank trains a "
        "model of its own. Call the wrapper.",
    ),
    "state-is-no-copy": Remark(
        "result",
        "`state_dict()` holds the weights themselves, and later steps have changed them, so this keeps no earlier "
        "state. Write `copy.deepcopy(model.state_dict())`.",
    ),
    "data-changed-again": Remark(
        "result",
        "This changes the data in place, and in each epoch once more what the epoch before has left. Write "
        "`x = x + noise`, which makes a new tensor, or change a `.clone()`.",
    ),
    "epoch-not-set": Remark(
        "result",
        "The sampler gives the order of the epoch before. Call `sampler.set_epoch(epoch)` before each epoch.",
    ),
    "seed-in-each-step": Remark(
        "result",
        "The same seed in each step draws the same random numbers again. Set it once, before the loop.",
    ),
    "backward-under-autocast": Remark(
        "result",
        "The backward pass runs under autocast, which PyTorch advises against. End the `with torch.autocast(…)` block "
        "after the loss.",
    ),
    "forward-not-used": Remark(
        "time",
        "This forward pass records a graph, and no backward pass uses it. Use the result that you have, or write "
        "`with torch.no_grad():` around it.",
    ),
    "forward-repeated": Remark(
        "time",
        "The model has computed this before in the same step, from the same tensors. Call it once, and use its result "
        "twice.",
    ),
    "gradients-not-used": Remark(
        "time",
        "The backward pass computes gradients of this model's weights, and no optimizer uses them. Write "
        "`with torch.no_grad():` around a teacher, or call `requires_grad_(False)` of the model once.",
    ),
    "not-detached": Remark(
        "time",
        "A backward pass goes on through this call, and the gradients that it makes here are cleared before any step "
        "uses them. Where only another model learns from the result, put `.detach()` behind it.",
    ),
    "evaluation-with-gradients": Remark(
        "time",
        "This evaluation records a graph that no backward pass uses, which takes time and memory. Write "
        "`with torch.inference_mode():` around it.",
    ),
    "cache-emptied-in-each-step": Remark(
        "time",
        "Emptying the cache makes a GPU finish all its work, and the next step asks the driver for the memory again. "
        "Leave it out: PyTorch empties its cache by itself before memory runs out.",
    ),
    "synchronised-in-each-step": Remark(
        "time",
        "The host waits here until the GPU has done everything. Leave it out; only a measurement of time needs it.",
    ),
    "garbage-collected-in-each-step": Remark(
        "time",
        "Looking for garbage takes the host long, and frees no tensor that a variable still holds. Leave it out, and "
        "drop the variable.",
    ),
    "moved-in-each-step": Remark(
        "time",
        "This copies the same tensor to the GPU in each step. Move it once, before the loop.",
    ),
    "host-tensor-in-forward": Remark(
        "time",
        "The forward pass copies a tensor of the CPU to the GPU. Make it there (`device=x.device`), or keep it as a "
        "buffer of the model.",
    ),
    "samples-one-by-one": Remark(
        "time",
        "This calls the model for each sample alone, and each call launches all of its kernels. Call it once, with a "
        "batch of all of them.",
    ),
    "saved-in-each-step": Remark(
        "time",
        "This copies what it saves to the host and writes a file in each step. Save once in an epoch, or every few "
        "hundred steps.",
    ),
    "benchmark-of-changing-sizes": Remark(
        "time",
        "With `torch.backends.cudnn.benchmark` a GPU tries out its algorithms for each size of input that is new, and "
        "here most steps bring one. Set it to False, or pad the inputs to a few sizes.",
    ),
    "loader-built-anew": Remark(
        "time",
        "This builds the DataLoader anew again and again, and starts its workers each time. Build it once, before the "
        "loop.",
    ),
    "loader-begun-anew": Remark(
        "time",
        "This begins the loader anew for each batch: it shuffles all samples, starts its workers, and most samples may "
        "never come. Write `for batch in loader:`, or keep one iterator until it ends.",
    ),
    "double-precision": Remark(
        "time",
        "This computes with float64 numbers, for which most GPUs take many times longer. Unless you need their digits, "
        "convert them with `.float()`.",
    ),
    "small-batch": Remark(
        "time",
        "The batch is so small that the GPU waits for launches {launching} of a step, and there is memory for a larger "
        "one. Raise `batch_size`.",
    ),
    "graph-kept-for-nothing": Remark(
        "memory",
        "`retain_graph=True` keeps the activations of this step, and no other backward pass uses them: they are still "
        "there while the next forward pass makes its own. Leave it out.",
    ),
    "memory-grows": Remark("memory", ""),
    "host-waits": Remark("time", ""),
    "copies-keep-waiting": Remark("time", ""),
    "data-loading": Remark("time", ""),
    "messages-keep-waiting": Remark("time", ""),
}


@dataclass(frozen=True)
class Suspect(Line):
    """A line to look at first: its code, what it is about, in a sentence what is wrong, and what that costs a step."""

    seconds: float = 0.0
    bytes: float = 0.0
    text: str = ""
    code: str = ""

    @property
    def about(self) -> str:
        """What the remark is about: "result", "time" or "memory"."""
        return REMARKS[self.code].about


def remark(code: str, place: str, by_hand: bool = False) -> Suspect:
    """Return the remark `code` on a line, as `places.place` names it; `by_hand`: the program has no optimizer."""
    text = (by_hand and REMARKS[code].by_hand) or REMARKS[code].text
    return Suspect(*Line.of(place).parts, 0.0, 0.0, text, code)
