"""A small scripted OpenRouter: a real HTTP server in its own process, with a ledger of what it billed."""

from tests.gateway_double.process import Double

__all__ = ["Double"]
