"""A gateway that answers a job as a function says: for replies that no double draws by chance."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.gateway.wire import Request, Response, Wire, plain

MODEL = "maker/target"
ENDPOINTS = [
    {"tag": tag, "provider_name": name, "quantization": quantization, "status": 0, "context_length": 262144,
     "pricing": {"prompt": "0.0000005", "completion": "0.0000022"},
     "supported_parameters": ["reasoning", "tools", "temperature", "top_p", "seed", "max_tokens"]}
    for tag, name, quantization in (("alpha/int4", "Alpha", "int4"), ("beta/fp8", "Beta", "fp8"))
]  # fmt: skip


class Scripted(Wire):
    """`chat` makes the response to a completion request. `bills` are generation ids with what they cost."""

    def __init__(self, chat: Callable[[Request], Response], endpoints: list[dict[str, Any]] = ENDPOINTS) -> None:
        self.bills: dict[str, Decimal] = {}
        self.endpoints = endpoints

        def handle(request: Request) -> Response:
            url = urlsplit(request.path)
            if url.path.endswith("completions"):
                return chat(request)
            if url.path.endswith("/models"):
                return plain({"data": [{"id": MODEL, "canonical_slug": MODEL, "context_length": 262144}]})
            if url.path.endswith("/endpoints"):
                return plain({"data": {"id": MODEL, "endpoints": self.endpoints}})
            wanted = parse_qs(url.query).get("id", [""])[0]
            if url.path.endswith("/generation") and wanted in self.bills:
                return plain(
                    {
                        "data": {
                            "id": wanted,
                            "total_cost": float(self.bills[wanted]),
                            "native_tokens_prompt": 5,
                            "native_tokens_completion": 9,
                        }
                    }
                )
            return plain({"error": {"code": 404, "message": "not found"}}, 404)

        super().__init__(handle)

    def asked(self) -> list[Any]:
        """The bodies of the requests so far."""
        return [json.loads(request.raw) for request in self.requests]
