"""Models by the names that launch files have for them."""

from __future__ import annotations

import pytest

from cost_models.catalog.names import UnknownName
from planner.answers.lint.lint import read
from planner.answers.lint.request import parse_given
from planner.huggingface.named_models import find, is_encoder, is_open, names_none
from planner.inputs.requests.parser import parse_cluster

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("qwen2.5-coder-0.5b", "qwen2.5-0.5b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "qwen2.5-14b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("./hf/vicuna-7b", "llama-7b"),
        ("Qwen/QwQ-32B", "qwen2.5-32b"),
        ("OpenGVLab/InternVL3_5-8B-Pretrained", "qwen3-8b"),
        ("OpenGVLab/InternVL2_5-26B", "internlm2-20b"),
        ("OpenGVLab/InternVL3-78B-hf", "qwen2.5-72b"),
        ("llava-hf/llava-1.5-13b-hf", "llama-2-13b"),
        ("google/paligemma2-10b-pt-448", "gemma-2-9b"),
        ("Qwen/Qwen2-Audio-7B-Instruct", "qwen-7b"),
        ("hub/models--Qwen--Qwen2.5-32B-Instruct/snapshots/5ede1c97bbab", "qwen2.5-32b"),
        ("HuggingFaceH4/zephyr-7b-gemma-sft-v0.1", "gemma-7b"),
        ("unsloth/zephyr-sft-bnb-4bit", "mistral-7b"),
        ("HuggingFaceH4/starchat2-15b-sft-v0.1", "starcoder2-15b"),
        ("out/Qwen2.5-7B-Instruct/final_checkpoint", "qwen2.5-7b"),
        ("out/Qwen2.5-7B/checkpoint-500/hf", "qwen2.5-7b"),
        ("Qwen/Qwen3.5-4B-Base", "qwen3.5-4b"),
        ("allenai/tulu-2-dpo-70b", "llama-2-70b"),
        ("openchat/openchat-3.5-0106", "mistral-7b"),
        ("TinyLlama/TinyLlama_v1.1", "tinyllama-1.1b"),
    ],
)
def test_models_trained_further_have_the_shape_of_their_base(name: str, preset: str) -> None:
    assert find(name) == find(preset)


@pytest.mark.parametrize(
    "name",
    [
        "qwen2.5-coder-9b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-3B",
        "rinna/japanese-gpt-neox-3.6b",  # no GPT of 3.6 billion
        "x/llama-3.1-8b-4x8b-moe",  # experts of their own
        "data/models/70b",  # no family
        "llama-27b",
        "gemma-29b",
        "qwen-314b",  # a version and a size are no number
        "zephyr-sft-70b",
        "tinyllama-foo-30b",  # of another size
    ],
)
def test_another_base_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(UnknownName):
        find(name, [])


def test_a_size_alone_is_of_the_family_of_the_folder_above() -> None:
    notes = list[str]()
    assert find("../hf_llama2_models/7B", notes) == find("llama-2-7b")
    assert "taken to have the shape of llama-2-7b" in notes[0]
    assert find("weights/llama/13b", []) == find("llama-13b")


def test_a_size_may_stand_behind_the_version() -> None:
    notes = list[str]()
    assert find("checkpoints/vicuna-v1-3-7b", notes) == find("vicuna-7b-v1.3")
    assert find("my_llama-3.1-instruct-70b-v2", notes) == find("llama-3.1-70b")
    assert len(notes) == 2


def test_a_pasted_file_is_no_name() -> None:
    with pytest.raises(UnknownName):
        find("llama-3.1-8b " * 10_000, [])


def test_a_longer_name_has_the_shape_of_the_model_in_it() -> None:
    notes = list[str]()
    assert find("x/Nous-Hermes-2-Mixtral-8x7B-DPO", notes) == find("mixtral-8x7b")
    assert "taken to have the shape of mixtral-8x7b, which it names" in notes[0]


@pytest.mark.parametrize(
    ("name", "none"),
    [
        ("./model", True),
        ("/path/to/your_model", True),
        ("model_path", True),
        ("path_to_llama_model", True),
        ("TO_BE_FILLED", True),
        ("<MODEL>", True),
        ("llama-2-7b", False),
        ("out/llama-2-7b/model", False),
        ("local/gemma-2b", False),
    ],
)
def test_places_to_fill_in_are_no_names(name: str, none: bool) -> None:
    assert names_none(name) is none


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("/data/checkpoints/Malaysian-Qwen2.5-7B-Instruct-sft", "qwen2.5-7b"),
        ("elyza/Llama-3-ELYZA-JP-8B", "llama-3.1-8b"),
        ("llama_2_7b_fixed_resized/", "llama-2-7b"),
        ("alignment-handbook/zephyr-7b-sft-qlora", "mistral-7b"),
        ("models/qwen3-30b-a3b-sft-v2", "qwen3-30b-a3b"),
    ],
)
def test_a_longer_name_that_holds_a_whole_one_is_taken_for_it_and_said(
    name: str, base: str
) -> None:
    notes: list[str] = []
    assert find(name, notes) == find(base)
    assert [f"to have the shape of {base}" in one for one in notes] == [True]
    with pytest.raises(UnknownName):
        find(name)


@pytest.mark.parametrize(
    "name",
    [
        "LlamaMoE/llama_2_7B-16Select4-up_proj",  # another shape
        "qwen2.5-7b-and-14b-merged",
        "my-llama-2-13b-7b-distilled",  # which of the two?
        "chinese-alpaca-2-7b",  # a family and a size that stand for nothing known together
        "qwen2.5-7b-eagle3",
        "mistral-191m",
        "7b",
    ],
)
def test_part_of_a_name_decides_nothing(name: str) -> None:
    with pytest.raises(UnknownName):
        find(name, [])


def test_encoders_of_images_and_sound_are_said_to_be_left_out() -> None:
    for name, base in (
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-7b"),
        ("liuhaotian/llava-v1.5-13b", "llama-2-13b"),
        ("OpenGVLab/InternVL3-8B", "qwen2.5-7b"),
        ("openbmb/MiniCPM-V-2_6", "qwen2.5-7b"),
        ("openvla/openvla-7b", "llama-2-7b"),
    ):
        notes: list[str] = []
        assert find(name, notes) == find(base)
        assert len(notes) == 1
        assert "only the language model" in notes[0]


def test_quantised_weights_are_said_to_be_costed_whole() -> None:
    for name, said in (
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", True),
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", True),
        ("Qwen/Qwen2.5-7B-Instruct", False),
    ):
        notes: list[str] = []
        assert find(name, notes) == find("qwen2.5-7b")
        assert any("quantised" in note for note in notes) == said


@pytest.mark.parametrize(
    ("path", "left_open"),
    [
        ("$(pwd)/models/llama-2-7b", False),
        ("$HOME/llama-2-7b/", False),
        ("models/$NAME", True),
        ("$(cat chosen)", True),
        ("$(cat models/llama-2-7b)", True),
    ],
)
def test_folders_that_are_left_open_leave_the_name(path: str, left_open: bool) -> None:
    assert is_open(path) is left_open


@pytest.mark.parametrize(
    ("name", "encoder"),
    [
        ("distilroberta-base", True),
        ("microsoft/graphcodebert-base", True),
        ("xlm-roberta-large", True),
        ("microsoft/deberta-v3-base", True),
        ("allenai/longformer-base-4096", True),
        ("Qwen/Qwen2.5-7B", False),
    ],
)
def test_encoders_are_known_by_their_families(name: str, encoder: bool) -> None:
    assert is_encoder(name) is encoder


def test_what_is_assumed_of_a_given_model_is_said_of_a_launch() -> None:
    files = {"run.sh": "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 "
             "--max_seq_length 512 --model_name_or_path x\n"}  # fmt: skip
    given = parse_given({"model": "my-llama-3.1-8b-sft"})
    answer = read(files, parse_cluster("1x8xh100-sxm"), None, given)
    assert any("taken to have the shape of llama-3.1-8b" in note for note in answer.assumed)
