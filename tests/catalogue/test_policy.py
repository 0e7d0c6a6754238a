"""The policy: every reason against an endpoint, typos as errors, the smallest changes computed, nothing loosened."""

from __future__ import annotations

from typing import Any

import pytest

from eyrie.catalogue.listing import parse_endpoint
from eyrie.catalogue.policy import Policy, judge
from eyrie.catalogue.reasons import demand_some, relaxations
from eyrie.errors import EyrieError, InputError

LISTED = {"tag": "alpha/int4", "provider_name": "Alpha", "quantization": "int4", "uptime_last_1d": 99.0,
          "context_length": 1000, "pricing": {"prompt": "0.000001", "completion": "0.000002"},
          "supported_parameters": ["tools"]}  # fmt: skip


def reasons(policy: dict[str, Any], max_tokens: int = 0, **endpoint: Any) -> str:
    found = Policy.read(policy).findings(parse_endpoint({**LISTED, **endpoint}), max_tokens)
    return "; ".join(finding.text for finding in found)


def changes(policy: dict[str, Any], *endpoints: dict[str, Any], max_tokens: int = 0) -> list[str]:
    """The relaxations that are proposed when these endpoints are all there is."""
    listed = [parse_endpoint({**LISTED, **endpoint}) for endpoint in endpoints]
    accepted, rejected = judge(Policy.read(policy), listed, max_tokens)
    assert not accepted
    return relaxations(rejected)


@pytest.mark.parametrize(
    ("policy", "endpoint", "reason"),
    [
        ({"quantizations": ["fp8"]}, {}, "quantization int4"),
        ({"quantizations": ["fp8"]}, {"quantization": "nvfp4"}, "quantization nvfp4"),
        ({"quantizations": ["int4", "fp8"]}, {"quantization": "mxfp4"}, "quantization mxfp4"),
        (
            {"evidence": {"alpha/int4": "measured"}, "quantizations": ["int4"]},
            {"quantization": "fp4"},
            "quantization fp4",
        ),
        ({}, {"quantization": None}, "undeclared"),
        ({}, {"quantization": "unknown"}, "undeclared"),
        ({"deny_tags": ["alpha/int4"]}, {}, "denied"),
        ({"allow_tags": ["beta"]}, {}, "allow_tags"),
        ({}, {"status": -2}, "status -2"),
        ({"min_uptime": 99.5}, {}, "uptime 99.0%"),
        ({"max_prompt_price": 0.9}, {}, "prompt price $1"),
        ({"max_completion_price": 1.99}, {}, "completion price $2"),
        (
            {"max_completion_price": 2},
            {
                "pricing": {
                    "prompt": "0",
                    "completion": "0.000002",
                    "overrides": [{"utc_start": "0900", "utc_end": "1000", "completion": "0.0000021"}],
                }
            },
            "price $2.1/M",
        ),
        ({"min_context": 2000}, {}, "context 1000"),
        ({"min_context": 900}, {"max_prompt_tokens": 800}, "prompts end at 800 tokens, 900 are needed"),
        ({"parameters": ["reasoning", "tools"]}, {}, "does not support reasoning"),
    ],
)
def test_each_rule_rejects_with_its_reason(policy: dict[str, Any], endpoint: dict[str, Any], reason: str) -> None:
    assert reason in reasons(policy, **endpoint)


def test_what_is_allowed_passes() -> None:
    assert reasons({"quantizations": ["int4"], "max_completion_price": 2.0, "min_uptime": 99.0}) == ""
    assert reasons({"evidence": {"alpha/int4": "its card says int4"}}, quantization=None) == ""
    assert reasons({"min_uptime": 99.0}, uptime_last_1d=None, status=None) == ""


def test_a_discount_counts_and_answers_must_be_long_enough() -> None:
    pricing = {"prompt": "0.000001", "completion": "0.000002", "discount": 0.25}
    assert reasons({"max_completion_price": 1.5}, pricing=pricing) == ""
    assert reasons({}, max_completion_tokens=64, max_tokens=64) == ""
    assert "answers end at 64 tokens, 65 are asked" in reasons({}, max_completion_tokens=64, max_tokens=65)


def test_all_reasons_are_listed_not_the_first() -> None:
    text = reasons({"quantizations": ["fp8"], "min_context": 2000}, status=-1)
    assert text.count(";") == 2


@pytest.mark.parametrize(
    ("policy", "hint"),
    [
        ({"quantizations": ["int44"]}, "did you mean int4?"),
        ({"quantizations": ["mxpf8"]}, "did you mean mxfp8?"),
        ({"quantizations": ["unknown"]}, "evidence"),
        ({"data_collection": "no"}, "allow or deny"),
        ({"evidence": {"a": " "}}, "must say why"),
        ({"allow_tags": ["a"], "deny_tags": ["a"]}, "keep one"),
    ],
)
def test_typos_are_errors_with_a_suggestion(policy: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError, match=r"gateway\.policy") as caught:
        Policy.read(policy)
    assert hint in str(caught.value)


@pytest.mark.parametrize("key", ["allow_tags", "deny_tags", "evidence"])
def test_a_tag_that_is_not_listed_any_more_is_an_error_with_a_suggestion(key: str) -> None:
    value: Any = {"alpha/int8": "why"} if key == "evidence" else ["alpha/int8"]
    with pytest.raises(InputError, match=rf"{key}: 'alpha/int8' is no endpoint .* did you mean alpha/int4\?"):
        judge(Policy.read({key: value}), [parse_endpoint(LISTED)])


def test_a_parameter_that_nobody_has_heard_of_is_an_error() -> None:
    with pytest.raises(InputError, match="'reasonning' is no request parameter; did you mean reasoning"):
        judge(Policy.read({"parameters": ["reasonning"]}), [parse_endpoint(LISTED)])
    assert "does not support seed" in reasons({"parameters": ["seed"]})


def test_a_base_slug_that_would_admit_a_rejected_variant_is_rejected() -> None:
    base = {"tag": "alpha", "quantization": "int4"}
    slow = {"tag": "alpha/int4-slow", "status": -2}
    _, rejected = judge(Policy.read({}), [parse_endpoint({**LISTED, **e}) for e in (base, slow)])
    assert [e.tag for e, _ in rejected] == ["alpha", "alpha/int4-slow"]
    assert "would also ask for alpha/int4-slow" in rejected[0][1][0].text
    for harmless in ({"tag": "alpha/priority", "status": -2}, {"tag": "alpha/fp4", "quantization": "fp4"}):
        listed = [parse_endpoint({**LISTED, **e}) for e in (base, harmless)]
        accepted, _ = judge(Policy.read({"quantizations": ["int4"]}), listed)
        assert [e.tag for e in accepted] == ["alpha"]


def test_the_smallest_changes_come_first_and_precision_last() -> None:
    slow = {"tag": "a", "uptime_last_1d": 88.04}
    dear = {"tag": "b", "uptime_last_1d": 80.0, "pricing": {"prompt": "0", "completion": "0.0000031"}}
    coarse = {"tag": "c", "quantization": "fp4"}
    assert changes({"quantizations": ["int4"], "min_uptime": 90, "max_completion_price": 3}, coarse, dear, slow) == [
        "min_uptime 90 -> 88 would let in a",
        "min_uptime 90 -> 80 and max_completion_price 3 -> 3.1 would let in b",
        "quantizations + fp4 would let in c",
    ]


@pytest.mark.parametrize(
    ("policy", "endpoint"),
    [
        ({"min_uptime": 90}, {"uptime_last_1d": 88.04}),
        ({"quantizations": ["int4"]}, {"quantization": "fp8"}),
        ({"max_prompt_price": 0.5}, {"pricing": {"prompt": "0.0000007", "completion": "0", "discount": 0.1}}),
        ({"min_context": 2000}, {}),
        ({"min_context": 2000}, {"context_length": 9999, "max_prompt_tokens": 800}),
    ],
)
def test_following_a_proposed_change_lets_the_endpoint_in(policy: dict[str, Any], endpoint: dict[str, Any]) -> None:
    (proposal,) = changes(policy, endpoint)
    key, _, change = proposal.removesuffix(" would let in alpha/int4").partition(" ")
    value = [*policy[key], change[2:]] if change.startswith("+") else float(change.split(" -> ")[1])
    assert reasons({**policy, key: value}, **endpoint) == ""


def test_what_no_change_helps_is_said() -> None:
    listed = [parse_endpoint({**LISTED, "status": -3})]
    _, rejected = judge(Policy.read({}), listed)
    with pytest.raises(EyrieError, match="no change of gateway.policy would help"):
        demand_some("m", [], rejected)
