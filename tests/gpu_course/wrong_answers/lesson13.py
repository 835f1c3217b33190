"""Further wrong answers to lesson 13, each with what the message must say."""


def _one_by_one(peak_of, capacity, room):
    batch = 0
    while peak_of(batch + 1, 2) + room <= capacity:
        batch += 1
    return batch


WRONG = {
    "batch_that_fits": [
        ("runs, and", _one_by_one),
    ],
}
