"""`eyrie <stage>`: what the rules call and what a person can run by hand."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
import traceback
from typing import IO

from eyrie import __version__
from eyrie.errors import ExitCode, EyrieError

# command -> (module with `add_arguments(parser)` and `run(args) -> int`, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "config": ("eyrie.commands.config", "print the composed configuration, or the slice one stage sees"),
    "target": ("eyrie.target.command", "prepare the target model as a Hugging Face folder in the store"),
    "plan": ("eyrie.commands.plan", "what a paid run will buy and cost, and the largest token budget that fits"),
    "providers": ("eyrie.catalogue.command", "which endpoints serve the target, and which of them may answer"),
    "prompts": ("eyrie.prompts.command", "read a dataset's prompts into one normalised, ordered file"),
    "gateway": ("eyrie.gateway.embedded.command", "serve the target over OpenRouter's protocol on loopback"),
    "generate": ("eyrie.generate.command", "have the target answer a dataset's prompts, through the vault"),
    "vault": ("eyrie.commands.vault", "what is in the vault: answers and money; export or verify it"),
    "tokenize": ("eyrie.tokenize.command", "turn conversations into token shards with their trained spans"),
    "corpus": ("eyrie.corpus.command", "merge token shards: hold-out, token counts, draft vocabulary"),
    "capture": ("eyrie.capture.command", "run the target over token shards and store its hidden states"),
    "train": ("eyrie.train.command", "train the EAGLE-3 drafter and export it for SGLang and vLLM"),
    "check": ("eyrie.drafter.command", "say what an engine would do with an EAGLE-3 folder, and refuse the bad ones"),
    "evaluate": ("eyrie.evaluate.command", "measure acceptance, and prove that decoding stays lossless"),
    "report": ("eyrie.report.command", "write the report page and the drafter's card"),
    "summary": ("eyrie.report.summary", "print a run's acceptance table"),
}

EPILOG = """\
Most people never call a stage by hand: `snakemake` builds all of a run, `snakemake tokens` builds one stage,
`snakemake results/<run>/generated/<dataset>.jsonl.zst` builds one file, `snakemake -n` shows what is pending.

exit codes: 0 done; 1 a defect (with a traceback); 2 bad input or configuration; 3 something missing on this machine
(key, GPU, model); 10 key refused; 11 out of credits; 12 budget reached; 13 no endpoint passes the policy;
14 too many rejected answers; 15 incomplete; 130 interrupted."""


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser; only the module of `command` is imported, so `eyrie --help` needs no torch."""
    parser = argparse.ArgumentParser(
        prog="eyrie", description="Build an EAGLE-3 drafter, stage by stage.", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"eyrie {__version__}")
    parser.add_argument("--log", metavar="FILE", help="also write what goes to stderr to this file, as plain lines")
    subparsers = parser.add_subparsers(dest="command", metavar="<stage>", required=True)
    for name, (module, help_line) in COMMANDS.items():
        sub = subparsers.add_parser(name, help=help_line, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == command:
            implementation = importlib.import_module(module)
            sub.description = (implementation.__doc__ or help_line).strip()
            implementation.add_arguments(sub)
            sub.set_defaults(run=implementation.run)
    return parser


class Tee(io.TextIOBase):
    """stderr and a log file at once. Says that it is no terminal, so progress comes as lines and not as a live view:
    several jobs of one Snakemake run share the terminal."""

    def __init__(self, terminal: IO[str], log: IO[str]) -> None:
        self.terminal = terminal
        self.log = log

    def write(self, text: str) -> int:
        self.log.write(text)
        self.log.flush()
        return self.terminal.write(text)

    def flush(self) -> None:
        self.log.flush()
        self.terminal.flush()

    def fileno(self) -> int:
        return self.terminal.fileno()

    def isatty(self) -> bool:
        return False


def _command(arguments: list[str]) -> str | None:
    """The first word that is neither an option nor the value of `--log`."""
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word == "--log":
            skip = True
        elif not word.startswith("-"):
            return word
    return None


def main(argv: list[str] | None = None) -> int:
    """Run one command and turn its failure into one line and an exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    command = _command(arguments)
    with contextlib.ExitStack() as stack:
        args = build_parser(command).parse_args(arguments)
        if args.log:
            os.makedirs(os.path.dirname(os.path.abspath(args.log)), exist_ok=True)
            log = stack.enter_context(open(args.log, "w", encoding="utf-8", errors="backslashreplace"))
            stack.enter_context(contextlib.redirect_stderr(Tee(sys.stderr, log)))
        return _guarded(args, command)


def _guarded(args: argparse.Namespace, command: str | None) -> int:
    try:
        return int(args.run(args) or 0)
    except EyrieError as error:
        print(f"eyrie {command}: error: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print(f"eyrie {command}: interrupted; run it again to continue", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:  # `eyrie ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception:
        traceback.print_exc()
        print(f"eyrie {command}: this is a defect in Eyrie; please report the lines above", file=sys.stderr)
        return int(ExitCode.FAILED)


if __name__ == "__main__":
    sys.exit(main())
