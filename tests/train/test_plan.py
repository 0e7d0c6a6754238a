"""Which rows make which step: a pure function, so that a resumed run finds its place by its step number alone."""

from __future__ import annotations

from itertools import islice

from eyrie.train.loop import Settings
from eyrie.train.plan import order, steps
from tests.train.tiny_run import SETTINGS

KEYS = [f"row{number}" for number in range(20)]
TRAINED = [10 + 7 * number % 50 for number in range(20)]


def test_every_epoch_takes_every_row_once_in_another_order() -> None:
    plan = list(steps(KEYS, TRAINED, batch_tokens=60, seed=0, count=60))
    assert len(plan) == 60
    last = plan[-1].epoch
    epochs = [[row for step in plan if step.epoch == epoch for row in step.rows] for epoch in range(last)]
    assert last >= 2 and all(sorted(rows) == list(range(20)) for rows in epochs)
    assert epochs[0] != epochs[1]


def test_a_step_stays_within_its_tokens_unless_one_row_alone_is_longer() -> None:
    for step in steps(KEYS, TRAINED, batch_tokens=60, seed=0, count=40):
        tokens = sum(TRAINED[row] for row in step.rows)
        assert tokens <= 60 or len(step.rows) == 1
    alone = list(steps(KEYS, TRAINED, batch_tokens=1, seed=0, count=20))
    assert [len(step.rows) for step in alone] == [1] * 20


def test_a_longer_run_begins_with_the_steps_of_a_shorter_one() -> None:
    short = list(steps(KEYS, TRAINED, batch_tokens=60, seed=3, count=9))
    long = steps(KEYS, TRAINED, batch_tokens=60, seed=3, count=90)
    assert short == list(islice(long, 9))


def test_rows_keep_their_order_when_others_are_added_and_the_seed_changes_it() -> None:
    more = [*KEYS, "new1", "new2"]
    assert [row for row in order(more, 0, 0) if row < 20] == order(KEYS, 0, 0)
    assert order(KEYS, 0, 0) != order(KEYS, 1, 0) != order(KEYS, 0, 1)


def test_the_learning_rate_warms_up_and_falls_linearly_to_its_end() -> None:
    settings = Settings(**{**SETTINGS["train"], "steps": 100, "lr": 1.0, "warmup": 0.1})
    rates = [settings.learning_rate(step) for step in range(100)]
    assert rates[:10] == [(step + 1) / 10 for step in range(10)] and rates[10] == 1.0
    falls = [left - right for left, right in zip(rates[10:], rates[11:], strict=False)]
    assert max(falls) - min(falls) < 1e-12 and abs(rates[99] - falls[0]) < 1e-12
