"""Turn generated conversations into token shards.

Reads  generated/DATASET.jsonl.zst (conversations as the target answered them) and target.json.
Writes tokens/DATASET/00000.parquet … and manifest.json; shard k holds the prompt indices
       [k·rows_per_shard, (k+1)·rows_per_shard), so a larger dataset adds shards and leaves full ones as they are.

Each row is one token stream with the half-open spans that the target generated. Token ids that the server returned
are used as they are; otherwise prompts are rendered with the target's own chat template and answers encoded once.
Turns share a row as long as each prompt begins with everything before it; where the template rewrites history
(old thinking emptied), a new row begins. Rows over tokenize.max_length end with the last span that fits.

Left out, each named in the log and counted in the manifest under `dropped`:
  special_token_in_text   a message, or a tool declaration, contains the text of a control token
  ids_differ_from_text    the server's ids do not spell the answer       end_token_inside   they go on after its end
  text_not_reproduced     encoding and decoding an answer changes it     not_unicode        half a surrogate pair
  template_refused        the chat template does not take the messages   empty_answer       no token was generated
  answer_not_rendered     reasoning or calls came without ids, and the template does not write them
  no_trained_slot         an answer of one token                         prompt_over_max_length
Kept but counted under `counted`: rerendered_differs (the server's prompt is not what rendering gives; the server's
wins), no_end_token (nor do the server's ids end with one, though the answer was not cut), history_rewritten,
cut_at_span_end, cut_inside_span, cut_by_length, server_token_ids.

example: eyrie tokenize --slice "$(eyrie config --slice tokenize --dataset demo_code)" \\
           --generated results/laptop/generated/demo_code.jsonl.zst --target results/laptop/target.json \\
           --output results/laptop/tokens/demo_code
"""

from __future__ import annotations

import argparse
import os
import sys

from eyrie.config import load_slice
from eyrie.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slice", required=True, metavar="JSON", help="`eyrie config --slice tokenize --dataset D`")
    parser.add_argument("--generated", required=True, metavar="FILE", help="conversations, .jsonl.zst")
    parser.add_argument("--target", required=True, metavar="FILE", help="target.json of `eyrie target`")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the token shards")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N", help="threads (default: all)")


def run(args: argparse.Namespace) -> int:
    """Raises InputError for a slice without `dataset`; see the stage for the rest."""
    cfg = load_slice(args.slice)
    if "dataset" not in cfg:
        raise InputError("--slice: has no dataset; print one with `eyrie config --slice tokenize --dataset NAME`")
    # The tokenizers library reads these once, when its thread pool starts.
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"

    from eyrie.target import load_receipt, load_tokenizer
    from eyrie.tokenize.stage import tokenize

    receipt = load_receipt(args.target)
    tokenizer = load_tokenizer(receipt, cfg["target"]["trust_remote_code"])
    shards = tokenize(cfg, args.generated, tokenizer, target=receipt.fingerprint,
                      vocab_size=receipt.vocab_size, output=args.output)  # fmt: skip
    rows, tokens, trained = (sum(getattr(e, key) for e in shards) for key in ("rows", "tokens", "trained_tokens"))
    print(f"tokenize: {cfg['dataset']['name']}: {rows} rows in {len(shards)} shards, {tokens} tokens,"
          f" {trained} of them trained", file=sys.stderr)  # fmt: skip
    return 0
