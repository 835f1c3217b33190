"""Items on diagnosis: errors, logs, traces, hangs, kernels and slow ranks."""

import random
import re

import torch

import kernelcheck
import simgpu
from gpu_course.exam import running
from gpu_course.exam.items import Item, but, choice, generator, number


@generator("diagnose", "error-line-is-the-cause", short=True, simulated=True)
def late_error(draw: random.Random) -> Item:
    """Which line is at fault when errors come late?"""
    size, n = draw.randint(4, 20), draw.randint(2, 9)
    bad_at = draw.choice([3, 4, 5])
    table = f"table = torch.arange({size}.0, device=device)"
    index = f"index = torch.arange({n}, device=device)"
    good = [f"a = table[index % {size}]", "b = table * 2", "c = table[:1] + 1", "d = table.sum()"]
    lines = [table, index, *draw.sample(good, 3)]
    lines.insert(bad_at - 1, f"e = table[index + {size + draw.randint(1, 5)}]")
    lines += ["y = table.mean()", "print_it = y.item()"]
    program = "\n".join(lines)

    def line_in(mode: str) -> int:
        before = simgpu.settings()
        simgpu.configure(errors=mode)
        try:
            running.run(program)
        except Exception as error:
            trace, line = error.__traceback__, 0
            while trace is not None:
                line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == "<item>" else line
                trace = trace.tb_next
            return line
        finally:
            simgpu.forgive()
            simgpu.restore(before)
        return 0

    late = line_in("asynchronous")
    wrong = {
        late: "error-line-is-the-cause",
        late - 1: "error-line-is-the-cause",
        2: "the-usual-suspect",
        1: "the-usual-suspect",
    }
    steps = (
        "The GPU reports an error at a later call that waits for it, so the line in the message is only the latest "
        "possible.",
        f"In line {bad_at} each index is {size} or more, and `table` has {size} entries.",
    )
    text = (
        f"This program ends in line {late} with `device-side assert triggered`. Which line has to be repaired? (A "
        "numbered line of the program.)"
    )
    return number(text, line_in("blocking"), wrong, steps, lambda: line_in("blocking"), shown=running.numbered(lines))


_FLAT = {
    "the optimizer holds other parameters than the model": "optimizer-follows-the-model",
    "no gradient reaches the weights": "the-usual-suspect",
    "the learning rate is far too small": "the-usual-suspect",
    "the learning rate is far too large": "the-usual-suspect",
    "gradients of all steps add up": "gradients-are-replaced",
    "the first loss is infinite already": "any-number-fits",
}


def _train(cause: str, seed: int) -> list[tuple[float, float, float]]:
    """Train four steps with a fault, and return loss, norm of the gradients and change of the weights of each."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 4, generator=made)
    y = x @ torch.randn(4, 1, generator=made) + 3
    w, other = torch.zeros(4, 1, requires_grad=True), torch.zeros(4, 1, requires_grad=True)
    small, large = cause == "the learning rate is far too small", cause == "the learning rate is far too large"
    rate = 1e-7 if small else 30.0 if large else 0.02
    rows = []
    for _ in range(4):
        before = w.detach().clone()
        guess = x @ (w.detach() if cause == "no gradient reaches the weights" else w)
        if cause == "the first loss is infinite already":
            guess = guess + torch.log(torch.zeros(1))
        loss = (guess - y).square().mean()
        if loss.requires_grad:
            loss.backward()
        norm = 0.0 if w.grad is None else w.grad.norm().item()
        with torch.no_grad():
            stepped = other if cause == "the optimizer holds other parameters than the model" else w
            if w.grad is not None:
                stepped -= rate * w.grad
        rows.append((loss.item(), norm, (w.detach() - before).norm().item()))
        if cause != "gradients of all steps add up":
            w.grad = None
    return rows


@generator("diagnose", "the-usual-suspect", "optimizer-follows-the-model", short=True)
def log_of_a_training(draw: random.Random) -> Item:
    """Why does a loss not fall as it should?"""
    cause, seed = draw.choice(list(_FLAT)), draw.randrange(10**6)

    def table_of(name: str) -> str:
        rows = [
            f"{at:4}  {loss:9.4g}  {norm:13.4g}  {change:17.4g}"
            for at, (loss, norm, change) in enumerate(_train(name, seed))
        ]
        return "\n".join(["step       loss  gradient norm  change of weights", *rows])

    shown = table_of(cause)

    def told() -> str:
        (only,) = [name for name in _FLAT if table_of(name) == shown]
        return only

    rows = _train(cause, seed)
    steps = (
        f"The gradients have the norm {rows[0][1]:.3g} in the first step and {rows[-1][1]:.3g} in the last.",
        f"The weights change by {rows[0][2]:.3g} in the first step.",
        f"So {cause}.",
    )
    text = "The usual learning rate of this model is 0.02. What is wrong?"
    return choice(draw, text, cause, _FLAT, steps, told, shown=shown)


_WAITS = {
    "the loader": "gpu-is-the-slow-part",
    "copies to the device": "copies-cost-bytes-alone",
    "values that the host reads": "reads-are-free",
    "launches of many small kernels": "launches-are-free",
    "nothing: the GPU is busy": "waiting-is-a-fault",
}


def _step_of(cause: str, size: int, work: int) -> simgpu.Timeline:
    """Return the timeline of three steps that wait for `cause`, on a host that only launches."""
    before = simgpu.settings().host
    simgpu.configure(host="kernel launch")
    device = torch.device("sim", 0)
    x, host = torch.ones(size, size, device=device), torch.ones(size, size)
    simulated = torch.get_device_module(device)
    simulated.synchronize()
    with simgpu.timeline() as timeline:
        for _ in range(3):
            if cause == "the loader":
                simgpu.host_work("load a batch", 0.1 * work)
            if cause == "copies to the device":
                for _ in range(4):
                    host.to(device)
            if cause == "launches of many small kernels":
                for row in x[:30, :8]:
                    row.add(1)
            y = x @ x
            if cause == "values that the host reads":
                for _ in range(12):
                    (x[0, 0] + 1).item()
            if cause == "nothing: the GPU is busy":
                for _ in range(work):
                    y = y @ x
        simulated.synchronize()
    simgpu.configure(host=before)
    return timeline


@generator("diagnose", "gpu-is-the-slow-part", "waiting-is-a-fault", simulated=True)
def why_the_gpu_waits(draw: random.Random) -> Item:
    """What does a GPU wait for, by its trace?"""
    cause, size, work = draw.choice(list(_WAITS)), draw.choice([256, 272, 288, 304, 320]), draw.randint(12, 20)
    timeline = _step_of(cause, size, work)

    def ms(kind: str) -> float:
        return sum(record.duration_ns for record in timeline.select(kind)) / 1e6

    idle = sum(gap.duration_ns for gap in timeline.gaps()) / 1e6
    host = sum(one.duration_ns for one in timeline.records if (one.row, one.name) == ("host", "load a batch"))
    rows = [
        ("time in all", f"{timeline.total_ms:8.3f} ms"), ("GPU computes", f"{timeline.busy_ms():8.3f} ms"),
        ("kernels", f"{len(timeline.select('kernel')):8}"), ("copies to the device", f"{_copies(timeline, 'H2D'):8}"),
        ("time of all copies", f"{ms('copy'):8.3f} ms"), ("values read by the host", f"{_copies(timeline, 'D2H'):8}"),
        ("host loads batches", f"{host / 1e6:8.3f} ms"), ("host waits for the GPU", f"{timeline.waited_ms:8.3f} ms"),
        ("GPU idle", f"{idle:8.3f} ms"),
    ]  # fmt: skip

    def told() -> str:
        busy = timeline.busy_ms() / timeline.total_ms
        by_cause = {
            "the loader": host / 1e6, "copies to the device": ms("copy") if _copies(timeline, "H2D") else 0.0,
            "values that the host reads": idle if _copies(timeline, "D2H") else 0.0,
            "launches of many small kernels": idle if len(timeline.select("kernel")) > 60 else 0.0,
        }  # fmt: skip
        return "nothing: the GPU is busy" if busy > 0.6 else max(by_cause, key=lambda name: by_cause[name])

    steps = (
        f"The GPU computes for {timeline.busy_ms():.3f} of {timeline.total_ms:.3f} ms.",
        "Where it is idle, ask what the host does meanwhile; a host that waits for a busy GPU is no fault.",
        f"The GPU waits for … {cause}.",
    )
    shown = "\n".join(f"{name:24}{value}" for name, value in rows)
    return choice(draw, "Three training steps. What does the GPU wait for?", cause, _WAITS, steps, told, shown=shown)


def _copies(timeline: simgpu.Timeline, direction: str) -> int:
    return sum(direction in record.name for record in timeline.select("copy"))


_HANGS = {
    "a rank has left the program, or the loop, before the others": "a-rank-may-skip",
    "two ranks call different collectives": "a-rank-may-skip",
    "the network is too slow": "the-usual-suspect",
    "a rank has raised an error": "the-usual-suspect",
    "the ranks compute, and nobody hangs": "waiting-is-a-fault",
}


@generator("diagnose", "a-rank-may-skip", "the-usual-suspect")
def report_of_a_hang(draw: random.Random) -> Item:
    """Why does a program hang, by where its ranks are?"""
    count, odd, n = draw.choice([2, 3, 4]), 0, draw.randint(2, 30)
    odd = draw.randrange(count)
    early = draw.choice([True, False])
    steps_count = draw.randint(3, 9)
    ends_early = f"""
steps = {steps_count} - (rank == {odd})
for step in range(steps):
    x = group.sum_over_ranks({n} * rank)"""
    calls_another = f"""
x = {n} * rank
if rank == {odd}:
    group.barrier()
x = group.sum_over_ranks(x)
group.barrier()"""
    program = ends_early if early else calls_another

    def rows() -> list[str]:
        waiting = running.ranks(program, count)
        return [
            f"rank {rank}: waits in line {line}, {waiting.call[rank]}"
            if line
            else f"rank {rank}: has ended, without an error"
            for rank, line in enumerate(waiting.line)
        ]

    def told() -> str:
        left = any("ended" in row for row in rows())
        return list(_HANGS)[0 if left else 1]

    steps = (
        "Ranks that wait in a collective wait until all others have called the same one.",
        "One rank has ended." if early else "One rank waits in another collective.",
        f"So {told()}.",
    )
    shown = "\n".join([f"After {draw.randint(30, 300)} s nothing moves any more:", *rows()])
    return choice(draw, "Why does the program hang?", told(), _HANGS, steps, told, shown=shown)


_KERNEL = """@triton.jit
def kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
{body}"""


def _kernel(body: list[str]) -> tuple[object, str]:
    """Return a kernel in Triton's language whose last lines are `body`, and its text."""
    import linecache

    triton, tl = kernelcheck.triton()
    text = _KERNEL.format(body="\n".join(f"    {line}" for line in body))
    file = f"<kernel {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {"triton": triton, "tl": tl}
    exec(compile(text, file, "exec"), names)
    return names["kernel"], text


def _launch(body: list[str], n: int, block: int) -> kernelcheck.TritonReport:
    kernel, _ = _kernel(body)
    x, y, out = torch.ones(n), torch.ones(n), torch.zeros(n)
    return kernelcheck.checked(kernel, (-(-n // block),), x, y, out, n, BLOCK=block)


@generator("diagnose", "grid-fits-exactly", short=True)
def threads_behind_the_end(draw: random.Random) -> Item:
    """How many places does a grid have behind the end?"""
    block, blocks = draw.choice([16, 32, 64, 128]), draw.randint(2, 9)
    n = block * blocks - draw.randint(1, block - 1)

    def behind() -> int:
        numbers = {block_ * block + thread for block_ in range(-(-n // block)) for thread in range(block)}
        return len([place for place in numbers if place >= n])

    wrong = {0: "grid-fits-exactly", n % block: "turned-round", block: "grid-fits-exactly", behind() - 1: "off-by-one"}
    wrong |= {behind() + 1: "off-by-one"}
    steps = (
        f"The grid has {n} / {block}, rounded up: {blocks} blocks, which are {blocks * block} threads.",
        f"{blocks * block} - {n} = {behind()} of them have no element.",
    )
    text = (
        f"A kernel gives each of {n} elements a thread, in blocks of {block}, and starts as many blocks as are "
        "needed. How many threads have no element, so that a mask must stop them?"
    )
    return number(text, behind(), wrong, steps, behind)


@generator("diagnose", "grid-fits-exactly", "masked-places-are-zero")
def line_without_a_mask(draw: random.Random) -> Item:
    """In which line does a kernel leave its arrays?"""
    block = draw.choice([16, 32, 64])
    n = block * draw.randint(2, 6) + draw.randint(1, block - 1)
    factor = draw.randint(2, 9)
    body = draw.sample(["a = tl.load(x + at, mask=inside)", "b = tl.load(y + at, mask=inside)"], 2)
    body += [f"c = {factor} * a + b", "tl.store(out + at, c, mask=inside)"]
    missing = draw.choice([0, 1, 3])
    body[missing] = body[missing].replace(
        ", mask=inside", draw.choice(["", ", mask=at >= 0", f", mask=at <= n + {block}"])
    )

    def at_fault() -> int:
        fault = _launch(body, n, block).fault
        (line,) = re.findall(r":(\d+): ", fault.line if fault else "")
        return int(line)

    wrong = {line: "grid-fits-exactly" for line in (3, 4, 5, 6, 7, 8) if line != at_fault()}
    steps = (
        f"The last program reaches beyond the {n} elements, since {n} is no multiple of {block}.",
        f"Each load and each store needs the mask `inside`; line {at_fault()} lacks it.",
    )
    text = (
        f"Arrays of {n} numbers, {block} to a program. In which line does the kernel touch memory outside its arrays?"
    )
    return number(text, at_fault(), wrong, steps, at_fault, shown=running.numbered(_kernel(body)[1].splitlines()))


@generator("diagnose", "waiting-is-a-fault", "n-gpus-n-times", short=True)
def slow_rank(draw: random.Random) -> Item:
    """Which rank keeps the others waiting?"""
    ranks = draw.choice([5, 6, 7])
    compute = draw.sample(range(60, 100), ranks)
    slow = draw.randrange(ranks)
    compute[slow] = draw.randint(120, 160)
    messages = draw.randint(5, 12)
    step = max(compute) + messages
    inside = [step - own for own in compute]

    def straggler() -> int:
        arrival = {rank: step - wait for rank, wait in enumerate(inside)}
        return max(arrival, key=lambda rank: arrival[rank])

    longest = max(range(ranks), key=lambda rank: inside[rank])
    middle = sorted(range(ranks), key=lambda rank: inside[rank])[1]
    wrong = {longest: "waiting-is-a-fault", middle: "off-by-one"}
    wrong |= but(slow, {at: "the-usual-suspect" for at in (0, ranks - 1) if at not in wrong})
    steps = (
        "All ranks leave an all-reduce together, so who spends most time in it has waited longest for the others.",
        f"Rank {slow} spends least time in it: it came last, and the others waited for it.",
    )
    shown = "rank  in all_reduce (ms)\n" + "\n".join(f"{rank:4}  {ms:6}" for rank, ms in enumerate(inside))
    text = (
        f"{ranks} processes, called ranks, train one model and add up their gradients in `all_reduce`. One step takes "
        f"{step} ms on each of them. Which rank keeps the others waiting?"
    )
    return number(text, straggler(), wrong, steps, straggler, shown=shown)
