"""Continuous batching: answers depend on their request alone, and end truthfully."""

from __future__ import annotations

import threading

import pytest
import torch

from eyrie.gateway.embedded.engine import FIRST_LENGTH, Engine, Job
from eyrie.gateway.embedded.sampling import Sampling, draw
from eyrie.target import load_model, load_receipt
from eyrie.target.llama import Llama

END = frozenset({2})


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tiny_target):
    return Llama.load(load_receipt(tiny_target).folder)


@pytest.fixture
def engine(model):
    made = []

    def make(width=8, context=512, end_ids=END):
        made.append(Engine(model, end_ids, lambda ids: "".join(map(chr, ids)), width=width, context=context))
        return made[-1]

    yield make
    for one in made:
        one.close()


def finish(engine, jobs, timeout=60.0):
    """Submit all and wait for the last."""
    left, done = set(jobs), threading.Event()

    def notify(touched):
        left.difference_update(job for job in touched if job.ended)
        if not left:
            done.set()

    for job in jobs:
        job.notify = notify
    for job in jobs:
        engine.submit(job)
    assert done.wait(timeout), "not finished in time"
    return [(job.ids, job.finish_reason) for job in jobs]


def job(prompt, max_tokens=12, sampling=None, **more):
    return Job(prompt, max_tokens, sampling or Sampling(0.0), lambda touched: None, **more)


def some_jobs(count=20, seed=0):
    """Jobs of many lengths, every third one sampled."""
    random = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=random))

    return [
        job(
            torch.randint(3, 250, (number(1, 120),), generator=random).tolist(),
            number(1, 40),
            Sampling(0.8, 0.9, seed=i) if i % 3 == 0 else None,
        )
        for i in range(count)
    ]


def test_greedy_answers_equal_transformers(engine, tiny_target):
    reference = load_model(load_receipt(tiny_target))
    jobs = [j for j in some_jobs() if j.sampling.greedy]
    for one, (ids, reason) in zip(jobs, finish(engine(), jobs), strict=True):
        expected = reference.generate(
            torch.tensor([one.prompt]), do_sample=False, max_new_tokens=one.max_tokens, eos_token_id=2, pad_token_id=0
        )[0, len(one.prompt) :].tolist()
        assert ids == expected
        assert reason == ("stop" if ids[-1] == 2 else "length")


def test_an_answer_does_not_depend_on_width_order_or_company(engine):
    together = finish(engine(width=8), some_jobs())
    backwards = finish(engine(width=8), some_jobs()[::-1])[::-1]
    narrow = finish(engine(width=3), some_jobs())
    alone = [finish(engine(width=8), [one])[0] for one in some_jobs()[:4]]
    assert together == backwards == narrow
    assert together[:4] == alone


def test_more_jobs_than_slots_all_finish_and_slots_are_reused(engine):
    one = engine(width=2)
    answers = finish(one, [job([5, 6, i + 7], 5) for i in range(30)])
    assert all(len(ids) <= 5 for ids, _ in answers)
    assert one.generated == sum(len(ids) for ids, _ in answers)
    assert one.rows == [None, None]


def test_end_token_stops_and_is_among_the_ids(engine):
    """Every token ends a turn here, so the first one does."""
    ids, reason = finish(engine(end_ids=frozenset(range(300))), [job([5, 6, 7])])[0]
    assert (len(ids), reason) == (1, "stop")


def test_length_is_reported_exactly_at_max_tokens(engine):
    ids, reason = finish(engine(end_ids=frozenset()), [job([5, 6, 7], 9)])[0]
    assert (len(ids), reason) == (9, "length")


def test_stop_string_ends_at_the_token_that_completes_it(engine):
    free, _ = finish(engine(end_ids=frozenset()), [job([5, 6, 7], 12, Sampling(1.0, seed=4))])[0]
    text = "".join(map(chr, free))
    stop = text[5:7]
    ids, reason = finish(engine(end_ids=frozenset()), [job([5, 6, 7], 12, Sampling(1.0, seed=4), stop=(stop,))])[0]
    assert reason == "stop"
    assert ids == free[: text.index(stop) + 2]


def test_rows_longer_than_the_first_cache_grow_it_and_stay_the_same(engine, model):
    long = torch.randint(3, 250, (FIRST_LENGTH - 3,), generator=torch.Generator().manual_seed(1)).tolist()
    # rope tables and cache know no limit of their own; the context does
    one = Engine(model, frozenset(), str, width=2, context=FIRST_LENGTH + 200)
    short = job([7, 8, 9], 20)
    answers = finish(one, [job(long, 20), short])
    assert one.cache.max_len > FIRST_LENGTH
    one.close()
    assert answers[1] == finish(engine(end_ids=frozenset()), [job([7, 8, 9], 20)])[0]
    fresh = Engine(model, frozenset(), str, width=1, context=FIRST_LENGTH + 200)
    assert finish(fresh, [job(long, 20)]) == answers[:1]
    fresh.close()


def test_cancelled_job_leaves_its_row(engine):
    one = engine(width=1, end_ids=frozenset())
    started = threading.Event()
    endless = job([5, 6], 500)
    endless.notify = lambda touched: started.set()
    one.submit(endless)
    assert started.wait(30)
    one.cancel(endless)
    assert finish(one, [job([7, 8], 4)])[0][1] == "length"
    assert not endless.ended and len(endless.ids) < 500


def test_failure_of_the_model_reaches_every_job(engine, monkeypatch, capfd):
    one = engine(width=2)
    monkeypatch.setattr(one.model, "forward", lambda *a, **k: (_ for _ in ()).throw(MemoryError("no memory")))
    jobs = [job([5, 6, i + 7]) for i in range(4)]
    finish(one, jobs)
    assert all("no memory" in j.error and j.finish_reason is None for j in jobs)
    with pytest.raises(RuntimeError, match="stopped"):
        one.submit(job([5]))
    assert "MemoryError" in capfd.readouterr().err


def test_what_does_not_fit_the_context_is_refused(engine):
    with pytest.raises(ValueError, match="do not fit"):
        engine(context=64).submit(job(list(range(3, 60)), 40))


def test_draws_follow_the_distribution_and_the_cuts():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    generator = torch.Generator().manual_seed(0)

    def frequencies(sampling, count=4000):
        drawn = torch.tensor([draw(logits, sampling, generator) for _ in range(count)])
        return torch.bincount(drawn, minlength=4) / count

    torch.testing.assert_close(frequencies(Sampling(1.0)), torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.03, rtol=0.0)
    assert frequencies(Sampling(1.0, top_k=2))[2:].sum() == 0
    cut = frequencies(Sampling(1.0, top_p=0.75))  # 0.5 alone is too little, 0.8 reaches it
    torch.testing.assert_close(cut, torch.tensor([0.625, 0.375, 0.0, 0.0]), atol=0.03, rtol=0.0)
    cold = frequencies(Sampling(0.1), 500)
    assert cold[0] > 0.98
    assert frequencies(Sampling(1.0, top_p=0.4), 100)[0] == 1
