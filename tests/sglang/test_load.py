"""Real SGLang loads an exported drafter: every tensor arrives, nothing but the embedding is left unset.

Run by the environment of envs/sglang-cpu.sh, which has no `eyrie`: `PYTHON -m pytest tests/sglang`. It checks a small
drafter that Eyrie's own environment exports (EYRIE_PYTHON, by default that of .venv) and the one of the last run
(EYRIE_DRAFTER, by default results/laptop/drafter).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.sglang
if importlib.util.find_spec("sglang") is None:
    pytest.skip("needs the environment of envs/sglang-cpu.sh", allow_module_level=True)
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# torchvision's kernels cannot load beside a CPU torch; SGLang imports it for its schemas only.
_library = torch.library.Library("torchvision", "FRAGMENT")
_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(scope="module", params=["small", "run"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported drafter: a small random one, and that of the last run."""
    if request.param == "run":
        given = Path(os.environ.get("EYRIE_DRAFTER", ROOT / "results" / "laptop" / "drafter"))
        if not given.is_dir():
            pytest.skip(f"no run has made {given} yet")
        return given
    made = tmp_path_factory.mktemp("export") / "drafter"
    python = os.environ.get("EYRIE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    subprocess.run([python, "-m", "tests.sglang.small_drafter", str(made)], cwd=ROOT, check=True)
    return made


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """SGLang's process groups of one rank."""
    from sglang.srt import distributed

    rendezvous = tmp_path_factory.mktemp("engine") / "rendezvous"
    distributed.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{rendezvous}"
    )
    distributed.initialize_model_parallel()
    yield
    distributed.destroy_model_parallel()
    distributed.destroy_distributed_environment()


@pytest.fixture(scope="module")
def model(engine: None, folder: Path) -> Any:
    """SGLang's module, every parameter NaN, then loaded from the folder by SGLang's own `load_weights`."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    arguments = ServerArgs(
        model_path=str(folder),
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        skip_tokenizer_init=True,
    )
    set_global_server_args_for_scheduler(arguments)
    config = ModelConfig.from_server_args(arguments, model_path=str(folder), is_draft_model=True)
    initialize_dp_attention(arguments, config)
    loaded = LlamaForCausalLMEagle3(config.hf_config)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.fill_(float("nan"))
    loaded.load_weights(load_file(folder / "model.safetensors").items())
    return loaded


def test_only_the_embedding_is_left_for_the_target_to_share(model: Any) -> None:
    unset = [name for name, parameter in model.named_parameters() if bool(parameter.isnan().any())]
    assert unset == ["model.embed_tokens.weight"]


def test_every_tensor_arrives_where_it_belongs(model: Any, folder: Path) -> None:
    ours = load_file(folder / "model.safetensors")
    theirs = dict(model.named_parameters())
    layer, names = "model.layers.0.", "midlayer."
    expected = {
        layer + "self_attn.qkv_proj.weight": [names + f"self_attn.{part}_proj.weight" for part in "qkv"],
        layer + "self_attn.o_proj.weight": [names + "self_attn.o_proj.weight"],
        layer + "mlp.gate_up_proj.weight": [names + f"mlp.{part}_proj.weight" for part in ("gate", "up")],
        layer + "mlp.down_proj.weight": [names + "mlp.down_proj.weight"],
        "model.fc.weight": ["fc.weight"],
        "model.norm.weight": ["norm.weight"],
        "lm_head.weight": ["lm_head.weight"],
    }
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        expected[f"{layer}{norm}.weight"] = [f"{names}{norm}.weight"]
    for chunk in range(3):
        if f"fc_norm.{chunk}.weight" in ours:
            expected[f"model.fc_norm.{chunk}.weight"] = [f"fc_norm.{chunk}.weight"]
    assert set(expected) | {"model.embed_tokens.weight"} == set(theirs)
    used = {"d2t", "t2d"}
    for name, parts in expected.items():
        rows = torch.cat([ours[part] for part in parts])
        assert torch.equal(theirs[name].data[: len(rows)], rows), name
        assert name == "lm_head.weight" or len(theirs[name]) == len(rows)  # SGLang pads the head's rows to 64
        used |= set(parts)
    assert used == set(ours)


def test_draft_ids_mean_the_tokens_that_t2d_marks(model: Any, folder: Path) -> None:
    t2d = load_file(folder / "model.safetensors")["t2d"]
    assert torch.equal(model.get_hot_token_id(), t2d.nonzero().flatten())


def test_sglang_reads_the_shape_and_layers_that_were_written(model: Any, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    read = model.config
    assert read.draft_vocab_size == config["draft_vocab_size"] and model.load_lm_head_from_target is False
    assert read.eagle_config["eagle_aux_hidden_state_layer_ids"] == [
        index - 1 for index in config["eagle_aux_hidden_state_layer_ids"]
    ]
    assert model.model.num_aux_hidden_states == 3 and model.model.norm_output is config["norm_output"]
    assert (model.model.fc_norm is not None) is config["fc_norm"]
    rotary = model.model.layers[0].self_attn.rotary_emb
    assert rotary.base == config["rope_theta"] and rotary.max_position_embeddings == config["max_position_embeddings"]
