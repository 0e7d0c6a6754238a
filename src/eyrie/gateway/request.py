"""Build a request: its bytes, its fingerprint and its worst-case price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from eyrie.files import canonical_json, fingerprint
from eyrie.gateway.providers import ProviderList

MILLION = Decimal(1_000_000)
TEMPLATE_TOKENS = 64  # what a chat template adds around the whole prompt, at most
TEMPLATE_TOKENS_PER_MESSAGE = 32


@dataclass(frozen=True)
class Sampling:
    """How the target speaks; None sends nothing and leaves it to the server."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def fields(self, repetition: int) -> dict[str, Any]:
        """Body fields. Repetitions differ by their seed, else the response cache would return one text for all."""
        seed = self.seed if repetition == 0 else (self.seed or 0) + repetition
        found = {"temperature": self.temperature, "top_p": self.top_p, "seed": seed}
        return {"max_tokens": self.max_tokens, **{k: v for k, v in found.items() if v is not None}}


@dataclass(frozen=True)
class Request:
    """One chat completion to send. `body` is canonical JSON: equal requests are equal bytes."""

    body: bytes = field(repr=False)
    fingerprint: str
    worst_case: Decimal  # dollars


@dataclass(frozen=True)
class RequestBuilder:
    """Everything about requests that is the same for a whole job."""

    kind: str  # embedded | openrouter | openai
    identity_model: str  # the vault's name of the model
    sampling: Sampling
    thinking: bool | None
    providers: ProviderList

    def build(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None, repetition: int = 0) -> Request:
        """The request for the next assistant turn after `messages`.

        The fingerprint covers what decides the text (model, messages, tools, sampling, reasoning switch, policy
        class), not what changes by the day (prices, endpoint tags): a new price must not look like a new request.
        """
        core: dict[str, Any] = {"messages": list(messages), **self.sampling.fields(repetition)}
        if tools:
            core["tools"] = list(tools)
        policy = {"gateway": self.kind, "quantizations": sorted(self.providers.policy.get("quantizations") or [])}
        mark = fingerprint(self.identity_model, core, {"thinking": self.thinking}, policy, length=32)
        body = {"model": self.providers.model, "stream": False, **core, **self._switches()}
        data = canonical_json(body).encode()
        return Request(data, mark, self.worst_case(messages, tools))

    def _switches(self) -> dict[str, Any]:
        if self.kind == "openrouter":
            block: dict[str, Any] = {
                "only": sorted(e.tag for e in self.providers.accepted),
                "allow_fallbacks": True,  # inside `only`
                "max_price": {
                    "prompt": plain(self.providers.highest("prompt_price") * MILLION),
                    "completion": plain(self.providers.highest("completion_price") * MILLION),
                },
            }
            if quantizations := self.providers.quantizations:
                block["quantizations"] = quantizations
            if collection := self.providers.policy.get("data_collection"):
                block["data_collection"] = collection
            if self.providers.policy.get("distillable"):
                block["enforce_distillable_text"] = True
            return {"provider": block, **({} if self.thinking is None else {"reasoning": {"enabled": self.thinking}})}
        template = {} if self.thinking is None else {"chat_template_kwargs": {"thinking": self.thinking}}
        return {"return_token_ids": True, **template}

    def worst_case(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> Decimal:
        """The most that one attempt can cost, in dollars: every byte of the prompt a token, `max_tokens` of output
        (reasoning is output), at the highest price of any accepted endpoint. No byte-level tokenizer gives more
        tokens than bytes, so a budget kept by these reservations is never passed."""
        texts = sum(len(canonical_json(m).encode()) for m in messages) + (len(canonical_json(tools)) if tools else 0)
        prompt = texts + TEMPLATE_TOKENS + TEMPLATE_TOKENS_PER_MESSAGE * len(messages)
        return (
            prompt * self.providers.highest("prompt_price")
            + self.sampling.max_tokens * self.providers.highest("completion_price")
            + self.providers.highest("request_price")
        )


def plain(value: Decimal) -> str:
    """A Decimal without exponent and without trailing zeros."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
