"""Further wrong answers to lesson 13, each with what the message must say."""

from gpu_course.checks import edit


def _one_by_one(peak_of, capacity, room):
    batch = 0
    while peak_of(batch + 1, 2) + room <= capacity:
        batch += 1
    return batch


WRONG = {
    "first_line": [
        ("expected tuple", edit("return f\"{longest['file']}:{longest['line']}\", report", "return report")),
        ("the rest of the step stays", edit("- longest", "+ longest")),
        ("raises ValueError", edit('    if not report["waits"]:\n        return "", 1.0\n', "")),
    ],
    "batch_that_fits": [
        ("runs, and", _one_by_one),
        ("raises ValueError", edit("low, high = 0, 1", "low, high = 0, 0")),
        ("does not end", edit("high = middle", "high = high")),
    ],
    "train_on": [
        ("this is the mean loss of the steps", edit("/ len(batches)", "")),
        ("after all steps", edit("optimizer.zero_grad()", "pass")),
        ("copies to the device", edit("len(y), device=device)", "len(y)).to(device)")),
        ("the model is on", edit("    return total.item()", "    model.to('meta')\n    return total.item()")),
    ],
    "device_test": [
        ("fails for a layer that is right", edit("assert result.device == device", "assert result.device != device")),
        ("never calls the layer on", edit("result = layer", "return\n    result = layer")),
    ],
    "cheapest": [
        ("slow takes 1.0 h and costs 0.5", edit("cost < least", "cost > least", '"", math.inf', '"", 0')),
        ("raises ZeroDivisionError", edit("* step_s / 3600", "* step_s / 0")),
        ("expected: 'two'", edit("offer.start_h +", "-offer.start_h +")),
    ],
}  # fmt: skip
