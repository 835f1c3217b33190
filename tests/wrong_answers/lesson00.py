"""Answers to lesson 00 that people give, each with what the message must say."""


def _stays(x, device):
    x.to(device)
    return 2 * x


def _not_doubled(x, device):
    return x.to(device)


def _in_place(x, device):
    x *= 2
    return x.to(device)


def _no_return(x, device):
    2 * x.to(device)


def _number(x, device):
    return 2 * x.to(device).sum().item()


WRONG = {
    "double": [
        ("does not move a tensor in place", _stays),
        ("not doubled", _not_doubled),
        ("modifies its input", _in_place),
        ("is a return missing?", _no_return),
        ("expected a tensor", _number),
    ]
}
