"""What is in a vault, in figures: per dataset and model, per provider, per account. Reads indices and the journal's
short rows, never a reply, so it takes a moment whatever the size of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eyrie.vault.ledger import answer_of
from eyrie.vault.opening import FILE_NAME
from eyrie.vault.reader import Reader
from eyrie.vault.records import DATA, Answer

_DATA = f"verdict IN {DATA}"
_BOUGHT = f"{_DATA} AND shared_from IS NULL"


def accounts(reader: Reader) -> list[dict[str, Any]]:
    """Money per account and run, in micro-dollars; `exposure` is what attempts under way or unknown may cost beyond
    what is held for them."""
    rows = reader.query(
        "SELECT account, run, sum(settled) AS settled, sum(reserved) AS reserved, sum(unknown) AS unknown "
        "FROM totals GROUP BY account, run ORDER BY account, run"
    )
    open_ = reader.query(
        "SELECT account, run, sum(state = 'sent') AS under_way, sum(state = 'unknown') AS lost, "
        "sum(max(worst - reserved, 0)) AS exposure FROM journal WHERE state IN ('sent', 'unknown') "
        "GROUP BY account, run"
    )
    counts = {(row["account"], row["run"]): row for row in open_}
    found = []
    for row in rows:
        more = counts.get((row["account"], row["run"]))
        extra = {name: more[name] if more else 0 for name in ("under_way", "lost", "exposure")}
        found.append({**dict(row), **extra})
    return found


def datasets(reader: Reader) -> list[dict[str, Any]]:
    """Answers per model and dataset: counts, tokens by the server, micro-dollars billed and wasted on attempts that
    gave nothing."""
    answers = reader.query(
        f"SELECT model, dataset, total({_DATA}) AS answers, total({_DATA} AND shared_from IS NOT NULL) AS shared, "
        f"total(NOT ({_DATA})) AS rejected, total(prompt_tokens * ({_DATA})) AS prompt_tokens, "
        f"total(completion_tokens * ({_DATA})) AS completion_tokens, "
        f"total(reasoning_tokens * ({_DATA})) AS reasoning_tokens "
        "FROM answers INDEXED BY answers_words WHERE superseded = 0 GROUP BY model, dataset"
    )
    journal = reader.query(
        "SELECT model, dataset, count(*) AS attempts, total(cost) AS billed, "
        "total(cost * (state = 'failed')) AS wasted, total(state = 'unknown') AS lost, "
        "total(state = 'sent') AS under_way FROM journal GROUP BY model, dataset"
    )
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for rows in (answers, journal):
        for row in rows:
            found.setdefault((row["model"], row["dataset"]), {}).update(
                {k: int(row[k]) if isinstance(row[k], float) else row[k] for k in row.keys()}
            )
    empty = {"answers": 0, "shared": 0, "rejected": 0, "prompt_tokens": 0, "completion_tokens": 0,
             "reasoning_tokens": 0, "attempts": 0, "billed": 0, "wasted": 0, "lost": 0, "under_way": 0}  # fmt: skip
    return [{**empty, **found[key]} for key in sorted(found)]


def providers(reader: Reader) -> list[dict[str, Any]]:
    """Answers that were bought, per model and provider: count, tokens, micro-dollars, and the provider's failures."""
    answers = reader.query(
        "SELECT model, coalesce(provider, 'unnamed') AS provider, count(*) AS answers, "
        "total(completion_tokens) AS completion_tokens, total(cost) AS cost FROM answers INDEXED BY answers_words "
        f"WHERE superseded = 0 AND {_BOUGHT} GROUP BY model, provider ORDER BY model, provider"
    )
    failed = reader.query(
        "SELECT model, coalesce(provider, 'unnamed') AS provider, count(*) AS failed FROM journal "
        "WHERE state = 'failed' AND provider IS NOT NULL GROUP BY model, provider"
    )
    failures = {(row["model"], row["provider"]): row["failed"] for row in failed}
    return [
        {
            "model": row["model"], "provider": row["provider"], "answers": row["answers"],
            "completion_tokens": int(row["completion_tokens"]), "cost": int(row["cost"]),
            "failed": failures.get((row["model"], row["provider"]), 0),
        }
        for row in answers
    ]  # fmt: skip


def everything(reader: Reader) -> dict[str, Any]:
    """All figures as JSON; money in micro-dollars."""
    log = reader.path.with_name(FILE_NAME + "-wal")
    size = reader.path.stat().st_size + (log.stat().st_size if log.exists() else 0)
    return {
        "path": str(reader.path), "bytes": size, "accounts": accounts(reader), "datasets": datasets(reader),
        "providers": providers(reader),
    }  # fmt: skip


def export(reader: Reader, *, model: str | None = None, dataset: str | None = None) -> Iterator[dict[str, Any]]:
    """Every answer that holds today, with its reply and its provenance, in the order in which they were stored.

    `reply` is its JSON, or text where a rejected answer was none. `cost_microusd` is 0 for an answer that an identical
    request of another row paid for (`shared`). Raises InputError for a damaged reply.
    """
    given = {k: v for k, v in (("model", model), ("dataset", dataset)) if v is not None}
    where = " AND ".join(["superseded = 0", *(f"{name} = ?" for name in given)])
    for row in reader.pages("*", "answers", where, tuple(given.values())):
        answer = answer_of(row)
        usage = answer.usage
        yield {
            "model": row["model"], "dataset": row["dataset"], "row": row["row"], "turn": row["turn"],
            "repetition": row["repetition"], "verdict": answer.verdict, "finish_reason": answer.finish_reason,
            "provider": answer.provider, "served_model": answer.served_model,
            "generation_id": answer.generation_id, "cost_microusd": answer.cost, "shared": answer.shared,
            "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
                      "reasoning_tokens": usage.reasoning_tokens, "cached_tokens": usage.cached_tokens},
            "request_fingerprint": answer.fingerprint, "stored_at": row["stored_at"],
            "reply": _reply(answer),
        }  # fmt: skip


def _reply(answer: Answer) -> Any:
    try:
        return None if answer.raw is None else answer.reply
    except ValueError:
        return (answer.raw or b"").decode("utf-8", "replace")
