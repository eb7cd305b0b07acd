"""Variables of the environment in a YAML of OmegaConf, and what Lingua's own words say."""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.frameworks.launch_files import GivenValues
from planner.inputs.requests.parser import parse_cluster

YAML = """\
distributed:
  fsdp_type: full_shard
model:
  dim: 1024
  n_layers: 8
  n_heads: 16
data:
  batch_size: 4
  seq_len: {}
  tokenizer:
    name: tiktoken
    path: {}
"""
CALL = "torchrun --nproc_per_node 8 -m apps.main.train config=own.yaml"
DEFAULTS = "variables that the environment could set have their defaults: "


def found(
    length: str = "2048",
    path: str = "llama3/tokenizer.model",
    call: str = "",
    **given: str,
) -> ReadAnswer:
    files = {"own.yaml": YAML.format(length, path)}
    files = {"run.sh": f"{call}\n", **files} if call else files
    return read(files, parse_cluster("1x8xh100-sxm"), given=GivenValues(values=given))


def length(answer: ReadAnswer) -> int:
    said = answer.request["training"]["seq_length"]
    assert isinstance(said, int)
    return said


@pytest.mark.parametrize(
    "reference", ["${oc.env:SEQ}", "${oc.env:SEQ,512}", "'${oc.env:SEQ, 512}'", "'${oc.env: SEQ}'"]
)
def test_a_given_variable_is_its_value(reference: str) -> None:
    answer = found(reference, SEQ="1024")
    assert length(answer) == 1024
    assert DEFAULTS not in str(answer.assumed)


def test_a_variable_without_default_is_asked_for() -> None:
    with pytest.raises(
        RequestError, match=r"data\.seq_len is \$\{oc\.env:SEQ\}.* --set SEQ=\.\.\."
    ):
        found("${oc.env:SEQ}")
    assert length(found("${oc.env:SEQ}", **{"data.seq_len": "256"})) == 256


def test_a_default_counts_and_is_said() -> None:
    answer = found("${oc.env:SEQ,512}")
    assert length(answer) == 512
    assert f"{DEFAULTS}SEQ" in answer.assumed
    both = found("${oc.env:SEQ,512}", "${oc.env:TOKENS,x/cl100k_base}")
    assert f"{DEFAULTS}SEQ, TOKENS" in both.assumed
    assert DEFAULTS not in str(found().assumed)


@pytest.mark.parametrize(
    ("call", "tokens"),
    [
        (f"export SEQ=768\n{CALL}", 768),
        (f"SEQ=768 {CALL}", 768),
        (f"SEQ=768\n{CALL}", 512),  # not exported
        (f"{CALL} data.seq_len=640", 640),
    ],
)
def test_variables_of_the_call(call: str, tokens: int) -> None:
    answer = found("${oc.env:SEQ,512}", call=call)
    assert length(answer) == tokens
    assert (DEFAULTS in str(answer.assumed)) is (tokens == 512)
    assert length(found("${oc.env:SEQ,512}", call=f"SEQ=768 {CALL}", SEQ="1024")) == 1024


def test_a_reference_to_another_key_is_no_variable() -> None:
    answer = found("${data.longest}\n  longest: 384")
    assert length(answer) == 384
    assert DEFAULTS not in str(answer.assumed)


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ("x/cl100k_base.tiktoken", 100_256 + 256),
        ("o200k_base.tiktoken", 199_998 + 256),
        ("${oc.env:TOKENS,cl100k_base}", 100_256 + 256),
        ("llama3/tokenizer.model", 128_256),
    ],
)
def test_public_tokenizers_have_their_tokens(path: str, tokens: int) -> None:
    answer = found(path=path)
    assert answer.request["model"]["vocab_size"] == tokens
    assert f"has {tokens} tokens" in str(answer.assumed)


def test_a_tokenizer_of_ones_own_is_assumed() -> None:
    answer = found(path="own_base.tiktoken")
    assert answer.request["model"]["vocab_size"] == 128_256
    assert "128256 tokens assumed" in str(answer.assumed)


@pytest.mark.parametrize(
    ("call", "ranks"),
    [
        ("python -m lingua.train config=own.yaml", 1),
        ("python -m apps.main.train config=own.yaml", 1),
        ("torchrun --nproc_per_node 4 -m lingua.train config=own.yaml", 4),
        ("srun -n 8 python -m lingua.train config=own.yaml", 8),
    ],
)
def test_python_alone_is_one_process(call: str, ranks: int) -> None:
    answer = found(call=call)
    assert answer.request["plan"]["dp"] == ranks
    assert answer.request["training"]["global_batch_size"] == 4 * ranks
