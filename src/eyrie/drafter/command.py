"""Say what a serving engine would silently do with an EAGLE-3 folder; refuse the bad ones.

SGLang and vLLM load nearly anything: a file without a head serves a random one, a missing d2t maps drafts to other
tokens, unknown names are dropped, aux layers off by one are read without a word. Acceptance near 1.0 is then the only
sign. This command reads DIR/config.json and DIR/model.safetensors and names every such problem; with --target it
also compares with the target (layers, vocabulary, rope, context).

  eyrie check results/laptop/drafter --target results/laptop/target.json

Exit code 0: both engines serve what was trained; 2: problems, one line each.
"""

from __future__ import annotations

import argparse
import sys

from eyrie.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `eyrie check`."""
    parser.add_argument("folder", metavar="DIR", help="folder with config.json and model.safetensors")
    parser.add_argument("--target", metavar="target.json", help="receipt of the target, for the rules that need it")


def run(args: argparse.Namespace) -> int:
    """Print the findings; exit 2 when there are any."""
    from eyrie.drafter.rules import inspect, read_folder

    target = None
    if args.target:
        from eyrie.drafter.load import target_text_config
        from eyrie.target import load_receipt

        target = target_text_config(load_receipt(args.target))
    config, tensors = read_folder(args.folder)
    problems = inspect(config, tensors, target)
    for problem in problems:
        print(f"{args.folder}: {problem}", file=sys.stderr)
    if problems:
        return ExitCode.USAGE
    size, whole = config["draft_vocab_size"], config["vocab_size"]
    eagle = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    vllm = config["eagle_aux_hidden_state_layer_ids"]
    against = "" if target is not None else "; pass --target to compare it with its target as well"
    print(
        f"{args.folder}: fine: {len(tensors)} tensors, head of {size} of {whole} tokens, aux layers {eagle} for SGLang "
        f"and {vllm} for vLLM, {config['max_position_embeddings']} positions{against}"
    )
    return ExitCode.OK
