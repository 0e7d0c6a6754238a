"""A finished run's files, small, with every figure chosen by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eyrie.files import canonical_json, write_json
from eyrie.shards.tokens import TokenRow, write_manifest, write_shard


def entry(real: float, prompts: int = 24, tokens: int = 2100) -> dict[str, Any]:
    return {
        "prompts": prompts,
        "tokens": tokens,
        "slots": 3000,
        "slot_mean": {"3": real + 0.15, "5": real + 0.2},
        "chain_replay": {"3": real + 0.001, "5": real + 0.03},
        "greedy_share": 0.998,
        "decode": {"3": {"acceptance_length": real, "per_position": [0.41, 0.16, 0.06], "passes": 90, "tokens": 150}},
    }


def evaluation(benchmark: str = "humaneval") -> dict[str, Any]:
    holdout = entry(1.634) | {"per_dataset": {"demo_code": entry(1.8), "demo_oss": entry(1.4)}}
    return {
        "format": "eyrie-evaluation-1",
        "chain_length": 3,
        "max_new_tokens": 96,
        "target": "0123456789abcdef",
        "drafter": "ab" * 32,
        "sets": {"holdout": holdout, benchmark: entry(1.712, prompts=20, tokens=1900)},
        "lossless": True,
        "compared_tokens": 4321,
    }


def endpoint(tag: str, **more: Any) -> dict[str, Any]:
    return {
        "tag": tag, "provider_name": tag, "quantization": "int4", "status": 0, "uptime_1d": 99.5,
        "context_length": 262144, "max_completion_tokens": None, "prompt_price": "0.0000006",
        "completion_price": "0.0000025", "supported_parameters": [], **more,
    }  # fmt: skip


def build(folder: Path, *, hostile: str = "", benchmark: str = "humaneval") -> list[str]:
    """Write the run's files into `folder`; returns the arguments of `eyrie report`. `hostile` goes into every text."""
    names = ("demo_code", "demo_oss")
    write_json(
        folder / "target.json",
        {
            "format": "eyrie-target-1", "name": f"Tiny{hostile}", "path": "/nowhere", "fingerprint": "0123456789abcdef",
            "files": {}, "architecture": "LlamaForCausalLM", "layers": 6, "hidden_size": 64, "vocab_size": 49152,
            "max_position_embeddings": 512,
        },
    )  # fmt: skip
    rejected = endpoint("beta", quantization=None, uptime_1d=None) | {"reasons": [f"quantization undeclared{hostile}"]}
    write_json(
        folder / "providers.json",
        {
            "format": "eyrie-providers-1", "gateway": "openrouter", "model": f"moon/kimi{hostile}", "model_facts": {},
            "accepted": [endpoint(f"alpha{hostile}")], "rejected": [rejected], "policy": {}, "time": "2026-01-01T00:00",
        },
    )  # fmt: skip
    corpus: dict[str, Any] = {"format": "eyrie-corpus-1", "coverage": 0.9551, "draft_vocab_size": 8192, "datasets": {}}
    for number, name in enumerate(names):
        provider = {"answers": 40, "completion_tokens": 4000, "cost_microusd": 1234567}
        write_json(
            folder / "generated" / f"{name}.summary.json",
            {
                "format": "eyrie-generated-1", "dataset": name, "complete": not hostile,
                "why_incomplete": hostile or None, "answers": 40,
                "rows": {"prompts": 50, "answered": 40, "open": 0, "rejected": {f"refusal{hostile}": 3 + number}},
                "tokens": {"prompt": 900, "completion": 4000, "reasoning": 0, "cached": 0, "budget": None},
                "dollars": {"answers": "1.234567", "billed": "1.5", "wasted": "0.265433"},
                "providers": {f"Alpha{hostile}": provider},
            },
        )  # fmt: skip
        rows = [TokenRow(f"r{i}", i, 0, np.arange(20 + 5 * i, dtype=np.int32), [(8, 20 + 5 * i)]) for i in range(6)]
        shard = write_shard(folder / "tokens" / name / "00000.parquet", rows, dataset=name, target="t")
        write_manifest(
            folder / "tokens" / name, dataset=name, target="t", slice={}, shards=[shard],
            dropped={f"too long{hostile}": 2}, counted={},
        )  # fmt: skip
        states = {"name": "00000", "tokens": 195, "bytes": 250_000, "raw_bytes": 400_000}
        write_json(folder / "hidden" / name / "manifest.json", {"format": "eyrie-hidden-1", "shards": [states]})
        corpus["datasets"][name] = {"train_rows": 30, "holdout_rows": 4}
    write_json(folder / "corpus" / "manifest.json", corpus)
    records: list[dict[str, Any]] = []
    for step in range(1, 31):
        parts = [3 / step, 4 / step, 5 / step]
        records.append({"step": step, "loss": sum(parts) / 3, "loss_step": parts, "lr": 1e-3, "tokens": 100 * step})
        if step % 10 == 0:
            records.append(
                {"step": step, "eval": {"slots": 99, "slot_mean": 1 + step / 50, "joint": [], "accuracy": []}}
            )
    (folder / "train.jsonl").write_text("".join(canonical_json(record) + "\n" for record in records))
    write_json(
        folder / "drafter" / "config.json",
        {
            "eagle_aux_hidden_state_layer_ids": [2, 3, 4],
            "max_position_embeddings": 8192,
            "fc_norm": True,
            "norm_output": False,
        },
    )
    write_json(folder / "evaluation.json", evaluation(benchmark))
    settings = {
        "run": f"tiny{hostile}",
        "target": {"source": f"package:tiny{hostile}", "revision": None, "dtype": "float32"},
        "datasets": {
            name: {"source": f"demo:{name}{hostile}", "licence": f"MIT{hostile}", "revision": None} for name in names
        },
        "drafter": {}, "train": {"ttt_steps": 3, "lr": 0.001, "step_decay": 0.8},
        "generate": {"temperature": 0.0, "max_tokens": 96},
    }  # fmt: skip
    return [
        "report", "--slice", canonical_json(settings), "--target", f"{folder}/target.json",
        "--providers", f"{folder}/providers.json",
        "--generated-summaries", *(f"{folder}/generated/{name}.summary.json" for name in names),
        "--tokens", *(f"{folder}/tokens/{name}/manifest.json" for name in names),
        "--hidden", *(f"{folder}/hidden/{name}/manifest.json" for name in names),
        "--corpus", f"{folder}/corpus/manifest.json", "--metrics", f"{folder}/train.jsonl",
        "--drafter", f"{folder}/drafter/config.json", "--evaluation", f"{folder}/evaluation.json",
        "--output", f"{folder}/report.html", "--card", f"{folder}/drafter/README.md",
    ]  # fmt: skip
