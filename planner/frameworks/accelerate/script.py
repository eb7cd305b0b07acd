"""The training script of a bundle; plans differ only in its options."""

from __future__ import annotations

from planner.frameworks.package_files import text

_CHANGES = (
    (
        "from torch.utils.data import",
        "from peft import LoraConfig, get_peft_model\nfrom torch.utils.data import",
    ),
    (
        "    return parser.parse_args()\n",
        """\
    parser.add_argument("--lora_rank", type=int, required=True)
    parser.add_argument("--lora_targets", required=True)
    parser.add_argument("--lora_dropout", type=float, default=0.0)
    return parser.parse_args()
""",
    ),
    (
        '"""The model with random weights in fp32, which are the master weights."""',
        '"""Random frozen weights in half precision; PEFT keeps adapters in fp32, as masters."""',
    ),
    ("config, dtype=torch.float32,", "config, dtype=DTYPES[accelerator.mixed_precision],"),
    (
        "    if args.gradient_checkpointing:\n        model.gradient_checkpointing_enable()\n",
        """\
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    adapters = LoraConfig(
        r=args.lora_rank,
        lora_alpha=2 * args.lora_rank,
        lora_dropout=args.lora_dropout,
        target_modules=args.lora_targets.split(","),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, adapters)
""",
    ),
)


def train_script(adapters: bool) -> str:
    """train.py, with or without LoRA adapters."""
    script = text("planner.frameworks.accelerate", "train.py.txt")
    for old, new in _CHANGES if adapters else ():
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    return script
