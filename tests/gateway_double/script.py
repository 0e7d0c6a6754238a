"""The script: what the double offers, how it answers, and in which ways it fails. Changed at run time by tests.

Times are seconds of the double's clock, which runs `clock` times as fast as the wall's. Faults are named in
`faults.py`; whether a request meets one follows from its bytes and from how often it came, never from the hour.
"""

from __future__ import annotations

from typing import Any

DEFAULT_SCRIPT: dict[str, Any] = {
    # the catalogue
    "model": "maker/target",
    "model_facts": {},  # merged into the model's entry
    "models": 1,  # others in the listing before it
    "others": None,  # their names, when those matter
    "prompt_price": "0.0000005",  # of endpoints without a `pricing` of their own; USD per token
    "completion_price": "0.0000022",
    # An endpoint is what the listing shows; under "double" stands what it does not: tokens_per_s, first_token_s,
    # concurrency (requests under way before it answers 429), aborts_stop_billing (of streams).
    "endpoints": [
        {"tag": "alpha/int4", "provider_name": "Alpha", "quantization": "int4"},
        {"tag": "beta/fp8", "provider_name": "Beta", "quantization": "fp8"},
    ],
    # the account
    "keys": None,  # accepted keys; None = any
    "credits": None,  # dollars bought; None = without end
    "key_limit": None,  # dollars; the key's own limit
    "key_usage_lag": 0.0,  # seconds until /key knows of a bill
    # answers
    "tokens": [5, 40],  # output tokens, drawn evenly; or {"median":, "p99":}, log-normal
    "words": 400,  # words of text in an answer at most, however many tokens it is billed for
    "latency": [0.0, 0.02],  # of endpoints without a speed of their own
    "hold": False,  # no answer is finished while this is set: fills the slots, however slow the machine is
    "early_headers": False,  # headers (and the generation id) at once, the body when it is done
    "chunks": 4,  # pieces of a streamed answer
    "clock": 1.0,
    # the response cache and /generation
    "cache": True,
    "generation_lag": 0.0,  # seconds until /generation knows a request
    # faults
    "retry_after": 0.05,
    "slow": 1.0,  # what `slow` adds
    "rates": {},  # fault -> probability per request
    "plan": [],  # {"match": text in the request, "fault": name, "times": n}; before the rates
}


def _kimi(tag: str, name: str, prompt: str, completion: str, speed: float, first: float, limit: int, **more: Any):  # noqa: ANN202
    return {
        "tag": tag, "provider_name": name, "quantization": tag.split("/")[1],
        "pricing": {"prompt": prompt, "completion": completion, "request": "0", **more},
        "max_completion_tokens": 65536,
        "double": {"tokens_per_s": speed, "first_token_s": first, "concurrency": limit},
    }  # fmt: skip


# Nine endpoints in the shape of Kimi-K2.5's: int4 and 8 bits. Prices make an answer of 1750 tokens cost $2.05 per
# million of them, prompt included; speeds make answer times of median 60 s and 99th percentile 300 s.
KIMI_ENDPOINTS: list[dict[str, Any]] = [
    _kimi("moonshotai/int4", "Moonshot AI", "0.0000006", "0.0000025", 27.0, 1.6, 340, input_cache_read="0.00000015"),
    _kimi("atlas-cloud/int4", "AtlasCloud", "0.00000045", "0.0000019", 22.0, 2.4, 300),
    _kimi("siliconflow/fp8", "SiliconFlow", "0.00000045", "0.00000195", 20.0, 2.1, 300),
    _kimi("parasail/int4", "Parasail", "0.0000005", "0.00000195", 23.0, 1.9, 280),
    _kimi("novita/int4", "Novita", "0.0000005", "0.0000019", 21.0, 2.2, 280),
    _kimi("deepinfra/fp8", "DeepInfra", "0.0000005", "0.0000021", 24.0, 1.4, 260, discount=0.1),
    _kimi("venice/int4", "Venice", "0.00000055", "0.0000021", 19.0, 2.8, 200),
    _kimi("baseten/fp8", "BaseTen", "0.0000006", "0.0000024", 38.0, 0.9, 240),
    _kimi("fireworks/fp8", "Fireworks", "0.0000006", "0.0000023", 34.0, 1.0, 260),
]
KIMI: dict[str, Any] = {
    "model": "moonshotai/kimi-k2.5",
    "models": 400,
    "endpoints": [
        *KIMI_ENDPOINTS,
        {"tag": "cheapest/fp4", "provider_name": "Cheapest", "quantization": "fp4",
         "pricing": {"prompt": "0.0000003", "completion": "0.0000012"}},
        {"tag": "mystery", "provider_name": "Mystery", "quantization": None},
        {"tag": "asleep/int4", "provider_name": "Asleep", "quantization": "int4", "status": -2},
    ],
}  # fmt: skip
