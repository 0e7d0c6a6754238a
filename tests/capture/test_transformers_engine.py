"""The reference engine stores the right layers, the right norm and the right rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from eyrie.capture.transformers_engine import TransformersEngine
from eyrie.errors import InputError, MissingError
from eyrie.shards.aux import AuxLayers
from tests.capture.targets import constant_llama, make_rows, tiny_llama


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def ids_of(lengths: list[int], seed: int = 0) -> list[np.ndarray]:
    return [row.input_ids for row in make_rows(lengths, seed)]


@pytest.mark.parametrize("layers", [8, 61, 62])
def test_aux_states_are_the_outputs_of_the_layers_that_every_spelling_names(layers: int) -> None:
    default = AuxLayers.default(layers)
    spellings = [default, AuxLayers.from_sglang(default.sglang, layers), AuxLayers.from_vllm(default.vllm, layers)]
    for aux in spellings:
        engine = TransformersEngine(constant_llama(layers), aux, "float32")
        (row,) = engine.capture(ids_of([5]), 5)
        found = row.aux.unflatten(1, (3, -1))
        # Layer j outputs the constant j; SGLang names a layer whose output it takes.
        expected = torch.tensor(default.sglang, dtype=torch.float32)[None, :, None].expand_as(found)
        assert torch.equal(found, expected)
        engine.close()


def test_states_equal_those_of_transformers_bit_for_bit_without_padding() -> None:
    model, aux = tiny_llama(), AuxLayers.default(8)
    engine = TransformersEngine(model, aux, "float32")
    for ids in ids_of([1, 2, 17, 40]):
        (row,) = engine.capture([ids], len(ids))
        with torch.inference_mode():
            whole = model(torch.from_numpy(ids.astype(np.int64))[None], output_hidden_states=True)
        assert torch.equal(row.aux, torch.cat([whole.hidden_states[j][0] for j in aux.hf], -1))
        assert torch.equal(row.final, whole.hidden_states[-1][0])
        assert torch.equal(row.argmax.long(), whole.logits[0].argmax(-1))
        assert torch.allclose(row.logsumexp, whole.logits[0].logsumexp(-1), rtol=0, atol=1e-5)
        assert row.argmax.dtype == torch.int32 and row.logsumexp.dtype == torch.float32


def test_rows_of_mixed_lengths_in_one_batch_are_as_if_alone() -> None:
    model, aux = tiny_llama(seed=1), AuxLayers(1, 3, 7, 8)
    engine = TransformersEngine(model, aux, "float32")
    rows = ids_of([40, 33, 2, 1, 17])
    for row, ids in zip(engine.capture(rows, 40), rows, strict=True):
        (alone,) = engine.capture([ids], len(ids))
        assert len(row) == len(ids)
        for found, wanted in ((row.aux, alone.aux), (row.final, alone.final)):
            assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        assert torch.equal(row.argmax, alone.argmax)


def test_final_state_is_the_one_after_the_norm() -> None:
    model = tiny_llama()
    before: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda module, args: before.append(args[0]))
    engine = TransformersEngine(model, AuxLayers.default(8), "float32")
    before.clear()
    (row,) = engine.capture(ids_of([9]), 9)
    assert not torch.allclose(row.final, before[0][0], atol=0.1)
    assert torch.equal(row.final, model.model.norm(before[0])[0])


def test_logits_reduced_in_chunks_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    engine = TransformersEngine(model, AuxLayers.default(8), "float32")
    final = torch.randn(37, 32, generator=torch.Generator().manual_seed(3))
    whole = model.lm_head(final)
    monkeypatch.setattr("eyrie.capture.transformers_engine.LOGITS_BYTES", 5 * 4 * 300)
    argmax, logsumexp = engine.reduce_logits(final)
    assert torch.equal(argmax.long(), whole.argmax(-1))
    assert torch.allclose(logsumexp, whole.logsumexp(-1), atol=1e-5)


def test_states_come_in_the_stored_type_rounded_once() -> None:
    model, aux = tiny_llama(), AuxLayers.default(8)
    (exact,) = TransformersEngine(model, aux, "float32").capture(ids_of([9]), 9)
    (stored,) = TransformersEngine(model, aux, "bfloat16").capture(ids_of([9]), 9)
    assert stored.aux.dtype == stored.final.dtype == torch.bfloat16
    assert torch.equal(stored.aux, exact.aux.to(torch.bfloat16))
    assert torch.equal(stored.logsumexp, exact.logsumexp), "the head reads the state before it is rounded"


def test_target_computed_in_bfloat16_has_its_head_in_float32() -> None:
    model = tiny_llama().to(torch.bfloat16)
    (row,) = TransformersEngine(model, AuxLayers.default(8), "bfloat16").capture(ids_of([9]), 9)
    logits = row.final.float() @ model.lm_head.weight.float().T
    assert torch.equal(row.argmax.long(), logits.argmax(-1))
    assert torch.allclose(row.logsumexp, logits.logsumexp(-1), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_states_on_a_gpu_equal_those_on_the_cpu() -> None:
    rows, aux = ids_of([40, 33, 2, 17]), AuxLayers.default(8)
    on_cpu = list(TransformersEngine(tiny_llama(), aux, "float32").capture(rows, 40))
    on_gpu = list(TransformersEngine(tiny_llama().to("cuda"), aux, "float32").capture(rows, 40))
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        assert ours.aux.device.type == "cpu"
        for name in ("aux", "final", "logsumexp"):
            found, wanted = getattr(ours, name), getattr(theirs, name)
            assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max(), name


def test_target_whose_logits_are_capped_after_the_head_is_refused() -> None:
    config = Gemma2Config(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.5, initializer_range=0.3,
    )  # fmt: skip
    with pytest.raises(InputError, match="logits are not its head"):
        TransformersEngine(Gemma2ForCausalLM(config), AuxLayers.default(8), "float32")


def test_target_of_another_depth_is_refused() -> None:
    with pytest.raises(InputError, match="8 layers, not 9"):
        TransformersEngine(tiny_llama(8), AuxLayers.default(9), "float32")


def test_model_without_decoder_layers_is_refused() -> None:
    with pytest.raises(MissingError, match="no list of decoder layers in Linear"):
        TransformersEngine(torch.nn.Linear(2, 2), AuxLayers.default(8), "float32")


def test_closing_leaves_the_model_without_hooks() -> None:
    model = tiny_llama()
    engine = TransformersEngine(model, AuxLayers.default(8), "float32")
    engine.close()
    assert not any(layer._forward_pre_hooks for layer in model.model.layers)
