"""Serve the target over OpenRouter's protocol on loopback, on the CPU.

The laptop default's answers come from here, over real HTTP: models, endpoints, key, generation and chat completions
(whole or streamed), with usage, provider and generation id as OpenRouter replies, at a cost of 0. Requests are decoded
together, `--width` at a time; each answer is a function of its request alone. The model is loaded on the first
completion. `eyrie generate` starts and stops such a server by itself; by hand it is a server to try things with:

  eyrie gateway --target results/laptop/target.json --port 8080
  curl 127.0.0.1:8080/api/v1/models

When ready it prints one JSON line: base_url, model, pid. It ends on SIGTERM or SIGINT, and with
--until-stdin-closes when its standard input closes, as it does when the parent process dies in whatever way.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys

import trio

from eyrie.errors import EyrieError, InputError
from eyrie.gateway.embedded.protocol import Served
from eyrie.target.receipt import TargetReceipt, load_receipt, read_config, text_config
from eyrie.target.support import check_supported
from eyrie.threads import add_argument

CONTEXT = 4096  # tokens served by default; memory grows with the longest row that comes, not with this


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, metavar="FILE", help="target.json")
    parser.add_argument("--port", type=int, default=0, help="loopback port (default: any free one)")
    parser.add_argument("--width", type=int, default=32, metavar="N", help="answers decoded together (default 32)")
    parser.add_argument("--model-id", metavar="ID", help="AUTHOR/SLUG in the catalogue (default embedded/NAME)")
    parser.add_argument(
        "--context", type=int, default=CONTEXT, metavar="N", help=f"tokens of prompt and answer (default {CONTEXT})"
    )
    parser.add_argument("--catalogue-only", action="store_true", help="never load the model; refuse completions")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when standard input closes")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the tokenizer")
    add_argument(parser)


def model_id(receipt: TargetReceipt) -> str:
    """The model's id in the catalogue: embedded/NAME in lower case."""
    return "embedded/" + re.sub(r"[^a-z0-9._-]+", "-", receipt.name.lower()).strip("-")


def run(args: argparse.Namespace) -> int:
    """Check the target, then serve until told to stop."""
    try:
        receipt = load_receipt(args.target)
        config = read_config(receipt)
        if not args.catalogue_only:
            check_supported(config, receipt.path)
        if args.width < 1 or args.context < 2:
            raise InputError(f"--width {args.width} and --context {args.context} must be positive")
        context = min(args.context, int(text_config(config)["max_position_embeddings"]))
        served = Served(args.model_id or model_id(receipt), receipt.name, context)
        trio.run(_serve, args, receipt, served)
    except EyrieError as error:
        if args.until_stdin_closes:  # the parent reads the reason from the line it waits for
            print(json.dumps({"error": str(error), "code": int(error.code)}), flush=True)
        raise
    return 0


async def _serve(args: argparse.Namespace, receipt: TargetReceipt, served: Served) -> None:
    from eyrie.gateway.embedded.server import Server
    from eyrie.gateway.embedded.service import Service

    service = Service(receipt, served, width=args.width, threads=args.threads, trust_remote_code=args.trust_remote_code)
    server = Server(service, catalogue_only=args.catalogue_only)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, nursery.cancel_scope, args.until_stdin_closes)
            if args.until_stdin_closes:
                nursery.start_soon(_stop_with_stdin, nursery.cancel_scope)
            try:
                port = await nursery.start(server.run, args.port)
            except OSError as error:
                raise InputError(f"--port {args.port} cannot be used: {error.strerror}") from None
            ready = {"base_url": f"http://127.0.0.1:{port}/api/v1", "model": served.model, "pid": os.getpid()}
            print(json.dumps(ready), flush=True)
    except* InputError as group:
        raise group.exceptions[0] from None
    finally:
        service.close()


async def _stop_on_signal(scope: trio.CancelScope, owned: bool) -> None:
    """SIGTERM ends the server; SIGINT too, unless a parent owns it: Ctrl-C goes to the whole terminal, and the parent
    first lets its requests finish."""
    signals = [signal.SIGTERM] if owned else [signal.SIGTERM, signal.SIGINT]
    if owned:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with trio.open_signal_receiver(*signals) as received:
        async for _ in received:
            scope.cancel()
            return


async def _stop_with_stdin(scope: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        while await stdin.receive_some(1024):
            pass
    scope.cancel()
