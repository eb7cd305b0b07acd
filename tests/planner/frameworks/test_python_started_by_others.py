"""Python scripts in which Lightning or Ray Train starts the training."""

from __future__ import annotations

from tests.fixtures.python_scripts import IMPORTS, reading, said, why

LIGHTNING = """\
import lightning.pytorch as pl
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from torch.utils.data import DataLoader

class Model(pl.LightningModule):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def configure_model(self):
        self.model = AutoModelForCausalLM.from_pretrained(self.name)

class Data(pl.LightningDataModule):
    def setup(self, stage):
        self.data = load().map(lambda one: tokenizer(one, truncation=True, max_length=2048))

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=4)

tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-7B")
strategy = FSDPStrategy(sharding_strategy="FULL_SHARD", activation_checkpointing_policy={Model})
trainer = pl.Trainer(devices=4, num_nodes=2, strategy=strategy, precision="bf16-mixed",
                     accumulate_grad_batches=2)
trainer.fit(Model("Qwen/Qwen2.5-7B"), Data())
"""


def test_a_script_of_lightning_is_read() -> None:
    answer = reading(LIGHTNING)
    plan, training = answer.request["plan"], answer.request["training"]
    assert (answer.framework, answer.nodes, answer.accelerators_per_node) == ("accelerate", 2, 4)
    assert (plan["dp"], plan["micro_batch_size"], plan["zero_stage"]) == (8, 4, 3)
    assert plan["recompute"] == "full"
    assert (training["seq_length"], training["global_batch_size"]) == (2048, 64)
    assert "Lightning's Trainer is costed" in said(answer)
    stage_3 = LIGHTNING.replace("strategy=strategy", 'strategy="deepspeed_stage_3"')
    assert reading(stage_3).request["plan"]["zero_stage"] == 3
    zero = "{'stage': 1, 'offload_optimizer': {'device': 'cpu'}}"
    stated = f"DeepSpeedStrategy(config={{'zero_optimization': {zero}}})"
    own = reading(LIGHTNING.replace("strategy=strategy", f"strategy={stated}")).request["plan"]
    assert (own.get("zero_stage", 1), own["offload_optimizer"]) == (1, True)
    alone = LIGHTNING.replace("strategy=strategy", 'strategy="auto"')
    assert reading(alone).request["plan"]["zero_stage"] == 0
    assert "ModelParallelStrategy is not read" in why(
        LIGHTNING.replace("strategy=strategy", "strategy=ModelParallelStrategy()")
    )


RAY = """\
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
token = os.getenv("HF_TOKEN")
if token is None:
    raise RuntimeError("set HF_TOKEN")
def make(data=None, **said):
    model = AutoModelForCausalLM.from_pretrained(said["name"])
    args = TrainingArguments("o", per_device_train_batch_size=said["batch"], fp16=True)
    return Trainer(model=model, args=args, train_dataset=data)
def loop(config):
    data = config.pop("data")
    make(data=data, **config).train()
config = {"name": "gpt2", "batch": 4}
config["data"] = load().map(lambda row: tokenizer(row, truncation=True, max_length=512))
TorchTrainer(loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2)).fit()
"""


def test_workers_of_ray_train_are_followed_by_their_configuration() -> None:
    answer = reading(IMPORTS + RAY)
    assert (answer.nodes, answer.accelerators_per_node) == (1, 2)
    assert answer.request["plan"]["micro_batch_size"] == 4
    assert answer.request["training"]["seq_length"] == 512
    assert "Ray Train starts 2 workers" in said(answer)
