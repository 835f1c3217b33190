"""Do the explorers of lessons 09 and 10 end where each definition says, with the bytes and times of the formulas?"""

import itertools
import math

import pytest
import torch
import torch.distributed as dist

from course_utils import plots
from gpu_course.lesson09.explorers import buckets, collectives, ring
from gpu_course.lesson09.explorers.exchange import OPERATIONS, exchange
from gpu_course.lesson10.explorers import pipeline
from tests.gpu_course.explorer_settings import settings

RANKS = range(2, 9)


# ---- what each rank holds


def numbers(n):
    """Return a tensor for each rank, with one number a piece: 10^rank x (piece + 1)."""
    return [[10**rank * (piece + 1) for piece in range(n)] for rank in range(n)]


def expected(operation, n, root):
    """Return what the operation gives each rank, from its definition on the numbers; None where it gives nothing."""
    x = numbers(n)
    total = [sum(column) for column in zip(*x, strict=True)]
    only_root = [total if rank == root else None for rank in range(n)]
    return {
        "broadcast": [x[root]] * n,
        "reduce": only_root,
        "all_reduce": [total] * n,
        "all_gather": [[x[source][source] for source in range(n)]] * n,
        "reduce_scatter": [[total[rank]] for rank in range(n)],
        "scatter": [[x[root][rank]] for rank in range(n)],
        "gather": [[x[s][s] for s in range(n)] if rank == root else None for rank in range(n)],
        "all_to_all": [[x[source][rank] for source in range(n)] for rank in range(n)],
        "barrier": [[x[source][source] for source in range(n)]] * n,  # each rank knows that all are there
    }[operation]


def value(slot, n):
    return sum(numbers(n)[rank][piece] for rank, piece in slot)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("n", RANKS)
def test_every_rank_ends_with_what_the_definition_says_one_message_a_step_of_what_is_held(operation, n):
    for root in range(n):
        run = exchange(operation, n, root)
        for rank, wanted in enumerate(expected(operation, n, root)):
            got = [value(run.states[-1][rank][slot], n) for slot in run.results[rank]]
            assert got == (wanted or []), (root, rank)
        whole = {tuple(sorted(slot)) for state in run.states[-1] for slot in state}
        assert all(len(set(slot)) == len(slot) for slot in whole)  # nothing was added twice
        assert len(run.states) == len(run.steps) + 1
        for before, step in zip(run.states, run.steps, strict=False):
            assert step and all(m.sender != m.receiver and before[m.sender][here] for m in step for here, _ in m.slots)
            for ranks in ([message.sender for message in step], [message.receiver for message in step]):
                assert len(set(ranks)) == len(ranks)


@pytest.mark.parametrize("n", RANKS)
def test_steps_and_pieces_are_those_of_the_formulas(n):
    steps = {name: len(exchange(name, n).steps) for name in OPERATIONS}
    tree = math.ceil(math.log2(n))
    ones = dict.fromkeys(("all_gather", "reduce_scatter", "scatter", "gather", "all_to_all"), n - 1)
    assert steps == {"broadcast": tree, "reduce": tree, "all_reduce": 2 * (n - 1), "barrier": tree, **ones}
    received = lambda run, rank: sum(m.pieces for step in run.steps for m in step if m.receiver == rank)  # noqa: E731
    for name, pieces in {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}.items():
        run = exchange(name, n)
        assert {run.sent_pieces(r) for r in range(n)} == {received(run, r) for r in range(n)} == {pieces}
    run = exchange("all_reduce", n)  # as lesson 09 says: rank r begins with part r, then hands on what came last
    assert all(m.slots[0][0] == (m.sender - s) % n for s, step in enumerate(run.steps) for m in step)
    assert exchange("scatter", n, root=1).sent_pieces(1) == n - 1 == received(exchange("gather", n, root=1), 1)
    sent = [exchange("broadcast", n).sent_pieces(r) for r in range(n)]
    assert sum(sent) == n * (n - 1) and sent[0] == tree * n  # each of the others receives n pieces once


@pytest.mark.parametrize("n", RANKS)
def test_a_barrier_sends_empty_messages_and_no_rank_ends_before_all_are_known_to_be_there(n):
    run = exchange("barrier", n)
    assert all(message.empty for step in run.steps for message in step)
    assert {message.pieces for step in run.steps for message in step} == {0}
    assert not all(all(state) for state in run.states[-2]) and all(all(state) for state in run.states[-1])
    caption = collectives.explore().caption(operation="barrier", ranks=n)
    assert "0 to 1 (empty)" in caption and "No message has any bytes" in caption and "Tensors of" not in caption


def test_the_root_is_a_control_and_one_beyond_the_last_rank_means_the_last():
    explorer = collectives.explore()
    assert explorer.compute(operation="broadcast", ranks=4, root=2).messages[0].sender == 2
    assert explorer.compute(operation="broadcast", ranks=4, root=7).exchange.root == 3
    for operation in OPERATIONS:
        first, second = (explorer.compute(operation=operation, ranks=3, root=root) for root in (0, 1))
        matters = first.exchange.steps != second.exchange.steps
        assert matters == (operation in ("broadcast", "reduce", "scatter", "gather"))
        assert ("(root 1)" in collectives.describe(second)) == matters
        named = [tick.get_text() for tick in collectives.draw(second).axes[0].get_xticklabels()]
        assert named == (["rank 0", "rank 1\nroot", "rank 2"] if matters else ["rank 0", "rank 1", "rank 2"])


def test_controls_offer_only_the_steps_and_roots_that_there_are(monkeypatch):
    explorer, shown = collectives.explore(), ring.explore()
    monkeypatch.setattr(plots, "png", lambda figure: b"")  # controls and words are enough
    for one in (explorer, shown):
        monkeypatch.setattr(one, "_draw", lambda result: None)
    words = explorer.widget().children[-1]
    step, root, ranks, operation = (explorer.boxes[name] for name in ("step", "root", "ranks", "operation"))
    assert len(step.options) == 6 and root.layout.display == "none"
    ranks.value = 8
    step.value = 14
    operation.value = "broadcast"
    assert len(step.options) == step.value == 3 and "Step 3 of 3" in words.value
    assert len(root.options) == 8 and root.layout.display is None
    root.value = 7
    ranks.value = 2
    assert root.value == 1 and step.layout.display == "none" and "(root 1)" in words.value
    words = shown.widget().children[-1]
    assert len(shown.boxes["step"].options) == 6
    shown.boxes["ranks"].value = 16
    assert shown.boxes["step"].layout.display == "none" and "Step" not in words.value


def test_bytes_are_pieces_times_their_size_and_over_one_root_everything_goes_through_one_link():
    s = collectives.collective(operation="all_reduce", ranks=4, step=99, nbytes=400)
    assert s.step == 6 and s.sent_bytes == (600.0,) * 4 and s.total_bytes == 2400.0
    assert "Step 6 of 6" in collectives.describe(s) and "each rank sends 600 B" in collectives.describe(s)
    r = ring.ring(ranks=5, nbytes=10**9, gbps=10.0, latency_us=100.0)
    assert r.root_bytes == 8e9 and r.root_s == pytest.approx(8 * (1e-4 + 0.1))
    assert r.root_s > r.ring_s


def test_the_picture_shows_what_is_held_before_and_after_and_an_arrow_for_each_message():
    s = collectives.collective(operation="all_reduce", ranks=3, step=2, nbytes=300)
    before, after = collectives.draw(s).axes
    for axes, at in ((before, 1), (after, 2)):
        slots = [slot for state in s.exchange.states[at] for slot in state]
        boxes = [patch for patch in axes.patches if hasattr(patch, "get_xy")]
        assert len(boxes) == len(slots) + sum(len(slot) for slot in slots)
    arrows = [text for text in before.texts if getattr(text, "arrow_patch", None) is not None]
    assert len(arrows) == len(s.messages) == 3


# ---- ring


def test_the_ring_costs_what_its_simulated_messages_cost():
    for n, nbytes, latency in itertools.product(RANKS, (7_000, 2**28), (0.0, 10.0)):
        r = ring.ring(ranks=n, nbytes=nbytes, gbps=5.0, latency_us=latency)
        run = exchange("all_reduce", n)
        assert r.steps == len(run.steps) == 2 * (n - 1)
        assert r.sent_bytes == pytest.approx(run.sent_pieces(0) * nbytes / n) == pytest.approx(2 * (n - 1) / n * nbytes)
        largest = [max(m.pieces for m in step) for step in run.steps]
        assert r.ring_s == pytest.approx(sum(latency * 1e-6 + pieces * nbytes / n / 5e9 for pieces in largest))
        assert r.ring_s == pytest.approx(2 * (n - 1) * (latency * 1e-6 + nbytes / (n * 5e9)))


# ---- buckets


@pytest.mark.parametrize("cap_mib", [1, 2, 5, 25, 100])
@pytest.mark.parametrize("model", buckets.MODELS)
def test_buckets_are_those_of_pytorch(model, cap_mib):
    sizes = [round(mib * 2**20) for layer in reversed(buckets.MODELS[model]) for mib in reversed(layer)]
    tensors = [torch.empty(size // 4) for size in sizes]  # never written: no memory is taken
    for first in (None, 2**20):
        limits = [cap_mib * 2**20] if first is None else [first, cap_mib * 2**20]
        theirs = dist._compute_bucket_assignment_by_size(tensors, limits)[0]
        assert buckets.assign(sizes, cap_mib * 2**20, first) == theirs


def test_defaults_are_those_of_pytorch():
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == buckets._FIRST_BYTES
    assert f"{buckets.DEFAULT_CAP_MIB} MiB" in torch.nn.parallel.DistributedDataParallel.__doc__
    caption = buckets.explore().caption
    assert "buckets of 25 MiB (the first 1 MiB)" in caption() and "(the first" not in caption(cap_mib=10)


def test_every_gradient_is_in_one_bucket_and_no_all_reduce_starts_before_its_bucket_is_full_or_the_link_free():
    for setting in settings(buckets.explore()):
        s = buckets.buckets(**setting)
        total = sum(round(mib * 2**20) for layer in buckets.MODELS[setting["model"]] for mib in layer)
        for found, earliest in ((s.overlapped, 0.0), (s.apart, s.backward_s)):
            assert sum(bucket.nbytes for bucket in found) == total
            free = earliest
            for bucket in found:
                assert bucket.start_s == max(free, bucket.ready_s)
                link = {"ranks": s.ranks, "gbps": s.gbps, "latency_us": setting["latency_us"]}
                assert bucket.end_s - bucket.start_s == pytest.approx(ring.ring(nbytes=bucket.nbytes, **link).ring_s)
                free = bucket.end_s
        assert s.overlapped[-1].ready_s == pytest.approx(s.backward_s)
        assert s.exposed_s >= 0 and s.overlapped_s <= s.apart_s
        assert s.apart_s == pytest.approx(s.backward_s + s.communication_s)
        assert s.exposed_s >= s.overlapped[-1].end_s - s.overlapped[-1].start_s - 1e-9  # the last is never hidden


# ---- pipelines


@pytest.mark.parametrize(("ranks", "micro"), [(2, 8), (4, 4), (4, 32), (8, 16)])
def test_bubble_time_and_bytes_of_a_pipeline_are_those_of_its_formulas(ranks, micro):
    step = {}
    for name in pipeline.SCHEDULES:
        step[name] = s = pipeline.pipeline(
            schedule=name, ranks=ranks, micro=micro, forward_ms=2.0, backward_ms=4.0, activation_mib=10
        )
        waits = (ranks - 1) * {"inter": 3.0, "zero ": 2.0}.get(name[:5], 6.0)  # ms
        assert s.total_ms == pytest.approx(6.0 * micro + waits) and s.bubble == pytest.approx(waits / s.total_ms)
    gpipe, early, interleaved, split = (s.held_bytes for s in step.values())
    assert gpipe == (micro * 10 * 2**20,) * ranks and split == (min(micro, ranks) * 10 * 2**20,) * ranks
    assert early == tuple(min(micro, ranks - rank) * 10 * 2**20 for rank in range(ranks))
    assert sum(interleaved) > sum(early)


def test_the_picture_of_a_pipeline_has_every_action_and_the_bytes_of_each_rank():
    caption, figure = pipeline.explore().caption(), pipeline.explore().figure()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[-4:] == ["400 MiB", "300 MiB", "200 MiB", "100 MiB"] and len(texts) == 4 * 8 * 2 + 4
    assert caption.startswith("1F1B, 4 ranks, 8 micro-batches: 33.0 ms, bubble 27.3%; rank 0 holds most")
