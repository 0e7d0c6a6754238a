"""The double keeps its own word: routing, bills, cache, lags, credits, streams, and thousands of connections."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.gateway_double import Double
from tests.gateway_double.script import KIMI

CACHED = {"x-openrouter-cache": "true"}


@pytest.fixture(scope="module")
def server() -> Iterator[Double]:
    with Double() as running:
        yield running


@pytest.fixture
def double(server: Double) -> Double:
    server.reset(latency=[0, 0])
    return server


def ask(double: Double, text: str = "hello", headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {"model": "maker/target", "messages": [{"role": "user", "content": text}], "max_tokens": 50, **more}
    return httpx.post(f"{double.url}/chat/completions", json=body, headers=headers, trust_env=False, timeout=20)


def get(double: Double, path: str) -> httpx.Response:
    return httpx.get(f"{double.url}/{path}", trust_env=False)


def test_it_bills_the_price_of_the_endpoint_that_answered(double: Double) -> None:
    pricing = {"prompt": "0.000001", "completion": "0.00001", "request": "0.001", "discount": 0.2,
               "overrides": [{"min_prompt_tokens": 100, "completion": "0.00002"}]}  # fmt: skip
    double.change(endpoints=[{"tag": "a/int4", "provider_name": "A", "quantization": "int4", "pricing": pricing}])
    for text, completion in (("short", "0.00001"), ("long " * 200, "0.00002")):
        usage = ask(double, text).json()["usage"]
        per_token = usage["prompt_tokens"] * Decimal("0.000001") + usage["completion_tokens"] * Decimal(completion)
        assert Decimal(str(usage["cost"])) == (per_token + Decimal("0.001")) * Decimal("0.8")
        assert Decimal(double.ledger[-1]["cost"]) == Decimal(str(usage["cost"]))


@pytest.mark.parametrize(
    ("block", "excluded"),
    [({"only": ["nobody/int4"]}, "allowed_providers"), ({"quantizations": ["bf16"]}, "quantization"),
     ({"max_price": {"completion": "0.1"}}, "max_price")],
)  # fmt: skip
def test_a_constraint_that_nobody_meets_is_a_404_that_names_it(double: Double, block: dict, excluded: str) -> None:
    reply = ask(double, provider=block)
    assert reply.status_code == 404 and excluded in reply.json()["error"]["availability"]["excluded_by"]


def test_a_request_goes_to_an_endpoint_that_is_allowed_and_narrowing_moves_no_other(double: Double) -> None:
    double.change(**KIMI, clock=1000.0)
    tags = [e["tag"] for e in KIMI["endpoints"]][:9]

    def served(only: list[str]) -> list[str]:
        return [ask(double, f"q{i}", provider={"only": only}).json()["provider"] for i in range(40)]

    names = {e["tag"]: e["provider_name"] for e in KIMI["endpoints"]}
    all_, fewer = served(tags), served(tags[1:])
    assert len(set(all_)) > 4 and names[tags[0]] not in fewer
    assert all(a == b for a, b in zip(all_, fewer, strict=True) if a != names[tags[0]])


def test_sorted_by_throughput_the_fastest_endpoint_answers_until_it_is_full(double: Double) -> None:
    double.change(**KIMI, clock=1000.0)
    answers = [ask(double, str(i), model=KIMI["model"], provider={"sort": "throughput"}).json() for i in range(8)]
    assert {answer["provider"] for answer in answers} == {"BaseTen"}


def test_a_full_endpoint_is_passed_over_and_all_full_ones_are_a_429(double: Double) -> None:
    one = {"tag": "a/int4", "provider_name": "A", "quantization": "int4", "double": {"concurrency": 0}}
    two = {"tag": "b/int4", "provider_name": "B", "quantization": "int4"}
    double.change(endpoints=[one, two])
    assert ask(double).json()["provider"] == "B"
    double.change(endpoints=[one])
    reply = ask(double)
    assert reply.status_code == 429 and reply.headers["retry-after"] and reply.json()["error"]["retry_after"]


def test_the_cache_returns_the_same_bytes_of_text_free_and_names_its_source(double: Double) -> None:
    first, second, third = (ask(double, headers=headers) for headers in (CACHED, CACHED, None))
    assert second.headers["x-openrouter-cache-status"] == "HIT" and second.json()["usage"]["cost"] == 0
    assert second.headers["x-openrouter-cache-source-id"] == first.json()["id"]
    assert first.json()["choices"] == second.json()["choices"] == third.json()["choices"]
    assert len(double.ledger) == 2 and third.json()["id"] == first.json()["id"] + "-2"


def test_records_and_the_keys_figure_lag_behind_the_bill(double: Double) -> None:
    double.change(generation_lag=0.3, key_usage_lag=0.3)
    reply = ask(double).json()
    assert get(double, f"generation?id={reply['id']}").status_code == 404
    assert get(double, "key").json()["data"]["usage"] == 0
    time.sleep(0.35)
    assert get(double, f"generation?id={reply['id']}").json()["data"]["total_cost"] == reply["usage"]["cost"]
    assert get(double, "key").json()["data"]["usage"] == pytest.approx(reply["usage"]["cost"])
    assert get(double, "credits").status_code == 403


def test_credits_are_checked_against_the_worst_case_before_anything_starts(double: Double) -> None:
    double.change(credits=0.0002)
    assert ask(double).status_code == 200
    refused = ask(double, "again", max_tokens=5000)
    assert refused.status_code == 402 and "can only afford" in refused.json()["error"]["message"]
    double.change(credits=1.0)
    assert ask(double, "again", max_tokens=5000).status_code == 200 and len(double.ledger) == 2


def test_faults_follow_from_the_request_and_how_often_it_came(double: Double) -> None:
    rates = {"500": 0.3, "empty": 0.2}

    def statuses() -> list[tuple[int, int]]:
        double.reset(latency=[0, 0], rates=rates)
        return [(r.status_code, len(r.content)) for i in range(20) for r in [ask(double, f"q{i % 5}")]]

    once = statuses()
    assert once == statuses() and len(set(once)) > 3


def test_a_stream_says_what_the_whole_reply_says(double: Double) -> None:
    whole = ask(double, "stream me").json()
    lines = [line for line in ask(double, "stream me", stream=True).content.split(b"\n") if line]
    assert lines[0].startswith(b": ") and lines[-1] == b"data: [DONE]"
    chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"]["cost"] == whole["usage"]["cost"] and chunks[-1]["choices"] == []
    broken = {"plan": [{"match": "bad", "fault": "midstream", "times": 1}]}
    double.change(**broken)
    assert b'"error"' in ask(double, "bad", stream=True).content and double.ledger[-1]["cost"] == "0"


def test_a_request_whose_client_has_gone_is_billed_all_the_same(double: Double) -> None:
    double.change(latency=[0.2, 0.2])
    body = {"model": "maker/target", "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{double.url}/chat/completions", json=body, timeout=0.05, trust_env=False)
    time.sleep(0.4)
    assert double.ledger[-1]["client_gone"] is True and double.brief()["abandoned"] == 1


def test_it_carries_two_thousand_connections(double: Double) -> None:
    """2000 requests under way at once on 2000 connections; the double's CPU for one is printed and bounded."""
    double.change(latency=[4.0, 5.0])
    url = urlsplit(double.url)
    body = json.dumps({"model": "maker/target", "messages": [{"role": "user", "content": "x" * 2000}]}).encode()
    head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def one() -> int:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(head + body)
        line = await reader.readline()
        writer.close()
        return int(line.split()[1])

    async def many() -> list[int]:
        return await asyncio.gather(*(one() for _ in range(2000)))

    before = cpu(double.pid)
    assert set(asyncio.run(many())) == {200}
    each = (cpu(double.pid) - before) / 2000
    print(f"the double: {each * 1000:.2f} ms of CPU a request at 2000 in flight")
    assert double.brief()["peak"] > 1800 and each < 0.003


def cpu(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
