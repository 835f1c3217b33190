"""How many bytes does a training step of a Transformer hold at each of its moments? The formulas of `will_it_fit`."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """Bytes of one number, by what it belongs to."""

    weight: int
    gradient: int
    master: int  # a copy of the weights in float32 that the optimizer keeps
    state: int  # one state of the optimizer
    stream: int  # the residual stream between the blocks
    inner: int  # what the products inside a block take and give
    cast: int  # a copy of each product's weight in the format of `inner`, kept for backward
    logit: int  # of one logit, which a variable of the program holds until the step ends
    loss_saved: int  # of one logit, kept for backward
    loss_temporary: int  # of one logit, while the backward pass begins
    softmax: int  # of one score of attention that is not fused, in the softmax
    score: int  # of one such score, kept for backward: the softmax's result, and a copy for the product where it casts


FORMATS = {
    "fp32": Format(4, 4, 0, 4, 4, 4, 0, 4, 4, 8, 4, 4),
    # autocast: cross_entropy asks log_softmax for the format of the logits, which autocast leaves as it is; nll_loss
    # takes a float32 copy of that, and its gradient is float32; the softmax of attention is float32
    "bf16 autocast": Format(4, 4, 0, 4, 4, 2, 2, 2, 6, 4, 4, 6),
    "bf16, fp32 master": Format(2, 2, 4, 4, 2, 2, 0, 2, 2, 4, 2, 2),
}

# States of the size of a float32 parameter. 8 bits: Dettmers et al. 2021, https://arxiv.org/abs/2110.02861, without the
# scales of its blocks.
OPTIMIZERS = {"SGD": 0.0, "SGD, momentum": 1.0, "AdamW": 2.0, "AdamW, 8-bit": 0.5}


@dataclass(frozen=True)
class Setting:
    """What `will_it_fit` was asked."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int
    accumulation: int
    gpus: int
    fmt: str
    optimizer: str
    stage: int
    checkpointing: bool
    fused: bool

    micro_batch = property(lambda s: math.ceil(s.batch / s.accumulation), doc="Rows that go through at a time.")
    tokens = property(lambda s: s.micro_batch * s.sequence, doc="Tokens that go through the model at a time.")

    @property
    def block_parameters(self) -> int:
        """Parameters of one block: four products of 12 width² in all, their biases, two norms."""
        return 12 * self.width**2 + 13 * self.width

    @property
    def outer_parameters(self) -> int:
        """Parameters outside the blocks: embedding (also the output layer), places, last norm."""
        return (self.vocabulary + self.sequence + 2) * self.width

    parameters = property(lambda s: s.layers * s.block_parameters + s.outer_parameters, doc="Parameters in all.")


@dataclass(frozen=True)
class Moment:
    """Bytes alive on one GPU at one moment of the step, by owner."""

    name: str
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    temporaries_bytes: int

    total_bytes = property(lambda self: sum(size for _, size in self.parts()))

    def parts(self) -> list[tuple[str, int]]:
        """Return owner and bytes, in fixed order."""
        return [(name.removesuffix("_bytes"), size) for name, size in list(vars(self).items())[1:]]


def moments(s: Setting) -> tuple[Moment, ...]:
    """Return the moments of a step at which memory can be highest: the loss, three of the backward pass, the step.

    ZeRO 1 divides the optimizer's states among the GPUs, 2 gradients too, 3 parameters too.
    """
    f, tokens = FORMATS[s.fmt], s.tokens
    states, gradients, weights = (s.gpus if s.stage >= least else 1 for least in (1, 2, 3))  # among how many
    parameters = math.ceil(f.weight * s.parameters / weights)
    optimizer = math.ceil((OPTIMIZERS[s.optimizer] * f.state + f.master) * s.parameters / states)
    # sharded parameters are whole while they are used: the outer ones all the time, of the blocks one
    gathered = f.weight * (s.outer_parameters + s.block_parameters) if weights > 1 else 0
    logits, loss, head = f.logit * s.vocabulary * tokens, s.vocabulary * tokens, s.vocabulary * s.width
    block, stream = kept_bytes(s)
    kept = stream if s.checkpointing else block
    tail = stream + s.width * f.inner * tokens + 8 * tokens + f.cast * head
    twice = 3 if s.accumulation > 1 else 2  # a weight used twice: both gradients and their sum, before it joins the old

    def at(name: str, graded: int, activations: int, temporaries: int) -> Moment:
        """Return the moment at which `graded` parameters have their gradients, or all where they are accumulated."""
        whole = s.parameters if s.accumulation > 1 else graded
        unsharded = f.gradient * s.block_parameters if gradients > 1 and graded else 0
        sizes = math.ceil(f.gradient * whole / gradients), optimizer, activations + logits
        return Moment(name, parameters, *sizes, temporaries + gathered + unsharded)

    def backward_of(name: str, graded: int, below: int) -> Moment:
        """Return the highest moment in one block: `graded` parameters have gradients, other blocks keep `below`."""
        inside = [_network(s, f, block)] if s.fused else [_network(s, f, block), _scores(s, f, block)]
        moments_of_block = (at(name, graded + new, below + here, more) for new, here, more in inside)
        return max(moments_of_block, key=lambda moment: moment.total_bytes)

    roots = 4 * s.parameters if s.optimizer == "AdamW" else 0  # of one state, of all parameters at once (foreach)
    graded = math.ceil(f.gradient * s.parameters / gradients)
    return (
        at("loss", 0, s.layers * kept + tail + f.loss_saved * loss, f.loss_temporary * loss),
        backward_of("backward of the last block", head, (s.layers - 1) * kept),
        backward_of("backward of the first block", s.parameters - s.block_parameters, 0),
        at("backward of the embedding", s.parameters, stream, twice * head * f.gradient),
        Moment("optimizer step", parameters, graded, optimizer, logits, math.ceil(roots / states)),
    )


def _network(s: Setting, f: Format, block: int) -> tuple[int, int, int]:
    """Return the moment in a block's small network: new parameters with gradients, bytes kept, temporaries.

    The gradients of the stream, and of the input and the result of GELU, four widths each; its result is gone by then.
    """
    tokens, down = s.tokens, 4 * s.width**2
    inside = s.width * f.stream * tokens + 4 * s.width * f.inner * tokens
    inside += down * f.gradient if f.cast else 0  # a bf16 gradient is there beside its float32 copy
    if s.accumulation > 1:  # new gradients are there beside those of the parts before; the tied weight's waits longest
        inside += (s.vocabulary * s.width + down) * f.gradient
    return down, block, inside


def _scores(s: Setting, f: Format, block: int) -> tuple[int, int, int]:
    """Return the moment in the softmax of attention that is not fused, as `_network` does.

    By then the small network is gone, and what the two products behind the softmax kept. Result, gradient and new
    gradient of the softmax are there together; besides them the gradients of the stream and of v.
    """
    tokens, behind = s.tokens, 9 * s.width**2  # up, down and the product after attention
    scores = s.heads * s.sequence * tokens
    gone = (s.width * f.stream + 11 * s.width * f.inner) * tokens + behind * f.cast + (f.score - f.softmax) * scores
    inside = (s.width * f.stream + s.width * f.inner) * tokens + 2 * f.softmax * scores
    inside += s.vocabulary * s.width * f.gradient if s.accumulation > 1 else 0
    return behind, block - gone, inside


def kept_bytes(s: Setting) -> tuple[int, int]:
    """Return the bytes that one block keeps for the backward pass, and those of its input alone.

    In widths: the input of the first norm and of the second (2, of the stream); their results, q, k, v, the result of
    attention, the input and the result of GELU (2 + 3 + 1 + 4 + 4 = 14). Besides, in float32, mean and deviation of two
    norms and, where attention is fused, one number a head; else a row of scores a head, and the causal mask, in bytes.
    """
    f, tokens = FORMATS[s.fmt], s.tokens
    numbers = 4 * (4 + s.heads) if s.fused else 4 * 4 + f.score * s.heads * s.sequence
    mask = 0 if s.fused else s.sequence**2
    block = (2 * s.width * f.stream + 14 * s.width * f.inner + numbers) * tokens + f.cast * 12 * s.width**2 + mask
    return block, s.width * f.stream * tokens
