"""Which weights a Python script trains: its model, adapters and their targets, what it freezes."""

from __future__ import annotations

import pytest

from planner.frameworks.launch_files import GivenValues
from tests.fixtures.python_scripts import IMPORTS, PLAIN, SFT, reading, said, why


def test_weights_that_are_loaded_in_half_precision_stay_so_without_shards() -> None:
    answer = reading(PLAIN)
    training = answer.request["training"]
    assert (training["seq_length"], training["global_batch_size"]) == (512, 16)
    assert training["master_weights_dtype"] == "none"
    assert training["optimizer"] == "adam_8bit"
    assert "lora_rank" not in training
    whole = reading(PLAIN.replace(', torch_dtype="bfloat16"', "")).request["training"]
    assert "master_weights_dtype" not in whole
    sharded = PLAIN.replace('"out",', '"out", fsdp="full_shard",')
    assert "master_weights_dtype" not in reading(sharded).request["training"]
    auto = reading(PLAIN.replace('torch_dtype="bfloat16"', 'dtype="auto"'))
    assert auto.request["training"]["master_weights_dtype"] == "none"
    assert "taken as bf16" in said(auto)


def test_four_bits_beside_adapters() -> None:
    quantised = SFT.replace(
        "torch_dtype=torch.bfloat16)",
        "quantization_config=BitsAndBytesConfig(load_in_4bit=True))",
    )
    assert reading(quantised).request["training"]["frozen_dtype"] == "nf4"
    prepared = PLAIN.replace(
        "trainer =",
        "model = prepare_model_for_kbit_training(model)\nmodel = get_peft_model(model, "
        'LoraConfig(r=4, target_modules="all-linear"))\ntrainer =',
    ).replace('torch_dtype="bfloat16"', "load_in_8bit=True")
    answer = reading(prepared)
    assert answer.request["plan"]["recompute"] == "full"
    assert answer.request["training"]["lora_rank"] == 4
    assert "frozen weights of 8 bits are costed as 16" in said(answer)
    # Of 4 bits PEFT's function leaves the rest in fp32.
    narrow = reading(prepared.replace("load_in_8bit", "load_in_4bit"))
    assert narrow.request["training"]["frozen_dtype"] == "nf4 and fp32"


def test_targets_that_are_not_set_are_those_of_peft() -> None:
    answer = reading(SFT.replace('target_modules=["q_proj", "v_proj"], ', ""))
    assert answer.request["training"]["lora_targets"] == ["q_proj", "v_proj"]
    assert "q_proj and v_proj as in PEFT" in said(answer)


def test_how_a_model_is_tuned_that_another_module_makes_may_be_given() -> None:
    text = "m = made()\nSFTTrainer(model=m, args=SFTConfig('x', max_length=64, bf16=True))\n"
    for kind, rank in (("full", 0), ("lora", 8)):
        given = GivenValues({"finetuning_type": kind, "model_name_or_path": "Qwen/Qwen2.5-7B"})
        answer = reading(text, given=given)
        assert answer.request["training"].get("lora_rank", 0) == rank


FROZEN = """\
for name, weight in trainer.model.named_parameters():
    weight.requires_grad = "lm_head" in name
"""


@pytest.mark.parametrize(
    "frozen",
    [
        FROZEN,
        "model.requires_grad_(False)",
        "for one in model.parameters(): one.requires_grad = False",
        # Where the name of a weight, which only running knows, decides.
        "for name, one in model.named_parameters():\n    if 'h.' in name: one.requires_grad=False",
    ],
)
def test_weights_that_a_script_freezes_itself_are_refused(frozen: str) -> None:
    assert "which weights a script freezes itself is not followed" in why(PLAIN + frozen)
    given = GivenValues({"finetuning_type": "full"})
    assert reading(PLAIN + frozen, given=given).request["training"]["seq_length"] == 512


@pytest.mark.parametrize(
    "text",
    [
        PLAIN + "\nfor one in ref_model.parameters(): one.requires_grad = False",
        PLAIN.replace("trainer =", "other = AutoModelForCausalLM.from_pretrained('gpt2')\n"
                      "other.requires_grad_(False)\ntrainer ="),
        SFT.replace("    config =", "    for one in model.parameters(): one.requires_grad = False\n"
                    "    config ="),
    ],
)  # fmt: skip
def test_weights_of_other_models_and_under_adapters_may_be_frozen(text: str) -> None:
    assert reading(text).request["training"]


def test_adapters_at_modules_that_starcoder_2_lacks_are_not_costed() -> None:
    text = SFT.replace("Qwen/Qwen2.5-7B-Instruct", "bigcode/starcoder2-3b")
    for listed, found in (
        ('["q_proj", "gate_proj", "up_proj", "down_proj"]', ["q_proj"]),
        ('["o_proj", "c_fc", "c_proj"]', ["o_proj", "up_proj", "down_proj"]),
    ):
        answer = reading(text.replace('["q_proj", "v_proj"]', listed))
        assert answer.request["training"]["lora_targets"] == found
        assert ("StarCoder 2 has no gate_proj" in said(answer)) == ("gate_proj" in listed)


def test_adapters_of_a_function_that_is_not_here_are_adapters() -> None:
    text = (
        "from builders import build_peft\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
        "model = get_peft_model(model, build_peft({}))\n"
        "SFTTrainer(model=model, args=SFTConfig('x', max_length=64))\n"
    )
    told = IMPORTS + text.format("r=4, lora_alpha=8, target_modules=['q_proj']")
    training = reading(told).request["training"]
    assert (training["lora_rank"], training["lora_targets"]) == (4, ["q_proj"])
    assert "lora_r" in why(IMPORTS + text.format("args"))


def test_a_model_beside_the_trained_one_that_embeds_sentences_is_not_taken() -> None:
    text = (
        "def score(a, model_name='all-MiniLM-L6-v2'):\n    return SentenceTransformer(model_name)\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--folder', required=True)\n"
        "model = AutoModelForCausalLM.from_pretrained(parser.parse_args().folder)\n"
        "SFTTrainer(model=model, args=SFTConfig('x', max_length=64))\n"
    )
    assert "leaves out the model: add --model NAME" in why(IMPORTS + text)


@pytest.mark.parametrize(
    "path",
    [
        "Path(__file__).resolve().parents[2] / 'models' / 'gemma-2-2b-it'",
        "os.path.join(os.path.dirname(__file__), 'models', 'gemma-2-2b-it')",
    ],
)
def test_a_folder_below_one_that_is_not_known_names_its_model(path: str) -> None:
    text = f"SFTTrainer(model=str({path}), args=SFTConfig('x', max_length=64))\n"
    assert reading(IMPORTS + text).request["model"]["name"] == "gemma-2-2b"


def test_adapters_of_a_checkpoint_have_a_rank_that_is_said() -> None:
    text = (
        "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained('gpt2'), 'a',"
        " is_trainable=True)\nSFTTrainer(model=model, args=SFTConfig('x', max_length=64))\n"
    )
    assert "are in a checkpoint: a rank of 8" in said(reading(IMPORTS + text))
