"""Which kind of operators does one belong to, such as matrix products? Its name says it."""

_KINDS = {  # the first whose words are in the name of an operator
    "attention": ("attention",),
    "convolutions": ("convolution",),
    "matrix products": ("mm", "dot", "addmv", "mv", "rnn", "lstm", "gru"),
    "normalisation": ("norm",),
    "optimizer": ("_foreach", "_fused"),
    "copies": ("copy_", "clone", "cat", "index", "embedding", "gather", "scatter", "roll", "pad", "stack", "repeat"),
    "reductions": ("sum", "mean", "softmax", "loss", "max", "min", "pool", "cumsum", "var", "argmax", "topk", "sort"),
}


def kind_of(name: str) -> str:
    """Return which kind of operators one belongs to, such as "matrix products"."""
    return next((kind for kind, words in _KINDS.items() if any(word in name for word in words)), "element by element")
