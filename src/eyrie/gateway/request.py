"""Build a request: its bytes, its fingerprint and its worst-case price."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from eyrie.files import canonical_json, fingerprint
from eyrie.gateway.providers import UNDECLARED, Endpoint, ProviderList

MILLION = Decimal(1_000_000)
TEMPLATE_TOKENS = 256  # what a chat template adds around a whole prompt, at most: a system prompt, tool instructions
TEMPLATE_TOKENS_PER_MESSAGE = 32
LONG_ANSWER = 2048  # tokens: minutes of silence, longer than proxies and NATs keep a connection that says nothing
CHAT, PLAIN = "chat/completions", "completions"
METADATA = {"X-OpenRouter-Metadata": "enabled"}  # proves which endpoints were tried
CACHE = {"X-OpenRouter-Cache": "true", "X-OpenRouter-Cache-TTL": "86400"}  # gives a lost reply back, free
RENEW = {"X-OpenRouter-Cache-Clear": "true"}


@dataclass(frozen=True)
class Sampling:
    """How the target speaks; None sends nothing and leaves it to the server."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def unheeded_by(self, endpoint: Endpoint, policy: Mapping[str, Any]) -> str | None:
        """Why `endpoint` would not sample as asked, None when it would.

        A parameter that an endpoint does not support is dropped without a word, and some hosts fix a value
        (`policy.fixed_sampling`, by tag or by the tag's provider) and ignore or refuse any other.
        """
        fixed = policy.get("fixed_sampling") or {}
        held = {**(fixed.get(endpoint.tag.split("/")[0]) or {}), **(fixed.get(endpoint.tag) or {})}
        for name in ("temperature", "top_p"):
            asked = getattr(self, name)
            if asked is None or held.get(name) == asked:
                continue
            if name in held:
                return f"takes only {name}={held[name]:g}, asked is {asked:g}"
            if endpoint.supported_parameters and name not in endpoint.supported_parameters:
                return f"does not take {name}, asked is {asked:g}"
        return None

    def fields(self, repetition: int) -> dict[str, Any]:
        """Body fields. Repetitions differ by their seed, else the response cache would return one text for all."""
        seed = self.seed if repetition == 0 else (self.seed or 0) + repetition
        found = {"temperature": self.temperature, "top_p": self.top_p, "seed": seed}
        return {"max_tokens": self.max_tokens, **{k: v for k, v in found.items() if v is not None}}


def headers(kind: str, *, renew: bool = False) -> dict[str, str]:
    """Headers of one request besides the key.

    `renew`: the reply to these same bytes is known to be bad. The response cache would give it again, so its entry is
    replaced; the new reply is then what the cache gives back when it is lost on the way.
    """
    return {**METADATA, **CACHE, **(RENEW if renew else {})} if kind == "openrouter" else {}


def streams(asked: bool | None, kind: str, max_tokens: int) -> bool:
    """Whether to stream. Left open, long answers through OpenRouter are: a request that is silent for minutes is cut
    by what lies between, and billed. Short ones are not: parsing every token's chunk costs more than the answer."""
    return (kind == "openrouter" and max_tokens > LONG_ANSWER) if asked is None else asked


@dataclass(frozen=True)
class Request:
    """One completion to send to `path`. `body` is canonical JSON: equal requests are equal bytes."""

    body: bytes = field(repr=False)
    fingerprint: str
    worst_case: Decimal  # dollars
    path: str = CHAT


@dataclass(frozen=True)
class RequestBuilder:
    """Everything about requests that is the same for a whole job."""

    kind: str  # embedded | openrouter | openai
    identity_model: str  # the vault's name of the model
    sampling: Sampling
    thinking: bool | None
    providers: ProviderList
    stream: bool = False
    ask_token_ids: bool = True  # of a server of one's own
    sort: str | None = None  # OpenRouter: which endpoint first; no part of the fingerprint

    def build(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None, repetition: int = 0) -> Request:
        """The request for the next assistant turn after `messages`.

        The fingerprint covers what decides the text (model, messages, tools, sampling, reasoning switch, policy
        class), not what changes by the day (prices, endpoint tags) and not how the answer travels (streaming): a new
        price must not look like a new request. `models` (answers by other models), `require_parameters` (drops hosts
        that fix a value even when it is the right one) and anything that differs between attempts stay out of the
        body: a re-send must be byte-identical for the response cache to know it.
        """
        core: dict[str, Any] = {"messages": list(messages), **self.sampling.fields(repetition)}
        if tools:
            core["tools"] = list(tools)
        mark = self._fingerprint(core)
        body = {"model": self.providers.model, **core, **self._switches(tools)}
        if self.kind != "openrouter":
            body["messages"] = [_with_reasoning_content(message) for message in messages]
        data = canonical_json(body).encode()
        return Request(data, mark, self.worst_case(messages, tools))

    def build_continuation(self, prompt_ids: Sequence[int], ids: Sequence[int], repetition: int = 0) -> Request:
        """The request that goes on where an answer was cut: token ids in, so not one token is encoded anew.

        Only a server that returned the ids can be asked so; it conditions on exactly what it generated.
        """
        core = {"prompt": [*prompt_ids, *ids], **self.sampling.fields(repetition)}
        ids_too = {key: value for key, value in self._switches(None).items() if key.startswith("return_")}
        body = {"model": self.providers.model, "stream": False, **ids_too, **core}
        return Request(canonical_json(body).encode(), self._fingerprint(core), Decimal(0), PLAIN)

    def _fingerprint(self, core: dict[str, Any]) -> str:
        policy = {"gateway": self.kind, "quantizations": sorted(self.providers.policy.get("quantizations") or [])}
        return fingerprint(self.identity_model, core, {"thinking": self.thinking}, policy, length=32)

    def _switches(self, tools: Sequence[Any] | None) -> dict[str, Any]:
        """What a request carries besides its core: who may answer, the reasoning switch, how the answer travels."""
        if self.kind == "openrouter":
            thinking = {} if self.thinking is None else {"reasoning": {"enabled": self.thinking}}
            return {"stream": self.stream, "provider": self._provider(bool(tools)), **thinking}
        usage = {"stream_options": {"include_usage": True}} if self.stream else {}
        if self.kind == "embedded":
            template = {} if self.thinking is None else {"chat_template_kwargs": {"thinking": self.thinking}}
            return {"stream": self.stream, "return_token_ids": True, **usage, **template}
        # Exact ids instead of text that is encoded again: vLLM and newer SGLang know the first option, older SGLang
        # the second, for the prompt alone; in a stream SGLang refuses to give any. A template reads its own spelling
        # of the reasoning switch.
        asked = self.ask_token_ids and not self.stream
        ids = {"return_token_ids": True, "return_prompt_token_ids": True} if asked else {}
        switch = {"thinking": self.thinking, "enable_thinking": self.thinking}
        template = {} if self.thinking is None else {"chat_template_kwargs": switch}
        return {"stream": self.stream, **ids, **usage, **template}

    def _provider(self, tools: bool) -> dict[str, Any]:
        """OpenRouter's `provider` object: full tags, since a bare provider name lets all its precisions in."""
        accepted = self.providers.accepted
        # An endpoint without tools would answer without them. If none has them the gateway says so (404).
        able = [e for e in accepted if not tools or "tools" in e.supported_parameters] or accepted
        policy = self.providers.policy
        block: dict[str, Any] = {
            **({"sort": self.sort} if self.sort else {}),
            "only": sorted(e.tag for e in able),
            "allow_fallbacks": True,  # inside `only`
            "max_price": {
                "prompt": plain(self.providers.highest("prompt_price") * MILLION),
                "completion": plain(self.providers.highest("completion_price") * MILLION),
            },
        }
        if quantizations := policy.get("quantizations"):
            # An endpoint accepted by written evidence declares nothing: the filter would leave it out.
            undeclared = any(e.quantization in UNDECLARED for e in able)
            block["quantizations"] = sorted({*quantizations, *(["unknown"] if undeclared else [])})
        if collection := policy.get("data_collection"):
            block["data_collection"] = collection
        if policy.get("zdr"):
            block["zdr"] = True
        if policy.get("distillable"):
            block["enforce_distillable_text"] = True
        return block

    def worst_case(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> Decimal:
        """The most that one attempt can cost, in dollars: every byte of the prompt a token, `max_tokens` of output
        (reasoning is output), at the highest price of any accepted endpoint. No byte-level tokenizer gives more
        tokens than bytes, and the request's own `max_price` bars an endpoint that became dearer meanwhile, so a
        budget kept by these reservations is never passed."""
        texts = sum(len(canonical_json(m).encode()) for m in messages) + (len(canonical_json(tools)) if tools else 0)
        prompt = texts + TEMPLATE_TOKENS + TEMPLATE_TOKENS_PER_MESSAGE * len(messages)
        return (
            prompt * self.providers.highest("prompt_price")
            + self.sampling.max_tokens * self.providers.highest("completion_price")
            + self.providers.highest("request_price")
        )


def narrow(body: bytes, tags: frozenset[str] | None) -> bytes:
    """The request with only those endpoints of its own list that are in `tags` (None: all).

    It can only shrink the list. When nothing of it would be left it stays as it is: the policy decides who may
    answer, health only whom to ask first. The fingerprint knows of no tags, so it is the same request.
    """
    if tags is None:
        return body
    value = json.loads(body)
    listed = value["provider"]["only"]
    kept = [tag for tag in listed if tag in tags]
    if not kept or kept == listed:
        return body
    value["provider"]["only"] = kept
    return canonical_json(value).encode()


def _with_reasoning_content(message: dict[str, Any]) -> dict[str, Any]:
    """A message under the names that SGLang and vLLM read: reasoning is `reasoning_content` there."""
    kept = {key: value for key, value in message.items() if key != "reasoning_details"}
    if kept.get("reasoning") and not kept.get("reasoning_content"):
        kept["reasoning_content"] = kept["reasoning"]
    return kept


def plain(value: Decimal) -> str:
    """A Decimal without exponent and without trailing zeros."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
