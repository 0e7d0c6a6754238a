"""Have the target answer a dataset's prompts, turn by turn, through the vault.

Reads prompts/D.jsonl.zst and providers.json; writes generated/D.jsonl.zst (conversations in OpenAI chat form, every
answer with its provenance) and generated/D.summary.json (counts, tokens, dollars, waste). Every answer goes into the
vault before it counts, so running this again buys only what is missing, and on a complete vault it sends nothing. An
incomplete dataset writes no file unless generate.on_exhausted=build_partial.

where the answers come from (gateway=NAME):
  openrouter  paid, through the endpoints that providers.json accepts, within generate.budget_usd
  openai      a server that runs already: gateway.base_url=http://127.0.0.1:30000/v1 (SGLang, vLLM, any other)
  sglang      SGLang, started by this job on its GPUs and stopped with it; also when this job is killed
  vllm        the same with vLLM
  embedded    the target itself in a child process on this machine's CPU
A server that the job starts listens on a free port of this machine only. Its options are gateway.launch.args, e.g.
'gateway.launch.args={tp-size: 8, reasoning-parser: kimi_k2}'; gateway.launch.command says how to call it when it lives
in an environment of its own, e.g. 'gateway.launch.command=[/opt/sglang/bin/python,-m,sglang.launch_server]'; its output
goes to --server-log. Such a server costs nothing and needs no key. Where it gives token ids (vLLM; SGLang: of the
prompt, newer ones of the answer too) they are kept, and nothing is encoded anew from text.

what is shown: on a terminal one live line; else a line every 10 seconds, always with the same fields:
  D: h:mm:ss STATE, ROWS/TOTAL rows, TOKENS/BUDGET tokens, N tok/s, $SPENT, ETA h:mm:ss, N in flight (limit L,
  leased M), N rejected, N faults (by reason)
Speed and ETA are those of the last minute. L is what the limiter lets out after overloads, M what this job may use
beside the account's other jobs. At the end, also of a stopped job, comes the account: answers, tokens, dollars, dollars
per million output tokens, speed, latency (median, 95th percentile), errors by reason, the same per endpoint; and of
the dataset over all jobs: rejected rows, waste (attempts that cost something and gave nothing usable), open bills
(attempts whose cost is not known yet), duplicates and losses. The last two are counted in the vault and are 0: a
duplicate is a request paid for again although its answer was there, a loss is an answer paid for that is not there.

stopping: Ctrl-C once stops admission and waits for what is under way (it is billed anyway); twice aborts it. After
either, after `kill -9` and after a power cut the next run goes on where this one was.

by hand:
    eyrie generate --slice "$(eyrie config --slice generate --dataset demo_code)" \\
        --runtime "$(eyrie config --runtime)" --providers results/laptop/providers.json \\
        --prompts results/laptop/prompts/demo_code.jsonl.zst --target results/laptop/target.json --vault vault \\
        --output results/laptop/generated/demo_code.jsonl.zst \\
        --summary results/laptop/generated/demo_code.summary.json

exit codes: 3 no key, no server, or the server did not start; 10 key refused, 11 out of credits, 12 budget reached,
13 no endpoint, 14 too many rejects, 15 rows still open or too few tokens, 130 interrupted. In all of them what was
paid for is in the vault.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import trio

from eyrie.config import load_slice
from eyrie.errors import ExitCode, EyrieError, InputError
from eyrie.files import count_lines_zst
from eyrie.gateway.key import ApiKey, read_key
from eyrie.gateway.launch import Launch
from eyrie.gateway.local import open_gateway
from eyrie.gateway.providers import ProviderList
from eyrie.gateway.request import RequestBuilder
from eyrie.gateway.served import context_of, served_model
from eyrie.generate.account import lines
from eyrie.generate.collector import calm_collector
from eyrie.generate.output import Counts, Incomplete, Output
from eyrie.generate.run import Run
from eyrie.generate.settings import Settings
from eyrie.generate.stock import Stock, survey
from eyrie.generate.stop import StopSign, first_error
from eyrie.threads import add_argument
from eyrie.vault import Vault
from eyrie.vault.account import books
from eyrie.vault.fitted import read_fit
from eyrie.vault.money import dollars


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slice", required=True, metavar="JSON", help="`eyrie config --slice generate --dataset D`")
    parser.add_argument("--runtime", required=True, metavar="JSON", help="money, concurrency, gateway address")
    parser.add_argument("--providers", required=True, type=Path, help="providers.json")
    parser.add_argument("--prompts", required=True, type=Path, help="prompts/D.jsonl.zst")
    parser.add_argument(
        "--target", type=Path, metavar="FILE", help="target.json; needed when the target is served here"
    )
    parser.add_argument(
        "--server-log", type=Path, metavar="FILE", help="output of the server that gateway.launch starts"
    )
    parser.add_argument("--vault", required=True, type=Path, help="folder of the vault")
    parser.add_argument("--fit", nargs="?", type=Path, help="fit.json, when generate.tokens_per_dataset is fit")
    parser.add_argument("--output", required=True, type=Path, help="generated/D.jsonl.zst")
    parser.add_argument("--summary", required=True, type=Path, help="generated/D.summary.json")
    add_argument(parser)


def run(args: argparse.Namespace) -> int:
    runtime = load_slice(args.runtime)
    fitted = read_fit(args.fit)["tokens_per_dataset"] if args.fit else None
    settings = Settings.read(load_slice(args.slice), runtime, fitted)
    launch = Launch.read(runtime["gateway"].get("launch"))
    key = read_key(settings.gateway, settings.api_key_file)  # before anything is written
    providers = _providers(args.providers, settings)
    model = settings.identity_model(_target_fingerprint(args, settings, launch))
    builder = RequestBuilder(
        settings.gateway, model, settings.sampling, settings.thinking, providers, settings.stream,
        ask_token_ids=runtime["gateway"].get("ask_token_ids", True), sort=runtime["gateway"].get("sort"),
    )  # fmt: skip
    with Vault(args.vault) as vault:
        output = Output(vault, settings, builder, args.prompts)
        stock = Stock(output)
        run_ = None if stock.skip_held() else _buy(args, settings, output, key, stock, launch)
        return _finish(args, settings, output, run_)


def _providers(path: Path, settings: Settings) -> ProviderList:
    providers = ProviderList.read(path)
    if providers.gateway != settings.gateway:
        raise InputError(f"{path}: made for gateway {providers.gateway}, not {settings.gateway}; delete it and rerun")
    able = providers.able(settings.sampling.max_tokens)
    if not able.accepted:
        raise EyrieError(
            f"{path}: no accepted endpoint gives answers of {settings.sampling.max_tokens} tokens; lower the dataset's "
            "max_tokens or generate.max_tokens",
            code=ExitCode.POLICY_EMPTY,
        )
    providers = _heeding(path, able, settings)
    if settings.limits.run > 0:
        return providers
    free = providers.free_only()
    if not free.accepted:
        raise EyrieError(
            f"generate.budget_usd is 0 and none of the {len(providers.accepted)} accepted endpoints is free; "
            "set the dollars that this run may spend, e.g. 'set=[generate.budget_usd=50]'",
            code=ExitCode.BUDGET_REACHED,
        )
    return free


def _heeding(path: Path, providers: ProviderList, settings: Settings) -> ProviderList:
    """Only the endpoints that sample as asked; the others are named, since they would ignore it without a word."""
    reasons = {e.tag: settings.sampling.unheeded_by(e, providers.policy) for e in providers.accepted}
    against = "; ".join(f"{tag} {why}" for tag, why in sorted(reasons.items()) if why)
    if not against:
        return providers
    kept = tuple(e for e in providers.accepted if not reasons[e.tag])
    if not kept:
        raise EyrieError(
            f"{path}: no accepted endpoint samples as generate asks ({against}); set generate.temperature and "
            "generate.top_p to null or to what they take",
            code=ExitCode.POLICY_EMPTY,
        )
    print(f"{settings.dataset}: left out, since they would not sample as asked: {against}", file=sys.stderr)
    return replace(providers, accepted=kept)


def _target_fingerprint(args: argparse.Namespace, settings: Settings, launch: Launch | None) -> str | None:
    if settings.gateway != "embedded" and launch is None:
        return None
    if args.target is None:
        raise InputError("--target is needed by a gateway that serves the target here: its target.json")
    from eyrie.target import load_receipt

    return load_receipt(args.target).fingerprint


def _buy(
    args: argparse.Namespace, settings: Settings, output: Output, key: ApiKey, stock: Stock, launch: Launch | None
) -> Run:
    """Buy what is missing; the run says why it ended and what it did."""
    total = count_lines_zst(args.prompts) * settings.repetitions
    with open_gateway(
        settings.gateway, settings.base_url, target=args.target, width=settings.width, threads=args.threads,
        launch=launch, server_log=args.server_log,
    ) as gateway:  # fmt: skip
        if settings.gateway == "openai":
            output = replace(output, builder=_as_served(output.builder, gateway.url, key))

        run = Run(output.vault, settings, output, key, gateway.url, stock, total, server_problem=gateway.problem)
        try:
            with calm_collector():
                trio.run(run.main)
        except BaseExceptionGroup as group:
            raise first_error(group) or group from None
    return run


def _as_served(builder: RequestBuilder, url: str, key: ApiKey) -> RequestBuilder:
    """`builder` with the name that the server at `url` has for the target, asked before the first request: a server
    that is not up, or serves something else, is told at once and not row by row."""
    entry = served_model(url, builder.providers.model, key)
    context = context_of(entry)
    if context is not None and builder.sampling.max_tokens >= context:
        raise InputError(
            f"{url}: serves {entry['id']} with {context} tokens of context, answers may take "
            f"{builder.sampling.max_tokens}; lower generate.max_tokens or the dataset's, or serve it with more"
        )
    return replace(builder, providers=replace(builder.providers, model=str(entry["id"])))


def _finish(args: argparse.Namespace, settings: Settings, output: Output, run: Run | None) -> int:
    """Write the output when it is complete (or may be partial) and give the account; else give the account and say
    in one message what is missing."""
    stop = None if run is None else run.stop
    interrupted = stop is not None and stop.code is ExitCode.INTERRUPTED
    try:
        counts = output.write(args.output, args.summary, partial=settings.partial and not interrupted)
    except Incomplete:
        counts = survey(output)
        _account(output, counts, run)
        _explain(settings, output, counts, stop)
    _account(output, counts, run)
    print(
        f"{settings.dataset}: {counts.answered} conversations, {counts.turns} answers, {counts.completion_tokens:,} "
        f"output tokens, {dollars(counts.cost)}"
        + (f", {sum(counts.rejected.values())} rejected" if counts.rejected else "")
        + (f", {counts.changed} with a changed request" if counts.changed else "")
        + (f"; partial: {counts.missing}" if counts.missing else ""),
        file=sys.stderr,
    )
    return 0


def _account(output: Output, counts: Counts, run: Run | None) -> None:
    dataset = output.settings.dataset
    spent = books(output.vault.query, output.builder.identity_model, dataset)
    for line in lines(dataset, None if run is None else run.session, counts, spent):
        print(line, file=sys.stderr)


def _explain(settings: Settings, output: Output, counts: Counts, stop: StopSign | None) -> None:
    """Raise the error that ends an incomplete job."""
    held = output.vault.committed(run=settings.run)
    money = f", run {settings.run} has spent {dollars(held['settled'])}"
    if held["unknown"]:
        money += f" and holds {dollars(held['unknown'])} for requests whose cost is unknown"
    if settings.limits.run == 0:
        money = ""
    why = f"{stop.message}; " if stop is not None and stop.called else ""
    code = stop.code if stop is not None and stop.code is not None else ExitCode.INCOMPLETE
    raise EyrieError(
        f"{settings.dataset}: {why}{counts.answered} conversations with {counts.completion_tokens:,} output tokens "
        f"are in the vault{money}; {counts.missing}. {_ADVICE.get(code, 'Run it again to continue')}.",
        code=code,
    )


_ADVICE = {
    ExitCode.KEY_REFUSED: "Check the key, then run it again: nothing that was paid for is lost",
    ExitCode.CREDITS_OUT: "Add credits (or raise the key's limit), then run it again: it buys only what is missing",
    ExitCode.BUDGET_REACHED: "Raise generate.budget_usd or lower the dataset's tokens, then run it again; "
    "generate.on_exhausted=build_partial builds on what is there",
    ExitCode.POLICY_EMPTY: "Delete providers.json so that it is made anew, loosen gateway.policy if it must be",
    ExitCode.TOO_MANY_REJECTS: "Look at the reasons in the log; raise generate.max_reject_share to go on",
}
