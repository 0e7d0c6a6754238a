"""A whole tiny run on disk, through the real writers: a random target, its tokens, its states, a corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eyrie.config import load_slice
from eyrie.files import canonical_json, sha256_file
from eyrie.shards import corpus, hidden, manifest, tokens
from eyrie.shards.aux import AuxLayers
from eyrie.shards.container import HiddenHeader
from eyrie.shards.slots import trained_count
from eyrie.shards.tokens import TokenRow
from eyrie.target import TargetReceipt

TARGET = "0123456789abcdef"
VOCAB, DRAFT, LAYERS = 300, 200, 8
SETTINGS = {
    "train": {
        "steps": 24, "batch_tokens": 40, "ttt_steps": 3, "step_decay": 0.8, "lr": 2e-3, "beta1": 0.9, "beta2": 0.99,
        "weight_decay": 0.0, "clip": 1.0, "warmup": 0.1, "seed": 0, "checkpoint_every": 5, "evaluate_every": 10,
    },
    "drafter": {
        "draft_vocab_size": DRAFT, "intermediate_size": None, "num_attention_heads": None, "num_key_value_heads": None,
        "head_dim": None, "fc_norm": True, "norm_output": False, "freeze_head": True,
        "copying_heads": True,
    },
    "target": {"context_length": 512, "trust_remote_code": False},
}  # fmt: skip


class TinyRun:
    """The files of a run below `folder`, with 2 datasets of 12 rows each, 2 shards a dataset, every sixth row held
    out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = self._target()
        self.manifests = {name: self._dataset(name, seed) for seed, name in enumerate(("code", "tools"))}
        self._corpus()

    def slice(self, **changes: object) -> str:
        """The train slice, with changes to its `train` or `drafter` part."""
        value = load_slice(canonical_json(SETTINGS))
        for key, change in changes.items():
            value["train" if key in value["train"] else "drafter"][key] = change
        return canonical_json(value)

    def arguments(self, output: str = "out", store: str = "store", **changes: object) -> list[str]:
        """The command line of `eyrie train`, from `train` on."""
        at = self.folder
        both = [[str(at / kind / name) for name in self.manifests] for kind in ("tokens", "hidden")]
        return [
            "train", "--slice", self.slice(**changes), "--target", str(at / "target.json"), "--corpus",
            str(at / "corpus"), "--tokens", *both[0], "--hidden", *both[1], "--store", str(at / store), "--output",
            str(at / output / "drafter"), "--metrics", str(at / output / "train.jsonl"), "--threads", "1",
        ]  # fmt: skip

    def _target(self) -> LlamaForCausalLM:
        config = LlamaConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=512, tie_word_embeddings=True,
            initializer_range=0.2, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        path = self.folder / "target"
        model.save_pretrained(path)
        files = {file.name: sha256_file(file) for file in sorted(path.iterdir())}
        TargetReceipt(
            "tiny", str(path), TARGET, files, "LlamaForCausalLM", LAYERS, 64, VOCAB, config.max_position_embeddings
        ).write(self.folder / "target.json")
        return model

    @torch.no_grad()
    def _dataset(self, name: str, seed: int) -> list[tokens.ShardEntry]:
        rng = np.random.default_rng(seed)
        entries, captured = [], []
        aux = AuxLayers.default(LAYERS)
        for number in range(2):
            rows = []
            for index in range(6 * number, 6 * number + 6):
                start, length = int(rng.integers(3, 9)), int(rng.integers(14, 30))
                ids = rng.integers(0, VOCAB, start + length).astype(np.int32)
                rows.append(TokenRow(f"{name}{index}", index, 0, ids, [(start, start + length)]))
            path = self.folder / "tokens" / name / f"{number:05d}.parquet"
            entries.append(tokens.write_shard(path, rows, dataset=name, target=TARGET))
            states = [self._states(row.input_ids, aux) for row in rows]
            header = HiddenHeader(
                len(rows), sum(len(row.input_ids) for row in rows), 64, aux, "bfloat16", entries[-1].sha256, TARGET
            )
            path = self.folder / "hidden" / name / f"{number:05d}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden.write(path, header, states)
            captured.append(
                manifest.HiddenEntry(
                    path.stem,
                    sha256_file(path),
                    entries[-1].sha256,
                    len(rows),
                    header.tokens,
                    path.stat().st_size,
                    header.raw_bytes,
                )  # fmt: skip
            )
        tokens.write_manifest(
            self.folder / "tokens" / name, dataset=name, target=TARGET, slice={}, shards=entries, dropped={}, counted={}
        )
        manifest.write_manifest(self.folder / "hidden" / name, dataset=name, target=TARGET, aux=aux, shards=captured)
        return entries

    def _states(self, ids: np.ndarray, aux: AuxLayers) -> hidden.HiddenRow:
        out = self.model(torch.from_numpy(ids).long()[None], output_hidden_states=True)
        states = torch.cat([out.hidden_states[index][0] for index in aux.hf], dim=-1)
        final, logits = out.hidden_states[-1][0], out.logits[0]
        return hidden.HiddenRow(
            states.bfloat16(), final.bfloat16(), logits.argmax(-1).int(), logits.logsumexp(-1).float()
        )

    def _corpus(self) -> None:
        folder = self.folder / "corpus"
        rows, counts = [], np.zeros(VOCAB, np.int64)
        for name in self.manifests:
            found = tokens.read_manifest(self.folder / "tokens" / name)
            for entry in found.shards:
                shard = found.read(entry)
                for number in range(len(shard)):
                    row = shard.row(number)
                    split = "holdout" if number == 5 else "train"
                    trained = trained_count(row.spans)
                    rows.append(corpus.CorpusRow(name, entry.name, number, row.id, split, len(row.input_ids), trained))
        t2d = np.zeros(VOCAB, bool)
        t2d[np.random.default_rng(9).permutation(VOCAB)[:DRAFT]] = True
        corpus.write_rows(folder / corpus.ROWS, rows, TARGET)
        corpus.write_vocabulary(
            folder / corpus.VOCAB, corpus.Vocabulary(t2d, np.nonzero(t2d)[0] - np.arange(DRAFT), counts), TARGET
        )
        manifests = {name: sha256_file(self.folder / "tokens" / name / "manifest.json") for name in self.manifests}
        value = {"target": TARGET, "datasets": {name: {} for name in self.manifests}, "tokens_manifests": manifests}
        corpus.write_manifest(folder, value)
