# torchtitan (0.3.0 with torch 2.13)
# llama on 2x8xh100: 16 accelerators = tp 1 x cp 1 x pp 2 x dp 8
# train_batch 128 = micro_batch 2 * accumulation 8 * dp 8
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch
from torch import nn
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import FusedQKVLinear, GQAttention
from torchtitan.models.common.config_utils import get_attention_config
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

MODEL = SimpleNamespace(
    dim=512,  # width of the residual stream
    n_layers=16,  # transformer layers
    vocab_size=32000,  # rows of the word table, never padded
    enable_weight_tying=False,  # whether the output layer has the word table's weights
    n_heads=16,  # query heads
    n_kv_heads=4,  # key/value heads
    head_dim=32,  # width of one head
    qkv_bias=False,  # biases of the query/key/value projection
    max_seq_len=2048,  # rows of the rotary table
    hidden_dim=1792,  # width of the dense MLP
)

KERNELS = SimpleNamespace(
    attn_backend="flex",  # FlexAttention, or varlen flash-attention
)

# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: DEFAULTS.norm_eps (1e-5)
#   rotary base: DEFAULTS.rope_theta (10000)
#   rope scaling: rope(): scaling, rope_factor and others (none)
#   activation: SwiGLU, in gpt_oss with its limits
#   spread of the initial weights: DEFAULTS.init_std (0.02)
#   soft-capping of logits or scores, multipliers: no option
DEFAULTS = SimpleNamespace(
    norm_eps=1e-05,  # norm epsilon, not stated: torchtitan's own
    rope_theta=10000.0,  # rotary base, not stated: torchtitan's own
    init_std=0.02,  # spread of the initial weights, not stated: torchtitan's own
)

CONVERTERS = []  # computation in bf16


def linear(inputs, outputs, bias=False):
    init = {"weight": partial(nn.init.normal_, std=DEFAULTS.init_std), "bias": nn.init.zeros_}
    return Linear.Config(in_features=inputs, out_features=outputs, bias=bias, param_init=init)


def norm(width):
    init = {"weight": nn.init.ones_}
    return RMSNorm.Config(normalized_shape=width, eps=DEFAULTS.norm_eps, param_init=init)


def rope(width):
    return ComplexRoPE.Config(
        dim=width, max_seq_len=MODEL.max_seq_len, theta=DEFAULTS.rope_theta
    )


def feed_forward(width):
    return FeedForward.Config(
        w1=linear(MODEL.dim, width), w2=linear(width, MODEL.dim), w3=linear(MODEL.dim, width)
    )


def attention(index):
    projection = FusedQKVLinear.Config(
        head_dim=MODEL.head_dim,
        n_heads=MODEL.n_heads,
        n_kv_heads=MODEL.n_kv_heads,
        wqkv=linear(
            MODEL.dim, (MODEL.n_heads + 2 * MODEL.n_kv_heads) * MODEL.head_dim, MODEL.qkv_bias
        ),
    )
    return GQAttention.Config(
        n_heads=MODEL.n_heads,
        n_kv_heads=MODEL.n_kv_heads,
        head_dim=MODEL.head_dim,
        dim=MODEL.dim,
        qkv_linear=projection,
        wo=linear(MODEL.n_heads * MODEL.head_dim, MODEL.dim),
        qk_norm=None,
        inner_attention=get_attention_config(KERNELS.attn_backend),
        rope=rope(MODEL.head_dim),
    )


def layer(index):
    return Llama3TransformerBlock.Config(
        attention=attention(index),
        attention_norm=norm(MODEL.dim),
        ffn_norm=norm(MODEL.dim),
        feed_forward=feed_forward(MODEL.hidden_dim),
    )


def model():
    table = partial(nn.init.normal_, std=DEFAULTS.init_std)
    if MODEL.enable_weight_tying:
        table = skip_param_init  # the output layer's
    config = Llama3Model.Config(
        dim=MODEL.dim,
        vocab_size=MODEL.vocab_size,
        enable_weight_tying=MODEL.enable_weight_tying,
        tok_embeddings=Embedding.Config(
            num_embeddings=MODEL.vocab_size,
            embedding_dim=MODEL.dim,
            param_init={"weight": table},
        ),
        norm=norm(MODEL.dim),
        lm_head=linear(MODEL.dim, MODEL.vocab_size),
        layers=[layer(index) for index in range(MODEL.n_layers)],
    )
    for converter in CONVERTERS:
        config = converter.build().convert(config)
    return config


class NoTokenizer(BaseTokenizer):
    """Random tokens need none.  PLACEHOLDER: HuggingFaceTokenizer and hf_assets_path."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path=""):
        super().__init__()

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""

    def get_vocab_size(self):
        return MODEL.vocab_size


class RandomTokens(BaseDataLoader):
    """MOCK DATA, nothing to learn.  PLACEHOLDER: HuggingFaceTextDataLoader, or your own."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        vocab_size: int

    def __init__(self, config, *, dp_rank, seq_len, local_batch_size, **kwargs):
        self.vocab_size, self.shape = config.vocab_size, (local_batch_size, seq_len + 1)
        self.generator = torch.Generator().manual_seed(dp_rank)

    def __iter__(self):
        rows, tokens = self.shape
        positions = torch.arange(tokens - 1).expand(rows, -1)
        while True:
            drawn = torch.randint(self.vocab_size, self.shape, generator=self.generator)
            batch = {"input": drawn[:, :-1].contiguous(), "positions": positions.contiguous()}
            yield batch, drawn[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


def config():
    return Trainer.Config(
        model_spec=ModelSpec(
            name="llama3",
            flavor="planned",
            model=model(),
            parallelize_fn=parallelize_llama,
            pipelining_fn=pipeline_llm,
            post_optimizer_build_fn=None,
            state_dict_adapter=None,  # checkpoints stay in torch's own format
        ),
        hf_assets_path=".",
        tokenizer=NoTokenizer.Config(),
        dataloader=RandomTokens.Config(vocab_size=MODEL.vocab_size),
        loss=CrossEntropyLoss.Config(global_vocab_size=MODEL.vocab_size),
        metrics=MetricsProcessor.Config(log_freq=1),  # time and memory of every step
        optimizer=OptimizersContainer.Config(
            param_groups=[
                ParamGroupConfig(
                    pattern=".*",
                    optimizer_name="AdamW",
                    optimizer_kwargs={
                        "lr": 0.0001,  # PLACEHOLDER for the smoke run
                        "betas": (0.9, 0.95),
                        "weight_decay": 0.1,
                    },
                )
            ],
            implementation="fused",  # one kernel; states in the stored dtype
        ),
        activation_checkpoint=None,  # nothing is computed again
        training=TrainingConfig(
            # sequences of a data-parallel rank per step: 8 pipeline micro-batches of 2
            local_batch_size=16,
            global_batch_size=128,  # local 16 x dp 8 x 1 accumulation steps
            seq_len=2048,  # tokens of one sequence
            dtype="bfloat16",  # stored weights, gradients and (by default) states
            mixed_precision_param="bfloat16",  # computation, and weights as gathered
            mixed_precision_reduce="float32",  # gradients are reduced in it
            enable_cpu_offload=False,  # shards in host memory
            # costed with a launch per kernel; pipelines and most experts cannot be captured
            disable_cuda_graphs=True,
            max_norm=1.0,  # PLACEHOLDER for the smoke run: gradient clipping
        ),
        parallelism=ParallelismConfig(
            # FSDP of torch 2.13 refuses the default's plain tensors (spmd_types)
            spmd_backend="partial_dtensor",
            data_parallel_replicate_degree=8,  # copies of everything sharded
            data_parallel_shard_degree=1,  # nothing is sharded
            # one rank per shard: frees only the half-precision copy
            fsdp_reshard_after_forward="always",
            tensor_parallel_degree=1,  # ranks that split every layer
            enable_sequence_parallel=False,  # norms split over those ranks
            context_parallel_degree=1,  # ranks that split every sequence
            pipeline_parallel_degree=2,  # stages of layers
            pipeline_parallel_schedule="Interleaved1F1B",  # order of the work
            pipeline_parallel_microbatch_size=2,  # sequences per pass
            # 8 parts of 2, 2, 2, 2, 2, 2, 2, 2 layers, dealt to the stages in turn; unsaid,
            # torchtitan counts the embedding and the head as a layer each
            module_fqns_per_model_part=[
                ["tok_embeddings", *(f"layers.{i}" for i in range(2))],
                [*(f"layers.{i}" for i in range(2, 4))],
                [*(f"layers.{i}" for i in range(4, 6))],
                [*(f"layers.{i}" for i in range(6, 8))],
                [*(f"layers.{i}" for i in range(8, 10))],
                [*(f"layers.{i}" for i in range(10, 12))],
                [*(f"layers.{i}" for i in range(12, 14))],
                [*(f"layers.{i}" for i in range(14, 16)), "norm", "lm_head"],
            ],
        ),
        compile=CompileConfig(
            enable=True,  # torch.compile
            components=["model"],  # model: kernels of a layer fused; loss: the cross entropy fused
            # tensor-parallel traffic in pieces beside the matrix products
            enable_async_tensor_parallel=False,
        ),
    )
