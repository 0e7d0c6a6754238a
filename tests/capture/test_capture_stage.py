"""The stage captures what is missing, reuses what is right, and ends in the same bytes however it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from eyrie import cli
from eyrie.capture import store as store_module
from eyrie.capture.engine import CaptureEngine, Settings, choose_device
from eyrie.capture.stage import Capture, Counts
from eyrie.capture.store import HiddenStore
from eyrie.capture.transformers_engine import TransformersEngine
from eyrie.errors import InputError, MissingError
from eyrie.files import canonical_json
from eyrie.shards.hidden import HiddenShard
from eyrie.shards.manifest import read_manifest
from eyrie.target.receipt import TargetReceipt, load_receipt
from tests.capture.targets import make_rows, make_slice, save_target, tiny_llama, write_tokens

SHARDS = ((12, 40, 3, 25), (7, 7, 90), ())


class Place:
    """A target, a dataset of three shards (one empty), a store and an output folder under one root."""

    def __init__(self, root: Path) -> None:
        self.root, self.tokens = root, root / "tokens" / "demo"
        self.store, self.output = root / "store", root / "hidden" / "demo"
        self.model = tiny_llama()
        self.receipt = save_target(root / "target", self.model)
        self.receipt.write(root / "target.json")
        self.entries = write_tokens(self.tokens, self.receipt.fingerprint, SHARDS)
        self.opened = 0

    def open_engine(self, settings: Settings, receipt: TargetReceipt) -> CaptureEngine:
        self.opened += 1
        return TransformersEngine(self.model, settings.aux, settings.store_dtype)

    def run(self, open_engine: Callable[..., CaptureEngine] | None = None, **capture: object) -> Counts:
        stage = Capture(make_slice(**capture), self.receipt, self.tokens, self.store, open_engine or self.open_engine)
        return stage.run(self.output, "demo")

    def bytes(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.output.iterdir())}

    def stored(self, shard: int = 0) -> Path:
        """The store's file of one shard, which its result is a link of."""
        inode = (self.output / f"{shard:05d}.safetensors").stat().st_ino
        (path,) = [path for path in self.store.iterdir() if path.stat().st_ino == inode]
        return path

    def command(self) -> list[str]:
        return ["capture", "--slice", canonical_json(make_slice()), "--target", str(self.root / "target.json"),
                "--tokens", str(self.tokens), "--store", str(self.store), "--output", str(self.output),
                "--threads", "1"]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    torch.set_num_threads(1)
    return Place(tmp_path)


def refuse(settings: Settings, receipt: TargetReceipt) -> CaptureEngine:
    raise AssertionError("the target was loaded")


def test_rows_stand_in_the_order_of_the_token_shard(place: Place) -> None:
    place.run()
    manifest = read_manifest(place.output)
    assert [entry.rows for entry in manifest.shards] == [4, 3, 0]
    for k, (entry, lengths) in enumerate(zip(manifest.shards, SHARDS, strict=True)):
        with manifest.open(entry, source_sha256=place.entries[k].sha256) as shard:
            for i, row in enumerate(make_rows(lengths, k)):
                ids = torch.from_numpy(row.input_ids.astype(np.int64))[None]
                with torch.inference_mode():
                    whole = place.model(ids, output_hidden_states=True)
                states = shard.row(i)
                for found, wanted in (
                    (states.aux, torch.cat([whole.hidden_states[j][0] for j in (2, 4, 5)], -1)),
                    (states.final, whole.hidden_states[-1][0]),
                ):
                    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
                assert torch.equal(states.argmax.long(), whole.logits[0].argmax(-1))


def test_manifest_binds_shards_to_token_shards_and_layers(place: Place) -> None:
    counts = place.run(store_dtype="bfloat16")
    value = json.loads((place.output / "manifest.json").read_text())
    assert value["format"] == "eyrie-hidden-1" and value["dataset"] == "demo"
    assert value["target"] == place.receipt.fingerprint
    assert value["aux_layers"] == [2, 4, 5] and value["aux_layers_sglang"] == [1, 3, 4]
    for shard, entry in zip(value["shards"], place.entries, strict=True):
        assert shard["source_sha256"] == entry.sha256 and shard["tokens"] == entry.tokens
        assert shard["bytes"] == (place.output / f"{entry.name}.safetensors").stat().st_size
        assert shard["raw_bytes"] == entry.tokens * (4 * 32 * 2 + 8)
    assert (counts.captured, counts.reused, counts.tokens) == (3, 0, sum(map(sum, SHARDS)))


def test_second_run_links_everything_and_never_loads_the_target(place: Place) -> None:
    place.run()
    first = place.bytes()
    shutil.rmtree(place.output)
    counts = place.run(refuse)
    assert place.bytes() == first
    assert (counts.captured, counts.reused) == (0, 3)
    assert all(os.stat(path).st_nlink == 2 for path in place.output.glob("*.safetensors"))
    assert place.opened == 1, "one load serves all shards"


def test_only_a_missing_shard_is_captured(place: Place) -> None:
    place.run()
    first = place.bytes()
    place.stored(1).unlink()
    (place.output / "00001.safetensors").unlink()
    counts = place.run()
    assert (counts.captured, counts.reused) == (1, 2)
    assert place.bytes() == first


def test_result_that_lost_its_store_file_goes_back_into_the_store(place: Place) -> None:
    place.run()
    shutil.rmtree(place.store)
    counts = place.run(refuse)
    assert counts.reused == 3 and place.stored(0).is_file()


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied"])
def test_damaged_shard_is_captured_again(place: Place, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    place.run()
    first, victim = place.bytes(), place.stored(0)
    data = bytearray(victim.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 4
    victim.write_bytes({"flipped": data, "truncated": data[:-10], "emptied": b""}[damage])
    counts = place.run()
    assert (counts.captured, counts.reused) == (1, 2)
    assert place.bytes() == first
    assert "00000: damaged in the store" in capsys.readouterr().err


def test_file_of_another_shard_under_a_right_name_is_captured_again(place: Place) -> None:
    place.run()
    first = place.bytes()
    other = place.stored(1).read_bytes()
    place.stored(0).write_bytes(other)
    assert place.run().captured == 1
    assert place.bytes() == first


def test_a_change_of_layers_target_or_tokens_captures_anew(place: Place) -> None:
    place.run()
    assert place.run(aux_layers=[1, 4, 7]).captured == 3
    assert place.run(store_dtype="bfloat16").captured == 3
    write_tokens(place.tokens, place.receipt.fingerprint, [*SHARDS[:1], (5, 5), *SHARDS[2:]])
    assert place.run().captured == 1
    assert place.run(aux_layers=[2, 4, 5]).captured == 0, "the default spelled out is the default"


def test_more_rows_add_shards_and_leave_finished_ones(place: Place) -> None:
    place.run()
    first = place.bytes()
    write_tokens(place.tokens, place.receipt.fingerprint, [*SHARDS, (30, 8)])
    counts = place.run()
    assert (counts.captured, counts.reused) == (1, 3)
    assert {name: data for name, data in place.bytes().items() if name in first and name != "manifest.json"} == {
        name: data for name, data in first.items() if name != "manifest.json"
    }


def test_empty_shards_need_no_target(place: Place) -> None:
    write_tokens(place.tokens, place.receipt.fingerprint, [(), ()])
    place.run(refuse)
    manifest = read_manifest(place.output)
    assert [entry.tokens for entry in manifest.shards] == [0, 0]
    manifest.open(manifest.shards[0]).close()


def test_default_layers_that_collide_name_the_key(tmp_path: Path) -> None:
    receipt = save_target(tmp_path / "target", tiny_llama(layers=6))
    write_tokens(tmp_path / "tokens", receipt.fingerprint, [(5,)])
    with pytest.raises(InputError, match=r"capture\.aux_layers.*collide in a target of 6 layers"):
        Capture(make_slice(), receipt, tmp_path / "tokens", tmp_path / "store", refuse)


def test_tokens_of_another_target_are_refused(place: Place) -> None:
    write_tokens(place.tokens, "feedfeedfeedfeed", SHARDS)
    with pytest.raises(InputError, match="tokenized for target feedfeedfeedfeed.*snakemake tokenize"):
        place.run(refuse)


def test_row_longer_than_the_target_reaches_is_refused(place: Place) -> None:
    write_tokens(place.tokens, place.receipt.fingerprint, [(5, 257)])
    with pytest.raises(
        InputError, match=r"00000.parquet: row row-1 has 257 tokens.*256 positions.*tokenize.max_length"
    ):
        place.run(refuse)


def test_target_that_computes_nan_is_refused_with_file_and_row(place: Place) -> None:
    token = int(make_rows(SHARDS[0])[2].input_ids.max())  # not one of the low ids of the engine's own probe
    with torch.no_grad():
        place.model.model.embed_tokens.weight[token] = float("nan")
    with pytest.raises(InputError, match=r"00000.parquet: row \d+ \(row-\d+\): the target's aux states at token"):
        place.run()
    assert not list(place.store.glob("*.safetensors")) and not list(place.store.glob(".*"))


def test_full_disk_is_reported_before_the_target_is_loaded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    with pytest.raises(MissingError, match=r"needs about .* in .*store, where 1 kB are free.*set store="):
        place.run(refuse)


def test_disk_that_fills_up_while_writing_is_a_clear_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eyrie.shards.hidden.HiddenWriter.close", full)
    with pytest.raises(MissingError, match=r"No space left on device .*store.*what is finished stays"):
        place.run()
    assert not list(place.store.iterdir())


def test_results_are_copies_where_links_are_impossible(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def impossible(*args: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", impossible)
    place.run()
    assert all(os.stat(path).st_nlink == 1 for path in place.output.glob("*.safetensors"))
    with HiddenShard.open(place.output / "00000.safetensors") as shard:
        shard.verify()


def test_a_stored_shard_older_than_its_tokens_is_made_newer(place: Place) -> None:
    place.run()
    os.utime(place.stored(0), (1, 1))
    place.run(refuse)
    assert os.stat(place.output / "00000.safetensors").st_mtime >= os.stat(place.tokens / "00000.parquet").st_mtime


def test_left_overs_of_a_killed_writer_are_removed(place: Place) -> None:
    place.run()
    name = place.stored(0).name
    place.stored(0).unlink()
    (place.output / "00000.safetensors").unlink()
    left = place.store / f".{name}.abc.tmp"
    left.write_bytes(b"half")
    place.run()
    assert not left.exists()
    assert sorted(path.name for path in place.store.iterdir()) == sorted(
        place.stored(k).name for k in range(len(SHARDS))
    ), "no locks or temporary files stay behind"


def test_second_job_waits_for_the_first_and_takes_its_shard(place: Place) -> None:
    stage = Capture(make_slice(), place.receipt, place.tokens, place.store, place.open_engine)
    stage.run(place.output, "demo")
    header, whole = stage.header(place.entries[0]), place.stored(0).read_bytes()
    place.stored(0).unlink()
    (place.output / "00000.safetensors").unlink()
    store = HiddenStore(place.store)
    with ThreadPoolExecutor(1) as pool:
        with store.lock(header):
            second = pool.submit(place.run, refuse)
            with pytest.raises(TimeoutError):
                second.result(timeout=1)
            with store.create(header) as file:
                file.write(whole)
        counts = second.result(timeout=30)
    assert (counts.captured, counts.reused) == (0, 3)


def test_killed_at_any_moment_it_resumes_to_the_same_bytes(place: Place) -> None:
    place.run()
    whole = place.bytes()
    shutil.rmtree(place.output)
    shutil.rmtree(place.store)
    for rows in ("1", "5"):  # inside the first shard; between two shards, inside the second
        child = subprocess.Popen(
            [sys.executable, "-c", SLOW, rows, *place.command()], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert not (place.output / "manifest.json").exists()
    assert (place.output / "00000.safetensors").exists(), "a finished shard is linked at once"
    assert list(place.store.glob(".*.tmp")), "the kill left a half-written shard"
    assert cli.main(place.command()) == 0
    assert place.bytes() == whole
    assert not list(place.store.glob(".*"))


# A capture that stops dead after N rows, in the middle of a shard.
SLOW = """
import sys, time
import eyrie.shards.hidden as hidden
from eyrie import cli
left = int(sys.argv[1])
add = hidden.HiddenWriter.add
def counted(self, *args):
    global left
    if left == 0:
        self.file.flush()
        print("waiting", flush=True)
        time.sleep(600)
    left -= 1
    return add(self, *args)
hidden.HiddenWriter.add = counted
sys.exit(cli.main(sys.argv[2:]))
"""


def test_command_captures_a_prepared_target(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(place.command()) == 0
    err = capsys.readouterr().err
    assert "demo: 3 shards captured, 0 from the store" in err and "184 tokens at" in err
    assert read_manifest(place.output).dataset == "demo"
    assert load_receipt(place.root / "target.json") == place.receipt


def test_gpus_that_are_not_there_are_missing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = torch.cuda.device_count() + 1
    with pytest.raises(MissingError, match=f"resources gpu={wanted}"):
        choose_device(wanted)
    assert cli.main([*place.command(), "--gpus", str(wanted)]) == 3
    assert f"--resources gpu={wanted}" in capsys.readouterr().err
    assert not list(place.output.glob("*"))


def test_manifest_that_is_foreign_or_incomplete_is_refused(place: Place) -> None:
    place.run()
    (place.output / "00001.safetensors").unlink()
    with pytest.raises(InputError, match="00001.safetensors: no such hidden-state shard.*snakemake"):
        read_manifest(place.output)
    (place.output / "manifest.json").write_text('{"format": "something"}')
    with pytest.raises(InputError, match="not a manifest of format eyrie-hidden-1"):
        read_manifest(place.output)
    with pytest.raises(InputError, match="no such file.*snakemake"):
        read_manifest(place.root / "nowhere")


def test_time_is_in_no_file(place: Place) -> None:
    place.run()
    first = place.bytes()
    shutil.rmtree(place.output)
    shutil.rmtree(place.store)
    time.sleep(1.1)
    place.run()
    assert place.bytes() == first
