"""Plans from real files: provider list, prompts, a vault that a real job filled; and the choice that `fit` makes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from eyrie import cli
from eyrie.config import compose, load_slice, plan_settings, stage_slice
from eyrie.errors import ExitCode, InputError
from eyrie.files import canonical_json, write_jsonl_zst
from eyrie.plan.making import Files, Plan, make
from eyrie.plan.rates import Case
from eyrie.plan.show import lines
from eyrie.vault.fitted import read_fit, record_path
from tests.gateway_double import Double
from tests.generate.job import Job, prompt

CONF = Path(__file__).parents[2] / "conf"
SIX = "dataset=[B1_glaive,B2_opencodeinstruct,B3_magicoder,B4_mixture_of_thoughts,B5_openthoughts,B6_ultrachat]"


def planned(folder: Path, *changes: str, anew: bool = False) -> Plan:
    """The plan of the Kimi run with `changes`, in an otherwise empty folder."""
    config = compose(CONF, ["experiment=kimi_k2_5", *changes])
    prompts = {name: folder / f"{name}.jsonl.zst" for name in config["datasets"]}
    files = Files(folder / "providers.json", prompts, folder / "vault")
    return make(load_slice(plan_settings(config)), load_slice(stage_slice(config, "fit")), files, anew=anew)


def text(plan: Plan) -> str:
    return "\n".join(lines(plan))


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    with Double(tokens=[20, 60]) as running:
        yield running


@pytest.fixture
def bought(tmp_path: Path, double: Double) -> Job:
    """A vault with 40 answers of dataset `demo`, its prompts and its provider list."""
    double.reset(tokens=[20, 60])
    job = Job(tmp_path, double, rows=40)
    assert job.run() == 0
    return job


def settings(job: Job, **generate: Any) -> dict[str, Any]:
    base = compose(CONF, ["experiment=kimi_k2_5", "dataset=[B1_glaive]"])
    chosen = {**base["generate"], **job.cut["generate"], "budget_usd": 5.0, "tokens_per_dataset": None, **generate}
    return {
        "run": "test", "target": {"openrouter_model": "maker/target", "thinking": None},
        "gateway": {"account": "default", "account_budget_usd": None}, "generate": chosen,
        "plan": {**base["plan"], "answer_tokens": 32},
        "datasets": {"demo": {**base["datasets"]["B1_glaive"], "rows": len(job.rows)}},
    }  # fmt: skip


def plan_of(job: Job, anew: bool = False, **generate: Any) -> Plan:
    files = Files(job.providers, {"demo": job.folder / "prompts-demo.jsonl.zst"}, job.vault)
    return make(settings(job, **generate), {"run": "test", "datasets": {"demo": None}}, files, anew=anew)


def test_nothing_there_yet_is_a_plan_with_its_assumptions(tmp_path: Path) -> None:
    told = text(planned(tmp_path, SIX, "generate.tokens_per_dataset=10_000_000"))
    assert "$132.00 expected before prompts, it does NOT fit" in told
    assert "largest equal token budget that fits (6 datasets): 7,575,757, before prompts" in told
    assert "assumed until `snakemake providers`: $2.2 per M output tokens; prompts not counted" in told
    assert not list(tmp_path.iterdir())  # looking makes no vault
    told = text(planned(tmp_path, SIX, "generate.tokens_per_dataset=7_000_000"))
    assert "$92.40 expected before prompts, it fits" in told and "42.00M" in told


def test_unknown_prices_are_said_to_be_unknown(tmp_path: Path) -> None:
    told = text(planned(tmp_path, "plan.completion_price=null"))
    assert "unknown until `snakemake providers`" in told and "cannot be told yet" in told and "not known yet" in told
    assert "$0.00" not in told


def test_an_assumed_prompt_price_is_counted(tmp_path: Path) -> None:
    plan = planned(tmp_path, SIX, "generate.tokens_per_dataset=1_500_000", "plan.prompt_price=0.6")
    cost = plan.demands[0].cost(Case.expected)
    assert cost is not None and cost.prompt == 1000 * 1000 * Decimal("0.6") / 10**6  # 1000 answers to 1000 tokens each
    assert "before prompts" not in text(plan)


def test_rows_that_will_not_give_the_tokens_are_named(tmp_path: Path) -> None:
    told = text(planned(tmp_path, "generate.tokens_per_dataset=10_000_000"))
    assert "B8_sweagent: its rows are expected to give 6.00M tokens, less than wanted" in told


def test_a_dataset_whose_own_budget_is_too_small_is_named(tmp_path: Path) -> None:
    plan = planned(tmp_path, "generate.tokens_per_dataset=5_000_000")
    told = text(replace(plan, demands=[replace(plan.demands[0], allowed=Decimal(3))]))
    assert "datasets.B1_glaive.budget_usd leaves $3.00, what is missing is expected to cost $11.00" in told


def test_what_the_vault_holds_is_in_hand_and_its_cost_is_gone(bought: Job) -> None:
    plan = plan_of(bought, tokens_per_dataset=10_000)
    (demand,) = plan.demands
    tokens = bought.facts()["tokens"]
    assert demand.held == tokens["completion"] and demand.missing == 10_000 - demand.held
    assert demand.lengths.completion == round(tokens["completion"] / 40)
    assert demand.lengths.prompt == round(tokens["prompt"] / 40) and "answers in the vault" in demand.lengths.basis
    books = bought.open_vault().committed()
    assert plan.spent == Decimal(books["settled"]) / 10**6 and plan.left == plan.budget - plan.spent


def test_a_finished_dataset_costs_nothing_more(bought: Job) -> None:
    plan = plan_of(bought)  # every row is asked, and every row is answered
    (demand,) = plan.demands
    assert demand.missing == 0 and demand.cost(Case.worst).total == 0  # type: ignore[union-attr]
    assert "$0.00 expected, it fits" in text(plan)


def test_answers_to_rows_that_are_no_prompts_any_more_are_not_in_hand(bought: Job) -> None:
    rows = [*bought.rows[:10], *[prompt(100 + i) for i in range(5)]]
    write_jsonl_zst(bought.folder / "prompts-demo.jsonl.zst", rows)
    (demand,) = plan_of(bought).demands
    with sqlite3.connect(bought.vault / "vault.sqlite") as connection:
        query = "SELECT sum(completion_tokens) FROM answers WHERE row < 'row-0010'"
        assert demand.held == connection.execute(query).fetchone()[0]
    assert demand.missing == 5 * demand.lengths.completion


def test_buying_changed_requests_again_has_its_price_shown(bought: Job) -> None:
    assert plan_of(bought, on_changed_request="rebuy").demands[0].missing == 0
    assert plan_of(bought, seed=7).demands[0].missing == 0  # changed, but kept
    plan = plan_of(bought, seed=7, on_changed_request="rebuy")
    assert plan.demands[0].changed == 40 and plan.demands[0].missing == 40 * plan.demands[0].lengths.completion
    assert "40 conversations with a changed request are bought again" in text(plan)


def test_the_account_may_leave_less_than_the_run(bought: Job) -> None:
    files = Files(bought.providers, {"demo": bought.folder / "prompts-demo.jsonl.zst"}, bought.vault)
    chosen = settings(bought)
    chosen["gateway"]["account_budget_usd"] = 1.0
    plan = make(chosen, {}, files)
    assert plan.left == 1 - plan.spent


def test_an_endpoint_that_cannot_give_the_answers_is_left_out(bought: Job) -> None:
    value = json.loads(bought.providers.read_text())
    for endpoint in value["accepted"]:
        endpoint["max_completion_tokens"] = 32
    bought.providers.write_text(json.dumps(value))
    told = text(plan_of(bought))
    assert "note: demo: no accepted endpoint gives answers of 64 tokens" in told


# fit -----------------------------------------------------------------------------------------------------------


def fit(job: Job, *more: str) -> tuple[int, Path]:
    output = job.folder / "fit.json"
    cut = {"run": "test", "target": {"openrouter_model": "maker/target"}, "datasets": {"demo": None}}
    code = cli.main(
        ["plan", "--slice", canonical_json(cut), "--settings",
         canonical_json(settings(job, tokens_per_dataset="fit", budget_usd=0.01)), "--providers", str(job.providers),
         "--prompts", str(job.folder / "demo.jsonl.zst"), "--vault", str(job.vault), "--output", str(output), *more]
    )  # fmt: skip
    return code, output


def cheaper(job: Job, factor: str) -> None:
    """Change the prices in providers.json."""
    value = json.loads(job.providers.read_text())
    for endpoint in value["accepted"]:
        endpoint["pricing"]["completion"] = format(Decimal(endpoint["pricing"]["completion"]) * Decimal(factor), "f")
    job.providers.write_text(json.dumps(value))


@pytest.fixture
def listed(tmp_path: Path, double: Double) -> Job:
    double.reset(tokens=[20, 60])
    job = Job(tmp_path, double, rows=40)
    job.arguments()
    write_jsonl_zst(tmp_path / "demo.jsonl.zst", job.rows)
    return job


def test_what_fits_is_chosen_once_and_kept_when_prices_move(listed: Job) -> None:
    code, output = fit(listed)
    first = output.read_bytes()
    tokens = read_fit(output)["tokens_per_dataset"]
    last = 8000 * Decimal("0.0000005") + 64 * Decimal("0.0000022")  # the longest prompt and answer must still fit
    assert code == 0 and 0 < tokens * Decimal("0.0000022") <= Decimal("0.01") - last
    output.unlink()
    cheaper(listed, "0.5")
    assert fit(listed)[0] == 0 and output.read_bytes() == first


def test_another_set_of_datasets_or_another_model_is_another_choice(tmp_path: Path) -> None:
    cut = {"run": "a", "target": {"openrouter_model": "m"}, "datasets": {"demo": None}}
    others = [{**cut, "datasets": {"demo": 5}}, {**cut, "target": {"openrouter_model": "n"}}, {**cut, "run": "b"}]
    assert len({record_path(tmp_path, c) for c in (cut, *others)}) == 4


def test_nothing_that_is_money_decides_where_a_choice_is_kept() -> None:
    base = stage_slice(compose(CONF, ["experiment=kimi_k2_5"]), "fit")
    for change in ("generate.budget_usd=7", "plan.completion_price=9", "gateway.account=other", "generate.in_flight=3"):
        assert stage_slice(compose(CONF, ["experiment=kimi_k2_5", change]), "fit") == base


def test_a_budget_that_holds_nothing_is_an_error(listed: Job, capsys) -> None:
    listed.providers.write_text(listed.providers.read_text().replace('"0.0000022"', '"2.2"'))
    code, output = fit(listed)
    assert code == ExitCode.USAGE and not output.exists()
    assert "no tokens fit the $0.01 that are left" in capsys.readouterr().err


def test_a_chosen_budget_buys_so_many_tokens_and_is_complete(listed: Job, double: Double) -> None:
    _, output = fit(listed)
    tokens = read_fit(output)["tokens_per_dataset"]
    listed.cut["generate"]["tokens_per_dataset"] = "fit"
    assert cli.main(listed.arguments()) == ExitCode.USAGE  # without the file
    listed.rows = [prompt(i) for i in range(tokens // 20)]
    assert cli.main([*listed.arguments(), "--fit", str(output)]) == 0
    facts = listed.facts()
    assert facts["complete"] and tokens <= facts["tokens"]["completion"] < tokens + 60
    assert double.billed <= Decimal("0.01")


def test_rows_that_run_out_before_a_chosen_budget_complete_the_dataset(listed: Job) -> None:
    _, output = fit(listed)
    listed.cut["generate"]["tokens_per_dataset"] = "fit"
    listed.rows = listed.rows[:3]
    assert cli.main([*listed.arguments(), "--fit", str(output)]) == 0
    assert listed.facts()["complete"] and len(listed.read()) == 3


def test_a_file_that_is_no_choice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    for content in ("{}", "[]", '{"format": "eyrie-fit-1", "tokens_per_dataset": 0}'):
        path.write_text(content)
        with pytest.raises(InputError, match=r"fit\.json: not a chosen token budget"):
            read_fit(path)


def test_fit_needs_something_to_fit(tmp_path: Path) -> None:
    for changes in (["generate.tokens_per_dataset=fit"], ["experiment=kimi_k2_5", "generate.tokens_per_dataset=fit",
                    "generate.budget_usd=0"], ["generate.tokens_per_dataset=some"]):  # fmt: skip
        with pytest.raises(InputError, match=r"generate\.tokens_per_dataset="):
            compose(CONF, changes)
