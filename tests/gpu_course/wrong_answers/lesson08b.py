"""Further wrong answers to the kernel gym, each with what the message must say."""

WRONG = {}
