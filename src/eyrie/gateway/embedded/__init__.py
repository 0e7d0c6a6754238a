"""A small real model in a child process of this machine, behind OpenRouter's protocol."""

from eyrie.gateway.embedded.process import serve

__all__ = ["serve"]
