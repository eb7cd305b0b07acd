"""Templates of registry modules, with placeholders @NAME@."""

from __future__ import annotations

COMMON = """\
def linear(inputs, outputs, bias=False):
    init = {"weight": partial(nn.init.normal_, std=DEFAULTS.init_std), "bias": nn.init.zeros_}
    return Linear.Config(in_features=inputs, out_features=outputs, bias=bias, param_init=init)


def norm(width):
    init = {"weight": nn.init.ones_}
    return RMSNorm.Config(normalized_shape=width, eps=DEFAULTS.norm_eps, param_init=init)


def rope(width):
    return @ROPE@.Config(
        dim=width, max_seq_len=MODEL.max_seq_len, theta=DEFAULTS.rope_theta@SCALING@
    )


"""
MLP = """\
def feed_forward(width):
    return FeedForward.Config(
        w1=linear(MODEL.dim, width), w2=linear(width, MODEL.dim), w3=linear(MODEL.dim, width)
    )


"""
FUSED_QKV = """\
    projection = FusedQKVLinear.Config(
        head_dim=MODEL.head_dim,
        n_heads=MODEL.n_heads,
        n_kv_heads=MODEL.n_kv_heads,
        wqkv=linear(
            MODEL.dim, (MODEL.n_heads + 2 * MODEL.n_kv_heads) * MODEL.head_dim, MODEL.qkv_bias
        ),
    )
"""
GQA = """\
def attention(index):
@QKV@    return GQAttention.Config(
        n_heads=MODEL.n_heads,
        n_kv_heads=MODEL.n_kv_heads,
        head_dim=MODEL.head_dim,
        dim=MODEL.dim,
        qkv_linear=projection,
        wo=linear(MODEL.n_heads * MODEL.head_dim, MODEL.dim),
        qk_norm=@QK_NORM@,
        inner_attention=get_attention_config(KERNELS.attn_backend),
        rope=rope(MODEL.head_dim),
    )


"""
SINKS = """\
def attention(index):
    window = None if index in MODEL.full_attention_layers else MODEL.sliding_window_size
    kernel = get_attention_config(KERNELS.attn_backend)
    if window is not None and KERNELS.attn_backend == "varlen":
        kernel = replace(kernel, window_size=(window - 1, 0))
@QKV@    output = ScaledBiasRowwiseLinear.Config(
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


"""
LATENT = """\
def attention(index):
    heads, rank = MODEL.n_heads, MODEL.q_lora_rank
    query = heads * (MODEL.qk_nope_head_dim + MODEL.qk_rope_head_dim)
    key_value = heads * (MODEL.qk_nope_head_dim + MODEL.v_head_dim)
    return Attention.Config(
        n_heads=heads,
        dim=MODEL.dim,
        wq=None if rank else linear(MODEL.dim, query),
        wq_a=linear(MODEL.dim, rank) if rank else None,
        wq_b=linear(rank, query) if rank else None,
        q_norm=norm(rank or 1),
        wkv_a=linear(MODEL.dim, MODEL.kv_lora_rank + MODEL.qk_rope_head_dim),
        kv_norm=norm(MODEL.kv_lora_rank),
        wkv_b=linear(MODEL.kv_lora_rank, key_value),
        wo=linear(heads * MODEL.v_head_dim, MODEL.dim),
        q_lora_rank=rank,
        kv_lora_rank=MODEL.kv_lora_rank,
        qk_nope_head_dim=MODEL.qk_nope_head_dim,
        qk_rope_head_dim=MODEL.qk_rope_head_dim,
        v_head_dim=MODEL.v_head_dim,
        inner_attention=get_attention_config(KERNELS.attn_backend),
        rope=rope(MODEL.qk_rope_head_dim),
@MSCALE@    )


"""
EXPERTS = """\
def moe():
    weight = partial(nn.init.normal_, std=DEFAULTS.init_std)
    names = (@NAMES@)
    return @MOE@.Config(
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
            inner_experts=@GROUPED@.Config(
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
@SHARED@    )


"""
SHARED = """\
        shared_experts=feed_forward(MODEL.shared_hidden_dim) if MODEL.shared_hidden_dim else None,
"""
LAYER = """\
def layer(index):
    return @BLOCK@.Config(
        attention=attention(index),
        attention_norm=norm(MODEL.dim),
        ffn_norm=norm(MODEL.dim),
@PARTS@    )


"""
PARTS = {
    "dense": "        feed_forward=feed_forward(MODEL.hidden_dim),\n",
    "moe": "        moe=moe(),\n",
    "both": "        moe=moe() if index in MODEL.moe_layers else None,\n"
    "        feed_forward=None if index in MODEL.moe_layers else "
    "feed_forward(MODEL.hidden_dim),\n",
}
PREDICTION = """\
def prediction(index):
    inner = layer(MODEL.n_layers - 1)
    return MTPTransformerBlock.Config(
        attention=inner.attention,
        feed_forward=inner.feed_forward,
        moe=inner.moe,
        attention_norm=inner.attention_norm,
        ffn_norm=inner.ffn_norm,
        enorm=norm(MODEL.dim),
        hnorm=norm(MODEL.dim),
        eh_proj=linear(2 * MODEL.dim, MODEL.dim),
        mtp_norm=norm(MODEL.dim),
    )


"""
WHOLE = """\
def model():
    table = partial(nn.init.normal_, std=DEFAULTS.init_std)
    if MODEL.enable_weight_tying:
        table = skip_param_init  # the output layer's
    config = @MODEL@.Config(
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
@PREDICTION@    )
    for converter in CONVERTERS:
        config = converter.build().convert(config)
    return config


"""
DATA = """\
class NoTokenizer(BaseTokenizer):
    \"\"\"Random tokens need none.  PLACEHOLDER: HuggingFaceTokenizer and hf_assets_path.\"\"\"

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
    \"\"\"MOCK DATA, nothing to learn.  PLACEHOLDER: HuggingFaceTextDataLoader, or your own.\"\"\"

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


"""
CONFIG = """\
def config():
    return Trainer.Config(
        model_spec=ModelSpec(
            name="@PACKAGE@",
            flavor="planned",
            model=model(),
            parallelize_fn=@PARALLELIZE@,
            pipelining_fn=pipeline_llm,
            post_optimizer_build_fn=@HOOK@,
            state_dict_adapter=None,  # checkpoints stay in torch's own format
        ),
        hf_assets_path=".",
        tokenizer=NoTokenizer.Config(),
        dataloader=RandomTokens.Config(vocab_size=MODEL.vocab_size),
        loss=@LOSS@,
        metrics=MetricsProcessor.Config(log_freq=1),  # time and memory of every step
        optimizer=OptimizersContainer.Config(
            param_groups=[
                ParamGroupConfig(
                    pattern=".*",
                    optimizer_name="AdamW",
                    optimizer_kwargs={
                        @LR@
                        "betas": (0.9, 0.95),
                        "weight_decay": 0.1,
                    },
                )
            ],
@IMPLEMENTATION@
        ),
@CHECKPOINT@
        training=TrainingConfig(
@TRAINING@
        ),
        parallelism=ParallelismConfig(
@PARALLELISM@
        ),
        compile=CompileConfig(
@COMPILE@
        ),
    )
"""
