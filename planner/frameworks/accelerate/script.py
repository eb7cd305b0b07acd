"""The training script of a bundle; plans differ only in its options."""

from __future__ import annotations

from cost_models.package_files import filled, text

PACKAGE = "planner.frameworks.accelerate"
_ALL = {
    "peft": "",
    "options": "",
    "weights": "The model with random weights in fp32, which are the master weights.",
    "dtype": "torch.float32",
    "adapters": "",
}
_HALF = "Random frozen weights in half precision; PEFT keeps adapters in fp32, as masters."


def train_script(adapters: bool) -> str:
    """train.py, with or without LoRA adapters."""
    words = _ALL
    if adapters:
        words = {
            "peft": "from peft import LoraConfig, get_peft_model\n",
            "options": text(PACKAGE, "lora_options.py.txt"),
            "weights": _HALF,
            "dtype": "DTYPES[accelerator.mixed_precision]",
            "adapters": text(PACKAGE, "lora_model.py.txt"),
        }
    return filled(text(PACKAGE, "train.py.txt"), words)
