"""`eyrie providers` against the double's catalogue: the file, the table, and what it says when it cannot."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from eyrie import cli
from eyrie.catalogue.table import show
from eyrie.errors import ExitCode, InputError
from eyrie.files import canonical_json
from eyrie.gateway.prices import price_at
from eyrie.gateway.providers import Endpoint, ProviderList
from eyrie.gateway.request import RequestBuilder, Sampling
from tests.gateway_double import Double

CONF = Path(__file__).parents[2] / "conf"
MIXED = [
    {"tag": "alpha/int4", "provider_name": "Alpha", "quantization": "int4"},
    {"tag": "beta/fp4", "provider_name": "Beta", "quantization": "fp4"},
    {"tag": "gamma", "provider_name": "Gamma", "quantization": None},
    {"tag": "delta/fp8", "provider_name": "Delta", "quantization": "fp8", "status": -2, "max_completion_tokens": 64},
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Double]:
    with Double() as running:
        yield running


@pytest.fixture
def double(server: Double) -> Double:
    server.reset()
    return server


def providers(
    folder: Path, double: Double, policy: dict[str, Any], model: str = "maker/target", kind: str = "openrouter",
    **target: Any,
) -> tuple[int, Path]:  # fmt: skip
    cut = {"gateway": {"kind": kind, "policy": policy}, "max_tokens": 128,
           "target": {"name": "target", "openrouter_model": model, "thinking": None, **target}}  # fmt: skip
    runtime = {"gateway": {"base_url": double.url, "api_key_file": None}}
    path = folder / "providers.json"
    arguments = ["--slice", canonical_json(cut), "--runtime", canonical_json(runtime), "--output", str(path)]
    return cli.main(["providers", *arguments]), path


def test_the_list_names_accepted_and_rejected_endpoints_with_every_reason(tmp_path: Path, double: Double) -> None:
    double.change(endpoints=MIXED)
    code, path = providers(tmp_path, double, {"quantizations": ["int4", "fp8"]})
    value = json.loads(path.read_text())
    assert code == 0 and [e["tag"] for e in value["accepted"]] == ["alpha/int4"]
    assert {e["tag"]: len(e["reasons"]) for e in value["rejected"]} == {"beta/fp4": 1, "delta/fp8": 2, "gamma": 1}
    assert value["accepted"][0]["completion_price"] == "0.0000022"
    assert ProviderList.read(path).names == {"Alpha"}


def test_a_price_with_conditions_survives_the_file(tmp_path: Path, double: Double) -> None:
    pricing = {"prompt": "0.000001", "completion": "0.000002", "discount": 0.5,
               "overrides": [{"utc_start": "1600", "utc_end": "0030", "completion": "0.000001"},
                             {"min_prompt_tokens": 200000, "prompt": "0.000004"}]}  # fmt: skip
    double.change(endpoints=[{**MIXED[0], "pricing": pricing}])
    code, path = providers(tmp_path, double, {})
    (endpoint,) = ProviderList.read(path).accepted
    assert code == 0 and endpoint.prompt_price == "0.000004" and endpoint.completion_price == "0.000002"
    assert price_at(endpoint.tariff, 10, 0).completion == Decimal("0.0000005")
    assert Endpoint.from_json(endpoint.to_json()) == endpoint
    show(json.loads(path.read_text()), out := io.StringIO())
    assert "$0.50-2.00/M in, $0.50-1.00/M out" in out.getvalue()


def test_it_is_plain_lines_elsewhere_and_a_table_on_a_terminal(tmp_path: Path, double: Double, capsys) -> None:
    double.change(endpoints=MIXED)
    _, path = providers(tmp_path, double, {"quantizations": ["int4"]})
    capsys.readouterr()
    assert cli.main(["providers", "--show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("accepted alpha/int4 (Alpha, int4): $0.50/M in, $2.20/M out, uptime 99.5%, context 2")
    assert lines[2].startswith("rejected beta/fp4 (Beta, fp4)") and "quantization fp4 is not allowed" in lines[2]
    assert lines[-1].startswith("maker/target: 1 accepted, 3 rejected; context 262144")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    show(json.loads(path.read_text()), out := Terminal())
    assert "─" in out.getvalue() and "alpha/int4" in out.getvalue()
    assert "rejected beta/fp4: quantization fp4 is not allowed" in out.getvalue()


def test_an_empty_list_stops_and_says_what_would_have_to_change(tmp_path: Path, double: Double, capsys) -> None:
    code, path = providers(tmp_path, double, {"quantizations": ["int4", "fp8"], "min_uptime": 99.9})
    message = capsys.readouterr().err
    assert code == ExitCode.POLICY_EMPTY and not path.exists()
    assert "none of 2 endpoints passes" in message and "2x uptime 99.5% is below 99.9%" in message
    assert "min_uptime 99.9 -> 99.5 would let in alpha/int4, beta/fp8" in message


def test_a_model_among_hundreds_is_found_and_one_that_is_not_listed_names_the_nearest(
    tmp_path: Path, double: Double, capsys
) -> None:
    double.change(others=[f"other/model-{i}" for i in range(700)])
    assert providers(tmp_path, double, {})[0] == 0
    assert (tmp_path / "providers.json").stat().st_size < 10_000 and "other/model" not in capsys.readouterr().err
    code, _ = providers(tmp_path, double, {}, model="maker/targett")
    assert code == ExitCode.USAGE and "the nearest are maker/target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        ({"expiration_date": "2020-01-31"}, ExitCode.POLICY_EMPTY, "retired on 2020-01-31"),
        ({"distillable": False}, ExitCode.POLICY_EMPTY, "does not mark it distillable"),
        ({"reasoning": {"mandatory": True}}, ExitCode.USAGE, "always reasons"),
        ({"expiration_date": "2999-01-31"}, ExitCode.OK, "retires on 2999-01-31"),
    ],
)
def test_a_model_that_cannot_serve_the_run_is_refused(
    tmp_path: Path, double: Double, capsys, facts: dict[str, Any], code: ExitCode, words: str
) -> None:
    double.change(model_facts=facts)
    assert providers(tmp_path, double, {"distillable": True}, thinking=False)[0] == code
    assert words in capsys.readouterr().err


def test_an_endpoint_let_in_by_evidence_is_not_filtered_out_of_the_request(tmp_path: Path, double: Double) -> None:
    double.change(endpoints=MIXED)
    policy = {"quantizations": ["int4"], "evidence": {"gamma": "its model card says int4, seen 2026-02-01"}}
    _, path = providers(tmp_path, double, policy)
    listed = ProviderList.read(path)
    assert {e.tag for e in listed.accepted} == {"alpha/int4", "gamma"}
    body = RequestBuilder("openrouter", "m", Sampling(8), None, listed).build([], None).body
    assert json.loads(body)["provider"]["quantizations"] == ["int4", "unknown"]


def test_looking_writes_nothing(tmp_path: Path, double: Double, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["experiment=kimi_k2_5", f"gateway.base_url={double.url}", "target.openrouter_model=maker/target"]
    assert cli.main(["providers", "--conf-dir", str(CONF), *changes]) == 0
    assert "alpha/int4" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_an_openai_server_is_one_free_endpoint(tmp_path: Path, double: Double) -> None:
    double.change(model="target")
    code, path = providers(tmp_path, double, {"quantizations": ["int4"]}, kind="openai")
    listed = ProviderList.read(path)
    assert code == 0 and listed.model == "target" and all(e.is_free for e in listed.accepted)


def test_a_provider_list_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "providers.json"
    path.write_text('{"format": "other"}')
    with pytest.raises(InputError, match="not a provider list"):
        ProviderList.read(path)
