# torchtitan (0.3.0 with torch 2.13)
# gpt-oss on 2x8xh100: 16 accelerators = tp 2 x cp 2 x pp 1 x dp 4
# train_batch 64 = micro_batch 1 * accumulation 16 * dp 4
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import torch
from torch import nn
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import (
    OptimizersContainer,
    ParamGroupConfig,
    register_moe_load_balancing_hook,
)
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import FusedQKVLinear
from torchtitan.models.common.config_utils import get_attention_config, make_token_dispatcher_config
from torchtitan.models.common.linear import ScaledBiasRowwiseLinear
from torchtitan.models.common.moe import RoutedExperts, TokenChoiceTopKRouter
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.gpt_oss.model import Attention, GptOssModel, GptOssTransformerBlock
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts, GptOssMoE
from torchtitan.models.gpt_oss.parallelize import parallelize_gptoss
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

MODEL = SimpleNamespace(
    dim=512,  # width of the residual stream
    n_layers=12,  # transformer layers
    vocab_size=201088,  # rows of the word table, never padded
    enable_weight_tying=False,  # whether the output layer has the word table's weights
    n_heads=8,  # query heads
    n_kv_heads=2,  # key/value heads
    head_dim=64,  # width of one head
    qkv_bias=True,  # biases of the query/key/value projection
    max_seq_len=2048,  # rows of the rotary table
    sliding_window_size=128,  # tokens seen to the left
    full_attention_layers=range(1, 12, 2),  # layers without the window
    moe_layers=range(12),  # layers of experts; the others have the dense MLP
    num_experts=8,  # routed experts per layer
    top_k=4,  # experts per token
    moe_hidden_dim=512,  # width of one expert
    num_expert_groups=None,  # groups of experts; None: no groups
    num_limited_groups=None,  # groups that one token may use
    router_bias=True,  # bias of the router's projection
    load_balance_coeff=None,  # no balancing bias
)

KERNELS = SimpleNamespace(
    attn_backend="flex",  # FlexAttention, or varlen flash-attention
    moe_comm_backend="standard",  # how tokens reach experts
)

# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: DEFAULTS.norm_eps (1e-5)
#   rotary base: DEFAULTS.rope_theta (10000)
#   rope scaling: rope(): scaling, rope_factor and others (none)
#   activation: SwiGLU, in gpt_oss with its limits
#   scores of the router and their factor: DEFAULTS.score_func, route_norm, route_scale
#   spread of the initial weights: DEFAULTS.init_std (0.02)
#   soft-capping of logits or scores, multipliers: no option
DEFAULTS = SimpleNamespace(
    norm_eps=1e-05,  # norm epsilon, not stated: torchtitan's own
    rope_theta=10000.0,  # rotary base, not stated: torchtitan's own
    init_std=0.02,  # spread of the initial weights, not stated: torchtitan's own
    score_func="softmax",  # scores of the router
    route_norm=True,  # scores of the chosen experts add up to 1
    route_scale=1.0,  # routed scaling factor
)

CONVERTERS = []  # computation in bf16


def linear(inputs, outputs, bias=False):
    init = {"weight": partial(nn.init.normal_, std=DEFAULTS.init_std), "bias": nn.init.zeros_}
    return Linear.Config(in_features=inputs, out_features=outputs, bias=bias, param_init=init)


def norm(width):
    init = {"weight": nn.init.ones_}
    return RMSNorm.Config(normalized_shape=width, eps=DEFAULTS.norm_eps, param_init=init)


def rope(width):
    return CosSinRoPE.Config(
        dim=width, max_seq_len=MODEL.max_seq_len, theta=DEFAULTS.rope_theta
    )


def attention(index):
    window = None if index in MODEL.full_attention_layers else MODEL.sliding_window_size
    kernel = get_attention_config(KERNELS.attn_backend)
    if window is not None and KERNELS.attn_backend == "varlen":
        kernel = replace(kernel, window_size=(window - 1, 0))
    projection = FusedQKVLinear.Config(
        head_dim=MODEL.head_dim,
        n_heads=MODEL.n_heads,
        n_kv_heads=MODEL.n_kv_heads,
        wqkv=linear(
            MODEL.dim, (MODEL.n_heads + 2 * MODEL.n_kv_heads) * MODEL.head_dim, MODEL.qkv_bias
        ),
    )
    output = ScaledBiasRowwiseLinear.Config(
        in_features=MODEL.n_heads * MODEL.head_dim,
        out_features=MODEL.dim,
        bias=True,
        param_init=linear(1, 1).param_init,
    )
    return Attention.Config(
        n_heads=MODEL.n_heads,
        n_kv_heads=MODEL.n_kv_heads,
        head_dim=MODEL.head_dim,
        dim=MODEL.dim,
        qkv_linear=projection,
        wo=output,
        sliding_window_size=window,
        inner_attention=kernel,
        rope=rope(MODEL.head_dim),
        param_init={"sinks": partial(nn.init.normal_, std=DEFAULTS.init_std)},
    )


def moe():
    weight = partial(nn.init.normal_, std=DEFAULTS.init_std)
    names = ("mlp1_weight_EGD", "mlp1_bias_EG", "mlp2_weight_EDF", "mlp2_bias_ED")
    return GptOssMoE.Config(
        num_experts=MODEL.num_experts,
        load_balance_coeff=MODEL.load_balance_coeff,
        router=TokenChoiceTopKRouter.Config(
            num_experts=MODEL.num_experts,
            gate=linear(MODEL.dim, MODEL.num_experts, MODEL.router_bias),
            num_expert_groups=MODEL.num_expert_groups,
            num_limited_groups=MODEL.num_limited_groups,
            top_k=MODEL.top_k,
            score_func=DEFAULTS.score_func,
            route_norm=DEFAULTS.route_norm,
            route_scale=DEFAULTS.route_scale,
        ),
        routed_experts=RoutedExperts.Config(
            inner_experts=GptOssGroupedExperts.Config(
                dim=MODEL.dim,
                hidden_dim=MODEL.moe_hidden_dim,
                num_experts=MODEL.num_experts,
                param_init=dict.fromkeys(names, weight),
            ),
            token_dispatcher=make_token_dispatcher_config(
                num_experts=MODEL.num_experts,
                top_k=MODEL.top_k,
                comm_backend=KERNELS.moe_comm_backend,
                hidden_dim=MODEL.dim,
            ),
        ),
    )


def layer(index):
    return GptOssTransformerBlock.Config(
        attention=attention(index),
        attention_norm=norm(MODEL.dim),
        ffn_norm=norm(MODEL.dim),
        moe=moe(),
    )


def model():
    table = partial(nn.init.normal_, std=DEFAULTS.init_std)
    if MODEL.enable_weight_tying:
        table = skip_param_init  # the output layer's
    config = GptOssModel.Config(
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
            name="gpt_oss",
            flavor="planned",
            model=model(),
            parallelize_fn=parallelize_gptoss,
            pipelining_fn=pipeline_llm,
            post_optimizer_build_fn=register_moe_load_balancing_hook,
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
            local_batch_size=1,  # sequences of a data-parallel rank per pass
            global_batch_size=64,  # local 1 x dp 4 x 16 accumulation steps
            seq_len=2048,  # tokens of one sequence
            dtype="float32",  # stored weights, gradients and (by default) states
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
            data_parallel_replicate_degree=1,  # copies of everything sharded
            data_parallel_shard_degree=4,  # FSDP shards span it x cp 2
            # gathered weights are freed after the forward pass
            fsdp_reshard_after_forward="default",
            tensor_parallel_degree=2,  # ranks that split every layer
            enable_sequence_parallel=True,  # norms split over those ranks
            context_parallel_degree=2,  # ranks that split every sequence
            # every rank takes an early and a late piece: causal work in balance
            context_parallel_load_balancer="headtail",
            pipeline_parallel_degree=1,  # stages of layers
            expert_parallel_degree=4,  # ranks that share out a layer's experts
        ),
        compile=CompileConfig(
            enable=False,  # torch.compile
            components=[],  # model: kernels of a layer fused; loss: the cross entropy fused
            # tensor-parallel traffic in pieces beside the matrix products
            enable_async_tensor_parallel=False,
        ),
    )
