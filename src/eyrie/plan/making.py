"""Put a plan together from the configuration and from what is there: provider list, prompts, vault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from eyrie.errors import InputError
from eyrie.files import lines_zst, read_jsonl_zst
from eyrie.gateway.prices import Price
from eyrie.gateway.providers import Endpoint, ProviderList
from eyrie.gateway.request import MILLION, RequestBuilder, Sampling, plain
from eyrie.plan.estimate import Demand, largest_equal
from eyrie.plan.history import Books, History
from eyrie.plan.lengths import Lengths, lengths, row_ids
from eyrie.plan.rates import Case, Rates, rates
from eyrie.vault.fitted import read_fit, record_path

FIT = "fit"


@dataclass(frozen=True)
class Files:
    """Where things are, whether or not they are there yet."""

    providers: Path
    prompts: Mapping[str, Path]  # dataset -> prompts file; one that is not named is not there
    vault: Path


@dataclass(frozen=True)
class Plan:
    """A run's purchases. Money in dollars."""

    run: str
    model: str
    demands: list[Demand]
    budget: Decimal
    spent: Decimal  # of it: settled, under way and unknown
    left: Decimal  # the least that the budgets of the run and of the account leave
    prices: str  # where they come from
    prompts_counted: bool  # whether the price of prompts is known
    fit: str = ""  # `fit`: where its number comes from
    notes: list[str] = field(default_factory=list)

    def equal(self, case: Case) -> int | None:
        """The largest equal token budget that fits at the prices of `case`."""
        return largest_equal(self.demands, self.left, case)


def make(settings: Mapping[str, Any], cut: Mapping[str, Any], files: Files, *, anew: bool = False) -> Plan:
    """The plan of a paid run. `settings`: `config.plan_settings`; `cut`: the slice `fit`.

    `anew`: choose what is to fit even where a choice is recorded. Needs neither network nor key, and no file: what
    is not there is assumed and said. Raises InputError for a file that is there and cannot be read.
    """
    generate, gateway, given = settings["generate"], settings["gateway"], settings["plan"]
    model = settings["target"]["openrouter_model"]
    providers = ProviderList.read(files.providers) if files.providers.exists() else None
    notes: list[str] = []
    demands = []
    with Books(files.vault) as books:
        spent, left = _money(books, settings["run"], gateway, generate)
        for name, dataset in settings["datasets"].items():
            rebuy = generate["on_changed_request"] == "rebuy"
            history = books.history(model, name, drop_cut=generate["on_length"] == "drop", marks=rebuy)
            prompts = files.prompts.get(name)
            prompts = prompts if prompts is not None and prompts.exists() else None
            changed = 0
            if rebuy and providers is not None and prompts is not None:
                changed = _forget_changed(history, prompts, _builder(settings, dataset, providers))
            asked = dataset["max_tokens"] or generate["max_tokens"]
            expected = lengths(dataset, min(asked, given["answer_tokens"]), prompts, history)
            endpoints, problem = _endpoints(providers, given, asked)
            notes += [f"{name}: {problem}"] if problem else []
            prices = rates(endpoints, expected.prompt, expected.completion, gateway.get("sort")) if endpoints else None
            stock = _stock(dataset, generate, history, prompts)
            demand = _demand(name, dataset, generate, stock, expected, prices, changed)
            demand = replace(demand, longest=_longest(endpoints, asked, dataset["max_prompt_chars"]))
            if dataset.get("budget_usd") is not None:
                allowed = _usd(dataset["budget_usd"]) - books.gone(run=settings["run"], dataset=name)
                demand = replace(demand, allowed=allowed)
            demands.append(demand)
    plan = Plan(settings["run"], model, demands, _usd(generate["budget_usd"]), spent, left,
                _prices_from(providers, given, files.providers),
                providers is not None or given["prompt_price"] is not None, notes=notes)  # fmt: skip
    if generate["tokens_per_dataset"] != FIT:
        return plan
    return _fitted(plan, given, cut, files.vault, anew=anew)


def _usd(value: float | str) -> Decimal:
    return Decimal(str(value))


def _money(books: Books, run: str, gateway: Mapping[str, Any], generate: Mapping[str, Any]) -> tuple[Decimal, Decimal]:
    spent = books.gone(run=run)
    left = _usd(generate["budget_usd"]) - spent
    if gateway["account_budget_usd"] is not None:
        left = min(left, _usd(gateway["account_budget_usd"]) - books.gone(account=gateway["account"]))
    return spent, left


def _stock(
    dataset: Mapping[str, Any], generate: Mapping[str, Any], history: History, prompts: Path | None
) -> tuple[int, int]:
    """(output tokens in hand, conversations still to be had). The prompts decide what counts, where they are there:
    answers to rows that are no prompt any more are of no use."""
    repetitions, rows = range(generate["repetitions"]), None
    conversations = dataset["rows"] * len(repetitions)
    if prompts is not None and (history.by_row or history.rejected):
        rows = [(row, repetition) for row in row_ids(lines_zst(prompts)) for repetition in repetitions]
        conversations = len(rows)
    tokens, done = history.held(rows)
    return tokens, max(0, conversations - done)


def _demand(
    name: str, dataset: Mapping[str, Any], generate: Mapping[str, Any], stock: tuple[int, int], expected: Lengths,
    prices: Rates | None, changed: int,
) -> Demand:  # fmt: skip
    held, conversations = stock
    rest = round(conversations * expected.answers * expected.completion)
    wanted = generate["tokens_per_dataset"] if dataset["tokens"] is None else dataset["tokens"]
    if wanted is None:  # every row is asked
        return Demand(name, held + rest, held, rest, True, None, expected, prices, changed)
    own = dataset["tokens"] is not None
    return Demand(name, None if wanted == FIT else wanted, held, None, own, held + rest, expected, prices, changed)


def _endpoints(
    providers: ProviderList | None, given: Mapping[str, Any], max_tokens: int
) -> tuple[tuple[Endpoint, ...], str]:
    """Those that a dataset's answers can come from, and what is wrong when there are none."""
    if providers is not None:
        able = providers.able(max_tokens).accepted
        return able, "" if able else f"no accepted endpoint gives answers of {max_tokens} tokens"
    if given["completion_price"] is None:
        return (), ""
    prompt, completion = (_per_token(given[f"{name}_price"] or 0) for name in ("prompt", "completion"))
    return (Endpoint("assumed", "assumed", None, 0, None, 0, None, prompt, completion),), ""


def _longest(endpoints: tuple[Endpoint, ...], max_tokens: int, max_prompt_chars: int) -> Decimal:
    """Dollars of the longest answer to the longest prompt (a byte may be a token), at the highest prices."""
    highest = [max((Decimal(getattr(e, f"{n}_price")) for e in endpoints), default=Decimal(0))
               for n in ("prompt", "completion", "request")]  # fmt: skip
    return Price(*highest).of(max_prompt_chars, max_tokens)


def _per_token(price: float) -> str:
    return plain(_usd(price) / MILLION)


def _prices_from(providers: ProviderList | None, given: Mapping[str, Any], path: Path) -> str:
    if providers is not None:
        when = f", as they were {providers.time}" if providers.time else ""
        return f"{len(providers.accepted)} endpoints accepted in {path}{when}"
    if given["completion_price"] is None:
        return "unknown until `snakemake providers` (or set plan.completion_price and plan.prompt_price, USD/M tokens)"
    told = f"assumed until `snakemake providers`: ${plain(_usd(given['completion_price']))} per M output tokens"
    if given["prompt_price"] is None:
        return f"{told}; prompts not counted (plan.prompt_price)"
    return f"{told}, ${plain(_usd(given['prompt_price']))} per M prompt tokens"


def _builder(settings: Mapping[str, Any], dataset: Mapping[str, Any], providers: ProviderList) -> RequestBuilder:
    g = settings["generate"]
    sampling = Sampling(dataset["max_tokens"] or g["max_tokens"], g["temperature"], g["top_p"], g["seed"])
    model, thinking = settings["target"]["openrouter_model"], settings["target"]["thinking"]
    return RequestBuilder("openrouter", model, sampling, thinking, providers)


def _forget_changed(history: History, prompts: Path, builder: RequestBuilder) -> int:
    """Leave out the answers that today's requests would buy again: those whose first request differs."""
    if not history.marks:
        return 0
    repetitions = {repetition for _, repetition in history.marks}
    today: dict[tuple[str, int], str] = {}
    for row in _known_rows(prompts, {row for row, _ in history.marks}):
        for repetition in repetitions:
            request = builder.build(row["messages"], row.get("tools"), repetition)
            today[(row["id"], repetition)] = request.fingerprint
    return history.forget(lambda row: today.get(row, history.marks.get(row)) != history.marks.get(row))


def _known_rows(prompts: Path, ids: set[str]) -> Iterator[dict[str, Any]]:
    return (row for row in read_jsonl_zst(prompts) if row["id"] in ids)


def _fitted(plan: Plan, given: Mapping[str, Any], cut: Mapping[str, Any], vault: Path, *, anew: bool) -> Plan:
    """The plan with the number that `fit` stands for: the recorded one, else the one that would be chosen now."""
    path = record_path(vault, cut)
    if path.exists() and not anew:
        record = read_fit(path)
        tokens: int | None = record["tokens_per_dataset"]
        when = record["chosen_from"].get("time", "earlier")
        why = f"{tokens:,}, chosen {when} and kept in {path}; `eyrie plan --refit` chooses anew"
    else:
        share = _usd(given["fit_share"])
        # The last request is let out only when its worst case is left.
        left = min(plan.left * share, plan.left - max(demand.longest for demand in plan.demands))
        tokens = rounded(largest_equal(plan.demands, left, Case(given["fit_price"])))
        why = (
            f"{'?' if tokens is None else f'{tokens:,}'}, what fits {plain(share * 100)}% of the money left at the "
            f"{given['fit_price']} prices; chosen, once, when the first answers are asked for"
        )
    demands = [demand if demand.own else replace(demand, wanted=tokens) for demand in plan.demands]
    return replace(plan, demands=demands, fit=why)


def rounded(tokens: int | None) -> int | None:
    """Down to three digits: a number that people can read, and that leaves a little for the last answers, which
    overshoot."""
    if tokens is None:
        return None
    step = 10 ** max(0, len(str(tokens)) - 3)
    return tokens // step * step


def choose(plan: Plan) -> int:
    """The number that a plan made `anew` stands for. Raises InputError when nothing fits."""
    tokens = next((demand.wanted for demand in plan.demands if not demand.own), None)
    if not tokens:
        raise InputError(
            f"generate.tokens_per_dataset=fit: no tokens fit the ${plain(plan.left)} that are left of the budget; "
            "raise generate.budget_usd or set a number"
        )
    return tokens
