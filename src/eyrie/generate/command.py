"""Have the target answer a dataset's prompts, turn by turn, through the vault.

Reads prompts/D.jsonl.zst and providers.json; writes generated/D.jsonl.zst (conversations in OpenAI chat form, every
answer with its provenance) and generated/D.summary.json (counts, tokens, dollars). Answers are kept in the vault,
so running it again buys only what is missing, and running it on a complete vault sends nothing at all.

Ctrl-C once stops admission and waits for what is under way (it is billed anyway); twice aborts. Either way the next
run continues. An incomplete dataset writes no file unless generate.on_exhausted=build_partial.

    eyrie generate --slice "$(eyrie config --slice generate --dataset demo_code)" \\
        --runtime "$(eyrie config --runtime)" --providers results/laptop/providers.json \\
        --prompts results/laptop/prompts/demo_code.jsonl.zst --target results/laptop/target.json --vault vault \\
        --output results/laptop/generated/demo_code.jsonl.zst \\
        --summary results/laptop/generated/demo_code.summary.json

exit codes: 10 key refused, 11 out of credits, 12 budget reached, 13 no endpoint, 14 too many rejects,
15 rows still open or too few tokens, 130 interrupted. In all of them what was paid for is in the vault.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import trio

from eyrie.config import load_slice
from eyrie.errors import ExitCode, EyrieError, InputError
from eyrie.gateway.key import ApiKey, read_key
from eyrie.gateway.local import open_gateway
from eyrie.gateway.providers import ProviderList
from eyrie.gateway.request import RequestBuilder
from eyrie.generate.output import Counts, Incomplete, Output
from eyrie.generate.rows import read_units
from eyrie.generate.run import Run
from eyrie.generate.settings import Settings
from eyrie.generate.stop import StopSign
from eyrie.threads import add_argument
from eyrie.vault import Vault
from eyrie.vault.fitted import read_fit
from eyrie.vault.money import dollars


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slice", required=True, metavar="JSON", help="`eyrie config --slice generate --dataset D`")
    parser.add_argument("--runtime", required=True, metavar="JSON", help="money, concurrency, gateway address")
    parser.add_argument("--providers", required=True, type=Path, help="providers.json")
    parser.add_argument("--prompts", required=True, type=Path, help="prompts/D.jsonl.zst")
    parser.add_argument("--target", type=Path, help="target.json; needed by the embedded gateway only")
    parser.add_argument("--vault", required=True, type=Path, help="folder of the vault")
    parser.add_argument("--fit", nargs="?", type=Path, help="fit.json, when generate.tokens_per_dataset is fit")
    parser.add_argument("--output", required=True, type=Path, help="generated/D.jsonl.zst")
    parser.add_argument("--summary", required=True, type=Path, help="generated/D.summary.json")
    add_argument(parser)


def run(args: argparse.Namespace) -> int:
    fitted = read_fit(args.fit)["tokens_per_dataset"] if args.fit else None
    settings = Settings.read(load_slice(args.slice), load_slice(args.runtime), fitted)
    key = read_key(settings.gateway, settings.api_key_file)  # before anything is written
    providers = _providers(args.providers, settings)
    model = settings.identity_model(_target_fingerprint(args, settings))
    builder = RequestBuilder(settings.gateway, model, settings.sampling, settings.thinking, providers)
    total = sum(1 for _ in read_units(args.prompts, settings.repetitions))
    with Vault(args.vault) as vault:
        output = Output(vault, settings, builder, args.prompts)
        stop = None
        if not _is_complete(output):
            stop = _buy(args, settings, output, key, total)
        return _finish(args, settings, output, stop)


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
    providers = able
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


def _target_fingerprint(args: argparse.Namespace, settings: Settings) -> str | None:
    if settings.gateway != "embedded":
        return None
    if args.target is None:
        raise InputError("--target is needed by the embedded gateway: the target.json of the model to serve")
    from eyrie.target import load_receipt

    return load_receipt(args.target).fingerprint


def _is_complete(output: Output) -> bool:
    """Whether nothing has to be sent; cheap when the first open row comes early."""
    settings = output.settings
    if settings.token_budget is None:
        index = output.vault.index(output.builder.identity_model, settings.dataset)
        for unit in read_units(output.prompts, settings.repetitions):
            if (unit.row["id"], 0, unit.repetition) not in index:
                return False
    try:
        for _ in output.rows(Counts(), stop_when_open=True):
            pass
    except Incomplete:
        return False
    return True


def _buy(args: argparse.Namespace, settings: Settings, output: Output, key: ApiKey, total: int) -> StopSign:
    with open_gateway(
        settings.gateway, settings.base_url, target=args.target, width=settings.width, threads=args.threads
    ) as url:

        async def main() -> StopSign:
            return await Run(output.vault, settings, output, key, url, total).main()

        return trio.run(main)


def _finish(args: argparse.Namespace, settings: Settings, output: Output, stop: StopSign | None) -> int:
    """Write the output when it is complete (or may be partial); else say in one message what is missing."""
    interrupted = stop is not None and stop.code is ExitCode.INTERRUPTED
    try:
        counts = output.write(args.output, args.summary, partial=settings.partial and not interrupted)
    except Incomplete:
        counts = Counts()
        for _ in _lenient(output, counts):
            pass
        _explain(settings, output, counts, stop)
    print(
        f"{settings.dataset}: {counts.answered} conversations, {counts.turns} answers, {counts.completion_tokens:,} "
        f"output tokens, {dollars(counts.cost)}"
        + (f", {sum(counts.rejected.values())} rejected" if counts.rejected else "")
        + (f", {counts.changed} with a changed request" if counts.changed else "")
        + (f"; partial: {counts.missing}" if counts.missing else ""),
        file=sys.stderr,
    )
    return 0


def _lenient(output: Output, counts: Counts):  # noqa: ANN202
    try:
        yield from output.rows(counts, stop_when_open=False)
    except Incomplete:
        return


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
