"""The exported folder: read back to the same logits, and every silent failure of an engine refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from eyrie.cli import main
from eyrie.drafter import load as loading
from eyrie.drafter.config import DrafterConfig
from eyrie.drafter.export import export, export_dtype
from eyrie.drafter.load import build
from eyrie.drafter.model import Drafter
from eyrie.errors import EyrieError, InputError
from eyrie.files import read_json, write_json
from eyrie.shards.aux import AuxLayers
from tests.drafter.drafters import make_drafter

TARGET = {
    "hidden_size": 64, "vocab_size": 300, "num_hidden_layers": 8, "max_position_embeddings": 8192, "dtype": "float32",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "rms_norm_eps": 1e-5, "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export(make_drafter(), tmp_path / "drafter", TARGET)
    return tmp_path / "drafter"


def forward(drafter: Drafter) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    aux = torch.randn(1, 6, 192, generator=generator)
    embeds = torch.randn(1, 6, 64, generator=generator)
    with torch.no_grad():
        states = drafter.layer(embeds, drafter.fuse(aux), torch.arange(6)[None])
        return drafter.logits(drafter.layer(embeds, states, torch.arange(6)[None] + 1))


@pytest.mark.parametrize("settings", [{}, {"fc_norm": False, "norm_output": True}, {"num_key_value_heads": 4}])
def test_reading_back_gives_the_same_logits(tmp_path: Path, settings: dict) -> None:
    drafter = make_drafter(**settings)
    export(drafter, tmp_path / "drafter", TARGET)
    read = build(tmp_path / "drafter", TARGET)
    assert read.config == drafter.config
    assert torch.equal(forward(read), forward(drafter))
    assert torch.equal(read.d2t, drafter.d2t) and torch.equal(read.t2d, drafter.t2d)
    assert list(tmp_path.iterdir()) == [tmp_path / "drafter"]  # nothing half-written beside it


def test_the_same_weights_give_the_same_bytes_and_other_files_stay(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "two")]
    paths[1].mkdir()
    (paths[1] / "README.md").write_text("card")
    for path in paths:
        export(make_drafter(), path, TARGET)
    for name in ("config.json", "model.safetensors"):
        assert (paths[0] / name).read_bytes() == (paths[1] / name).read_bytes()
    assert (paths[1] / "README.md").read_text() == "card"


def test_a_bf16_target_gets_a_bf16_drafter(tmp_path: Path) -> None:
    target = {**TARGET, "dtype": "bfloat16"}
    export(make_drafter(), tmp_path / "drafter", target)
    tensors = load_file(tmp_path / "drafter" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16, torch.int64, torch.bool}
    assert read_json(tmp_path / "drafter" / "config.json")["torch_dtype"] == "bfloat16"
    rounded = make_drafter().bfloat16().float()
    assert torch.equal(forward(build(tmp_path / "drafter", target)), forward(rounded))
    assert export_dtype({}) is torch.bfloat16 and export_dtype({"torch_dtype": "float32"}) is torch.float32


def test_a_whole_draft_vocabulary_ships_no_mapping(tmp_path: Path) -> None:
    drafter = make_drafter(draft_vocab_size=300)
    export(drafter, tmp_path / "drafter", TARGET)
    assert not {"d2t", "t2d"} & set(load_file(tmp_path / "drafter" / "model.safetensors"))
    read = build(tmp_path / "drafter", TARGET)
    assert torch.equal(read.to_target(torch.arange(300)), torch.arange(300))


def test_an_export_that_reads_back_otherwise_never_reaches_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eyrie.drafter import export as module

    def other(folder: Path, target: dict) -> Drafter:
        read = loading.build(folder, target)
        with torch.no_grad():
            read.norm.weight[0] += 1
        return read

    monkeypatch.setattr(module, "build", other)
    with pytest.raises(EyrieError, match="logits differ"):
        export(make_drafter(), tmp_path / "drafter", TARGET)
    assert not list((tmp_path / "drafter").iterdir())


def test_config_json_spells_the_aux_layers_for_both_engines_and_serves_the_whole_context(folder: Path) -> None:
    config = read_json(folder / "config.json")
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["eagle_config"]["use_aux_hidden_state"] is True
    assert config["max_position_embeddings"] == 8192 and config["tie_word_embeddings"] is False
    assert AutoConfig.from_pretrained(folder).rope_parameters == TARGET["rope_parameters"]


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def nested(config: dict[str, Any], ids: list[int] | None, top: list[int] | None = None) -> None:
    if ids is None:
        del config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    else:
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
        config["eagle_aux_hidden_state_layer_ids"] = top or [index + 1 for index in ids]


def rename(tensors: dict[str, torch.Tensor], old: str, new: str) -> None:
    for name in [name for name in tensors if name.startswith(old)]:
        tensors[new + name.removeprefix(old)] = tensors.pop(name)


def absolute(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def flip(tensors: dict[str, torch.Tensor]) -> None:
    t2d = tensors["t2d"]
    t2d[[int(t2d.nonzero()[3]), int((~t2d).nonzero()[3])]] ^= True


POISONS: dict[str, tuple[Change, str]] = {
    "head dropped": (lambda c, t: t.pop("lm_head.weight"), "random head, acceptance 1.00"),
    "d2t dropped": (lambda c, t: t.pop("d2t"), "vLLM would take draft ids for target ids 0 to 95"),
    "d2t absolute": (lambda c, t: absolute(t), "d2t holds absolute target ids"),
    "d2t arange": (lambda c, t: t.update(d2t=torch.arange(96)), "d2t and t2d disagree"),
    "d2t zeros": (lambda c, t: t.update(d2t=torch.zeros(96, dtype=torch.int64)), "d2t and t2d disagree"),
    "d2t of 32 bits": (lambda c, t: t.update(d2t=t["d2t"].int()), "it must be int64"),
    "t2d dropped": (lambda c, t: t.pop("t2d"), "t2d is missing"),
    "t2d of other tokens": (lambda c, t: flip(t), "d2t and t2d disagree"),
    "t2d too full": (lambda c, t: t["t2d"].fill_(True), "with 96 true entries"),
    "layer renamed": (lambda c, t: rename(t, "midlayer.", "layers.0."), "serve a random layer; write midlayer"),
    "a tensor dropped": (lambda c, t: t.pop("midlayer.hidden_norm.weight"), "hidden_norm.weight is missing"),
    "a prefix": (lambda c, t: rename(t, "fc.", "model.fc."), "model.fc.weight is unknown to the engines"),
    "a wrong shape": (lambda c, t: t.update({"fc.weight": t["fc.weight"].T.contiguous()}), "config.json asks for"),
    "norms without their flag": (lambda c, t: c.update(fc_norm=False), "fc_norm is not set in config.json"),
    "flag without its norms": (lambda c, t: rename(t, "fc_norm.2", "fc_norm.3"), "fc_norm.2.weight is missing"),
    "a NaN": (lambda c, t: t["norm.weight"].fill_(float("nan")), "norm.weight holds NaN"),
    "aux layers of SGLang missing": (lambda c, t: nested(c, None), "SGLang would capture its default layers"),
    "aux layers of vLLM missing": (
        lambda c, t: c.pop("eagle_aux_hidden_state_layer_ids"), "vLLM would capture its default layers"),
    "aux layers in one spelling": (lambda c, t: nested(c, [1, 3, 4], [1, 3, 4]), "vLLM id must be SGLang's plus one"),
    "aux layers collide": (lambda c, t: nested(c, [1, 3, 3]), "collide"),
    "two aux layers": (lambda c, t: nested(c, [1, 3]), "collide or are not three"),
    "aux layers descend": (lambda c, t: nested(c, [1, 4, 3]), "do not ascend"),
    "aux layers out of range": (lambda c, t: nested(c, [1, 3, 7]), "outside the target's 8 layers"),
    "aux layers that SGLang shifts": (lambda c, t: nested(c, [2, 3, 4]), "drops its +1"),
    "aux states off": (lambda c, t: c["eagle_config"].pop("use_aux_hidden_state"), "the final state only"),
    "training length": (lambda c, t: c.update(max_position_embeddings=512), "looks like a training length"),
    "tied head": (lambda c, t: c.update(tie_word_embeddings=True), "embedding as the draft head"),
    "draft vocabulary unsaid": (lambda c, t: c.pop("draft_vocab_size"), "borrow the target's head"),
    "two layers": (lambda c, t: c.update(num_hidden_layers=2), "layers without weights"),
    "the other residual": (lambda c, t: c.update(norm_before_residual=True), "un-normed"),
    "another model type": (lambda c, t: c.update(model_type="kimi_k2"), 'only ["LlamaForCausalLMEagle3"]'),
    "a bias": (lambda c, t: c.update(attention_bias=True), "attention_bias is true"),
    "no size": (lambda c, t: c.pop("hidden_size"), "config.json lacks hidden_size"),
    "another rope": (lambda c, t: c["rope_parameters"].update(rope_theta=500000.0), "rope"),
    "another vocabulary": (lambda c, t: c.update(vocab_size=301), "another tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), POISONS.values(), ids=POISONS.keys())
def test_a_poisoned_folder_is_refused_with_a_message_of_its_own(folder: Path, change: Change, message: str) -> None:
    config, tensors = read_json(folder / "config.json"), load_file(folder / "model.safetensors")
    change(config, tensors)
    write_json(folder / "config.json", config)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(InputError) as caught:
        build(folder, TARGET)
    assert message in str(caught.value) and str(folder) in str(caught.value)


def test_a_foreign_folder_needs_the_context_of_its_target(folder: Path) -> None:
    config = read_json(folder / "config.json")
    del config["eyrie"]
    write_json(folder / "config.json", config)
    build(folder, TARGET)
    with pytest.raises(InputError, match="context to serve .16384 tokens"):
        build(folder, {**TARGET, "max_position_embeddings": 16384})


def test_check_prints_what_is_wrong_and_exits_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(folder)]) == 0
    assert "fine: 18 tensors, head of 96 of 300 tokens" in capsys.readouterr().out
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"], tensors["d2t"]
    save_file(tensors, folder / "model.safetensors")
    assert main(["check", str(folder)]) == 2
    assert [line.split(": ")[1].split()[0] for line in capsys.readouterr().err.splitlines()] == [
        "d2t",
        "lm_head.weight",
    ]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_or_damaged_file_is_one_line(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:-20])
    assert main(["check", str(folder)]) == 2
    (folder / name).unlink()
    assert main(["check", str(folder)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(str(folder) in line and "Traceback" not in line for line in lines)


def test_the_shape_follows_the_target_and_the_settings() -> None:
    settings = {"draft_vocab_size": 96, "fc_norm": True, "norm_output": True, "head_dim": None, "intermediate_size": 80}
    aux = AuxLayers.default(8)
    config = DrafterConfig.from_target(TARGET, settings, context_length=4096, aux=aux)
    assert (config.head_dim, config.num_key_value_heads, config.intermediate_size) == (16, 2, 80)
    assert config.max_position_embeddings == 4096 and config.norm_output
    # An MLA target's own head_dim and kv heads describe no Llama layer; YaRN's mscale is ignored by the engines.
    scaling = {"type": "yarn", "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0}
    latent = {
        **{key: value for key, value in TARGET.items() if key != "rope_parameters"},
        "kv_lora_rank": 512, "v_head_dim": 128, "head_dim": 64, "rope_theta": 50000.0, "rope_scaling": scaling,
    }  # fmt: skip
    config = DrafterConfig.from_target(latent, settings, context_length=4096, aux=aux)
    assert (config.head_dim, config.num_key_value_heads, config.rope_theta) == (128, 4, 50000.0)
    assert config.rope_scaling == {"rope_type": "yarn", "factor": 64.0, "beta_fast": 32.0}
    assert DrafterConfig.from_json(config.to_json("float32"), target_layers=8) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "changes with the sequence length"),
    ],
)
def test_targets_that_no_drafter_can_follow_are_refused(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DrafterConfig.from_target(
            {**TARGET, **change}, {"draft_vocab_size": 96}, context_length=4096, aux=AuxLayers.default(8)
        )
