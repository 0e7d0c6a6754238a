"""The three spellings of the aux layers, and the choices that must be refused."""

from __future__ import annotations

import pytest

from eyrie.errors import InputError
from eyrie.shards.aux import AuxLayers


@pytest.mark.parametrize(("layers", "hf"), [(8, (2, 4, 5)), (30, (2, 15, 27)), (61, (2, 30, 58)), (62, (2, 31, 59))])
def test_default_layers_in_every_spelling(layers: int, hf: tuple[int, int, int]) -> None:
    aux = AuxLayers.default(layers)
    assert aux.hf == hf
    assert aux.vllm == hf, "vLLM counts the inputs of layers, as Hugging Face does"
    assert aux.sglang == tuple(index - 1 for index in hf), "SGLang counts the outputs of layers"
    assert AuxLayers.from_sglang(aux.sglang, layers) == aux
    assert AuxLayers.from_vllm(aux.vllm, layers) == aux
    assert AuxLayers.from_config(None, layers) == aux
    assert AuxLayers.from_config(list(hf), layers) == aux


@pytest.mark.parametrize("layers", [4, 5, 6])
def test_default_that_collides_is_refused_with_a_choice_that_works(layers: int) -> None:
    with pytest.raises(InputError, match=rf"capture\.aux_layers.*from 1 to {layers - 1}") as caught:
        AuxLayers.default(layers)
    example = str(caught.value).rsplit("=[", 1)[1].rstrip("]").split(", ")
    assert AuxLayers.from_config([int(index) for index in example], layers).layers == layers


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_target_without_three_inner_layers_is_refused(layers: int) -> None:
    with pytest.raises(InputError, match=r"capture\.aux_layers.*at least 4"):
        AuxLayers.default(layers)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([2, 2, 5], "the same layer"),
        ([0, 2, 5], "index 0 is outside"),
        ([2, 4, 8], "index 8 is outside"),
        ([-1, 2, 5], "index -1 is outside"),
        ([5, 4, 2], "must ascend"),
        ([2, 4], "exactly three"),
        ([2, 4, 5, 6], "exactly three"),
        ([2, 4.0, 5], "whole numbers"),
    ],
)
def test_impossible_layers_are_refused_by_name(ids: list[int], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        AuxLayers.from_hf(ids, 8)
    assert "capture.aux_layers" in str(caught.value)


def test_hf_ids_given_as_sglang_ids_name_other_layers() -> None:
    aux = AuxLayers.default(61)
    assert AuxLayers.from_sglang(aux.hf, 61) != aux
