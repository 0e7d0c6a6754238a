"""Output tokens a second of the embedded gateway, over real HTTP, beside transformers and the machine's own limit.

  python benchmarks/gateway.py --target results/laptop/target.json --threads 2

Everything is measured in one run on one machine, so the ratios stand although the absolute figures follow its load:
  limit    the products that decoding these tokens and prefilling these prompts cannot do without, at the rate they
           reach alone (packed weights, `--in-flight` rows a step)
  gateway  the embedded server, `--in-flight` requests under way, wall time from first request to last reply
  peer     transformers.generate on the same prompts, greedy, left-padded batches of `--in-flight`, sorted by length
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

SUBJECTS = (
    "a binary search tree", "the water cycle", "how a bill becomes law", "a rate limiter", "sourdough bread",
    "the French Revolution", "matrix multiplication", "a to-do list app", "photosynthesis", "public-key encryption",
    "a chess opening", "dynamic programming", "the human heart", "SQL joins", "a short holiday in Rome",
    "unit tests", "plate tectonics", "a regular expression for dates", "inflation", "garbage collection",
    "the moons of Jupiter", "a REST API", "learning the violin", "quicksort",
)  # fmt: skip
REQUESTS = (
    "Explain {} to a beginner.",
    "Write a short note on {}, with one example.",
    "List five things one should know about {}.",
    "What are common mistakes with {}? Here is what I know so far: it is often introduced too late, examples tend to "
    "be contrived, and most people meet it first when something has already gone wrong. Answer in a few sentences.",
)


def conversations(count: int) -> list[list[dict[str, str]]]:
    """`count` different one-message conversations."""
    texts = [request.format(subject) for request in REQUESTS for subject in SUBJECTS]
    return [[{"role": "user", "content": text}] for text in texts[:count]]


def limit(target: str, rows: int, decode_tokens: int, prefill_tokens: int) -> float:
    """Seconds that the matrix products alone take, for so many tokens generated and prefilled."""
    import torch

    from eyrie.target import load_receipt
    from eyrie.target.llama import Llama

    model = Llama.load(load_receipt(target).folder)

    @torch.inference_mode()
    def products(count: int, head: bool) -> float:
        layer = model.layers[0]
        wide, inner = torch.randn(count, model.hidden_size), torch.randn(count, layer.gate.out_features)
        attended = torch.randn(count, layer.out.in_features)
        times = []
        for _ in range(6):
            start = time.perf_counter()
            for layer in model.layers:
                layer.qkv(wide)
                layer.out(attended)
                layer.gate(wide)
                layer.up(wide)
                layer.down(inner)
            if head:
                model.lm_head(wide)
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    return decode_tokens / rows * products(rows, True) + prefill_tokens / 256 * products(256, False)


def gateway(args: argparse.Namespace, chats: list[list[dict[str, str]]]) -> dict[str, float]:
    """The embedded server under load; the model is loaded before the clock starts."""
    import httpx

    from eyrie.gateway.embedded import serve

    with serve(args.target, width=args.in_flight, threads=args.threads) as url, httpx.Client(timeout=None) as client:
        model = client.get(f"{url}/models").json()["data"][0]["id"]

        def ask(messages: list[dict[str, str]], max_tokens: int = args.max_tokens) -> dict[str, int]:
            body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": max_tokens}
            reply = client.post(f"{url}/chat/completions", json=body).raise_for_status()
            return reply.json()["usage"]

        ask(chats[0], 2)
        start = time.perf_counter()
        with ThreadPoolExecutor(args.in_flight) as pool:
            usage = list(pool.map(ask, chats))
        seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "output_tokens": sum(u["completion_tokens"] for u in usage),
        "prompt_tokens": sum(u["prompt_tokens"] for u in usage),
    }


def transformers_generate(args: argparse.Namespace, chats: list[list[dict[str, str]]]) -> dict[str, float]:
    """The peer; counts each answer up to its end token, as the server does."""
    import torch

    from eyrie.chat import end_token_ids, render_prompt
    from eyrie.target import load_model, load_receipt, load_tokenizer

    receipt = load_receipt(args.target)
    tokenizer, model = load_tokenizer(receipt), load_model(receipt)
    ends = sorted(end_token_ids(tokenizer))
    prompts = sorted((render_prompt(tokenizer, chat) for chat in chats), key=len)
    model.generate(torch.tensor([prompts[0]]), max_new_tokens=2, do_sample=False)
    tokens, start = 0, time.perf_counter()
    for first in range(0, len(prompts), args.in_flight):
        batch = prompts[first : first + args.in_flight]
        width = max(map(len, batch))
        ids = torch.tensor([[ends[0]] * (width - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
        found = model.generate(
            ids, attention_mask=mask, max_new_tokens=args.max_tokens, do_sample=False, pad_token_id=ends[0]
        )
        for answer in found[:, width:].tolist():
            end = next((i for i, token in enumerate(answer) if token in ends), len(answer) - 1)
            tokens += end + 1
    return {"seconds": time.perf_counter() - start, "output_tokens": tokens}


def part(args: argparse.Namespace, name: str, **more: int) -> dict[str, float]:
    """Run one measurement in a process of its own, so that no thread pool of another is left running."""
    command = [sys.executable, __file__, "--part", name, "--target", args.target, "--threads", str(args.threads)]
    command += ["--in-flight", str(args.in_flight), "--max-tokens", str(args.max_tokens)]
    command += ["--requests", str(args.requests)]
    for key, value in more.items():
        command += [f"--{key}", str(value)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main() -> None:
    from eyrie.threads import add_argument, set_threads

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="target.json")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--no-peer", action="store_true", help="leave out transformers, which takes longest")
    parser.add_argument("--part", choices=("limit", "gateway", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--decode", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--prefill", type=int, default=0, help=argparse.SUPPRESS)
    add_argument(parser)
    args = parser.parse_args()
    chats = conversations(args.requests)
    if args.part:
        if args.part != "gateway":  # whose server sets its own
            set_threads(args.threads)
        measured = {
            "limit": lambda: {"seconds": limit(args.target, args.in_flight, args.decode, args.prefill)},
            "gateway": lambda: gateway(args, chats),
            "peer": lambda: transformers_generate(args, chats),
        }[args.part]()
        print(json.dumps(measured))
        return
    served = part(args, "gateway")
    work = {"decode": int(served["output_tokens"]), "prefill": int(served["prompt_tokens"])}
    floor = part(args, "limit", **work)["seconds"]
    whole = work["decode"] / floor
    decoding = work["decode"] / part(args, "limit", decode=work["decode"])["seconds"]
    rate = served["output_tokens"] / served["seconds"]
    print(f"{len(chats)} requests, {work['prefill']} prompt and {work['decode']} output tokens, greedy")
    print(f"{args.in_flight} in flight, {args.threads} threads; output tokens a second:")
    print(f"  gateway       {rate:7.1f}   {rate / whole:.2f} of the limit")
    if not args.no_peer:
        peer = part(args, "peer")
        other = peer["output_tokens"] / peer["seconds"]
        print(f"  transformers  {other:7.1f}   the gateway is {rate / other:.2f} times as fast")
    print(f"  limit         {whole:7.1f}   (products of decode and prefill; {decoding:.1f} for decode alone)")


if __name__ == "__main__":
    main()
