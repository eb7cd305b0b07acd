"""Readers of options that Megatron-LM and its fork Megatron-DeepSpeed share."""

from __future__ import annotations

from collections.abc import Iterator

from planner.frameworks import tokenizers
from planner.frameworks.arguments import Arguments

LENGTHS = ("--seq-length", "--encoder-seq-length")
VOCABULARY = "--vocab-size"
SPLITS = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size")
PADDED = ("--padded-vocab-size", "--pad-vocab-size-to")
TOKENIZER = "--tokenizer-type"
# Options that name a tokenizer; the last one is MindSpeed-LLM's and names a model family.
TOKENIZERS = (
    "--tokenizer-model", "--tokenizer-name-or-path", "--tokenizer-path", "--vocab-file",
    "--model-type-hf",
)  # fmt: skip

# What LLaMA's layers are in the options of Megatron-LM and Megatron-DeepSpeed.
_OF_LLAMA = {
    "--swiglu": None,
    "--normalization": "RMSNorm",
    "--use-rotary-position-embeddings": None,
    "--untie-embeddings-and-output-weights": None,
    "--disable-bias-linear": None,
}


def replicas(args: Arguments, size: int, tp: int, pp: int, cp: int, cp_name: str) -> int:
    """The degree dp on `size` accelerators; cp_name: the option of context parallelism."""
    if size % (tp * pp * cp):
        args.refuse(
            f"{size} accelerators are not a multiple of tp {tp} x cp {cp} x pp {pp} = "
            f"{tp * pp * cp}",
            *SPLITS,
            cp_name,
            code="world_size",
        )
    return max(size // (tp * pp * cp), 1)


def seq_length(args: Arguments) -> int:
    """The tokens of one sequence."""
    return args.positive(LENGTHS[0] if args.has(LENGTHS[0]) else LENGTHS[1])


def mlp_width(args: Arguments, hidden: int) -> int:
    """The width of an MLP where no option gives it; of a gated one two thirds as wide."""
    wide = int((4 * hidden * 2 / 3) / 64) * 64 if args.has("--swiglu") else 4 * hidden
    return max(wide, 1)


def build_llama(args: Arguments) -> None:
    """Sets what a program called pretrain_llama.py builds, where the options say none of it."""
    if "llama" not in args.own.lower() or "--num-layers" not in args.given or args.has(*_OF_LLAMA):
        return
    for option, value in _OF_LLAMA.items():
        if option in args.known:
            choices = args.known[option].get("choices", ())
            alike = (one for one in choices if one.lower() == str(value).lower())
            args.say(option, next(alike, value), "--num-layers")
    args.assume(
        f"{args.own} is assumed to build LLaMA's layers: gated, RMSNorm, rotary, without biases, "
        "an output layer of its own"
    )


def query_groups(args: Arguments, heads: int, groups: int, name: str) -> int:
    """The query groups; if they do not divide the heads, refuses the option and returns heads."""
    if heads % groups == 0:
        return groups
    args.refuse(f"--num-attention-heads {heads} is not a multiple of {name} {groups}", name)
    return heads


def position_rows(args: Arguments, seq_length: int) -> int:
    """Rows of the learned position embedding."""
    rows = args.integer("--max-position-embeddings")
    if rows < seq_length:
        args.refuse(
            f"--max-position-embeddings is {rows or 'missing'}; at least the sequence length "
            f"{seq_length} is needed",
            "--max-position-embeddings",
            LENGTHS[0],
        )
    return rows


def vocabulary(args: Arguments) -> int | None:
    """The tokens of the vocabulary where an option gives them."""
    args.has("--make-vocab-size-divisible-by")  # the rows of the embedding, which a plan pads
    return args.positive(VOCABULARY) if args.has(VOCABULARY) else None


def has_null_tokenizer(args: Arguments) -> bool:
    """Whether the tokenizer is one of as many tokens as an option says."""
    return args.text(TOKENIZER).startswith("Null")


def _tokenizer_files(args: Arguments, kind: str) -> Iterator[str]:
    """What the options for a tokenizer's files name."""
    for option in TOKENIZERS:
        setting = args.given.get(option)
        # Llama2Tokenizer reads --tokenizer-model alone.
        ignored = option == "--vocab-file" and kind == "Llama2Tokenizer"
        if setting is not None and isinstance(setting.value, str) and not ignored:
            yield setting.value


def tokens(args: Arguments, hidden: int, otherwise: int) -> int:
    """Vocabulary size of the tokenizer in the options; else `otherwise`, noted with its effect."""
    kind = args.text(TOKENIZER)
    named = list(_tokenizer_files(args, kind))
    for text in named:
        if found := tokenizers.tokenizer_tokens(text):
            args.assume(f"the tokenizer of {text} has {found} tokens")
            return found
    general = all(map(tokenizers.is_general, named))
    own = any(map(tokenizers.has_own_folder, named))
    # A SentencePiece file with a name of its own is another vocabulary than its class's usual one.
    if general and not own and (found := tokenizers.tokenizer_tokens(kind)):
        args.assume(f"{kind} has {found} tokens")
        return found
    if not kind and args.has("--merge-file"):
        kind = "GPT2BPETokenizer"
    if kind in tokenizers.KINDS and not own and (general or kind != "Llama2Tokenizer"):
        args.assume(f"{kind} has {tokenizers.KINDS[kind]} tokens")
        return tokenizers.KINDS[kind]
    args.assume(
        f"the files do not give the vocabulary size: {otherwise} tokens assumed; "
        f"{tokenizers.weights_of_more(hidden)}; give {VOCABULARY} (--set {VOCABULARY}=N)"
    )
    return otherwise
