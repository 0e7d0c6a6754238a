"""The policy: every reason against an endpoint, typos as errors, nothing loosened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from eyrie import cli
from eyrie.catalogue.listing import highest_price, parse_endpoint
from eyrie.catalogue.policy import Policy, judge
from eyrie.errors import ExitCode, InputError
from eyrie.files import canonical_json
from eyrie.gateway.providers import ProviderList
from tests.gateway_double import Double

LISTED = {"tag": "alpha/int4", "provider_name": "Alpha", "quantization": "int4", "uptime_last_1d": 99.0,
          "context_length": 1000, "pricing": {"prompt": "0.000001", "completion": "0.000002"},
          "supported_parameters": ["tools"]}  # fmt: skip


def reasons(policy: dict[str, Any], **endpoint: Any) -> str:
    return "; ".join(Policy.read(policy).reasons(parse_endpoint({**LISTED, **endpoint})))


@pytest.mark.parametrize(
    ("policy", "endpoint", "reason"),
    [
        ({"quantizations": ["fp8"]}, {}, "quantization int4"),
        ({"quantizations": ["fp8"]}, {"quantization": "nvfp4"}, "quantization nvfp4"),
        ({}, {"quantization": None}, "undeclared"),
        ({}, {"quantization": "unknown"}, "undeclared"),
        ({"deny_tags": ["alpha/int4"]}, {}, "denied"),
        ({"allow_tags": ["beta"]}, {}, "allow_tags"),
        ({}, {"status": -2}, "status -2"),
        ({"min_uptime": 99.5}, {}, "uptime 99.0%"),
        ({"max_prompt_price": 0.9}, {}, "prompt price $1"),
        ({"max_completion_price": 1.99}, {}, "completion price $2"),
        ({"min_context": 2000}, {}, "context 1000"),
        ({"parameters": ["reasoning", "tools"]}, {}, "does not support reasoning"),
    ],
)
def test_each_rule_rejects_with_its_reason(policy: dict[str, Any], endpoint: dict[str, Any], reason: str) -> None:
    assert reason in reasons(policy, **endpoint)


def test_what_is_allowed_passes() -> None:
    assert reasons({"quantizations": ["int4"], "max_completion_price": 2.0, "min_uptime": 99.0}) == ""
    assert reasons({"evidence": {"alpha/int4": "its card says int4"}}, quantization=None) == ""
    assert reasons({"min_uptime": 99.0}, uptime_last_1d=None, status=None) == ""


def test_all_reasons_are_listed_not_the_first() -> None:
    text = reasons({"quantizations": ["fp8"], "min_context": 2000}, status=-1)
    assert text.count(";") == 2


@pytest.mark.parametrize(
    "policy", [{"quantizations": ["int44"]}, {"quantizations": ["unknown"]}, {"data_collection": "no"},
               {"evidence": {"a": " "}}],
)  # fmt: skip
def test_typos_are_errors(policy: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"gateway\.policy"):
        Policy.read(policy)


def test_a_tag_that_is_not_listed_is_an_error() -> None:
    with pytest.raises(InputError, match="no endpoint alpha; listed are alpha/int4"):
        judge(Policy(deny_tags=("alpha",)), [parse_endpoint(LISTED)])


def test_prices_take_the_discount_and_the_highest_override() -> None:
    pricing = {"prompt": "0.000001", "discount": 0.5,
               "overrides": [{"min_prompt_tokens": 1000, "prompt": "0.000004"}, {"prompt": "0.000002"}]}  # fmt: skip
    assert highest_price(pricing, "prompt") == Decimal("0.000002")
    with pytest.raises(InputError, match="no price"):
        highest_price({"prompt": "-1"}, "prompt")


@pytest.fixture(scope="module")
def server() -> Iterator[Double]:
    with Double() as running:
        yield running


def providers(
    folder: Path, double: Double, policy: dict[str, Any], model: str = "maker/target", kind: str = "openrouter"
) -> tuple[int, Path]:
    cut = {"gateway": {"kind": kind, "policy": policy},
           "target": {"name": "target", "openrouter_model": model, "thinking": None}}  # fmt: skip
    runtime = {"gateway": {"base_url": double.url, "api_key_file": None}}
    path = folder / "providers.json"
    arguments = ["--slice", canonical_json(cut), "--runtime", canonical_json(runtime), "--output", str(path)]
    return cli.main(["providers", *arguments]), path


def test_the_list_names_accepted_and_rejected_endpoints(tmp_path: Path, server: Double, capsys) -> None:
    server.reset()
    code, path = providers(tmp_path, server, {"quantizations": ["fp8"]})
    value = json.loads(path.read_text())
    assert code == 0 and [e["tag"] for e in value["accepted"]] == ["beta/fp8"]
    assert value["rejected"][0]["tag"] == "alpha/int4" and value["rejected"][0]["reasons"]
    assert value["accepted"][0]["completion_price"] == "0.0000022"
    assert ProviderList.read(path).names == {"Beta"}
    assert cli.main(["providers", "--show", str(path)]) == 0
    table = capsys.readouterr().out
    assert "beta/fp8" in table and "2.20" in table and "quantization int4" in table


def test_an_empty_list_stops_and_says_what_would_have_to_change(tmp_path: Path, server: Double, capsys) -> None:
    server.reset()
    code, path = providers(tmp_path, server, {"quantizations": ["bf16"]})
    message = capsys.readouterr().err
    assert code == ExitCode.POLICY_EMPTY and not path.exists()
    assert "none of 2 endpoints" in message and "quantization int4 is not allowed" in message


def test_a_model_that_is_not_listed_names_the_nearest(tmp_path: Path, server: Double, capsys) -> None:
    server.reset()
    code, _ = providers(tmp_path, server, {}, model="maker/targett")
    assert code == ExitCode.USAGE and "the nearest are maker/target" in capsys.readouterr().err


def test_an_openai_server_is_one_free_endpoint(tmp_path: Path, server: Double) -> None:
    server.reset(model="target")
    code, path = providers(tmp_path, server, {"quantizations": ["int4"]}, kind="openai")
    listed = ProviderList.read(path)
    assert code == 0 and listed.model == "target" and all(e.is_free for e in listed.accepted)


def test_a_provider_list_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "providers.json"
    path.write_text('{"format": "other"}')
    with pytest.raises(InputError, match="not a provider list"):
        ProviderList.read(path)
