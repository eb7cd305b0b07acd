# Megatron-Bridge (Megatron-Bridge main of August 2026 (067f987) on Megatron-Core 0.20)
# llama on 2x8xh100: 16 accelerators = tp 2 x cp 1 x pp 1 x dp 8
# train_batch 64 = micro_batch 1 * accumulation 8 * dp 8
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
"""The configuration of one plan; launch.sh starts it on every node."""

import os

import torch
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import CheckpointConfig
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.config import DistributedDataParallelConfig
from megatron.bridge.training.config import DistributedInitConfig
from megatron.bridge.training.config import LoggerConfig
from megatron.bridge.training.config import MockGPTDatasetConfig
from megatron.bridge.training.config import OptimizerConfig
from megatron.bridge.training.config import RNGConfig
from megatron.bridge.training.config import SchedulerConfig
from megatron.bridge.training.config import TokenizerConfig
from megatron.bridge.training.config import TrainingConfig
from megatron.bridge.training.config import ValidationConfig
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.training.pretrain import pretrain
from megatron.core.transformer.enums import AttnBackend

# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: model.layernorm_epsilon (1e-5)
#   rotary base: model.rotary_base (10000)
#   share of a head that rotates: model.rotary_percent (1.0)
#   rope scaling: model.rope_scaling, model.rope_scaling_factor: Llama 3's (none)
#   activation: model.activation_func (SwiGLU)
#   spread of the initial weights: model.init_method_std (0.02)
#   soft-capping of logits or scores, multipliers: no setting


def config() -> ConfigContainer:
    return ConfigContainer(
        model=GPTModelProvider(
            apply_rope_fusion=True,  # rotation in one kernel
            bias_activation_fusion=True,  # bias and activation in one kernel
            bias_dropout_fusion=True,  # bias, dropout and residual in one kernel
            persist_layer_norm=True,  # the norm kernel that stays resident
            masked_softmax_fusion=True,  # unfused attention: mask and softmax in one kernel
            attention_softmax_in_fp32=False,  # unfused attention: scores keep their type
            deallocate_pipeline_outputs=True,  # activations sent on are freed
            cross_entropy_loss_fusion=True,  # compiled kernels, one reduction less; fp32 exponentials stay, 4 bytes per logit
            num_layers=16,  # transformer layers
            hidden_size=512,  # width of the residual stream
            ffn_hidden_size=1792,  # width of the dense MLP
            num_attention_heads=16,  # query heads
            kv_channels=32,  # width of one head
            num_query_groups=4,  # key/value heads
            seq_length=2048,  # tokens of one sequence
            position_embedding_type="rope",  # how tokens know their place
            normalization="RMSNorm",  # norm of every layer
            gated_linear_unit=True,  # gated MLP: two input projections
            activation_func=torch.nn.functional.silu,  # gated MLP: two input projections
            share_embeddings_and_output_weights=False,  # the output layer has its own weights
            add_bias_linear=False,  # linear layers have no bias
            hidden_dropout=0.0,  # dropout of the residual stream
            attention_dropout=0.0,  # dropout of the scores
            tensor_model_parallel_size=2,  # ranks that split every layer
            pipeline_model_parallel_size=1,  # stages of layers
            context_parallel_size=1,  # ranks that split the sequence
            sequence_parallel=True,  # norms and dropout split over tp
            attention_backend=AttnBackend.flash,  # attention kernel
            cross_entropy_fusion_impl="native",  # te is disabled, as unstable
            vocab_size=32000,  # rows of the embedding, as planned
        ),
        train=TrainingConfig(
            micro_batch_size=1,  # sequences per pass and rank
            global_batch_size=64,  # = micro batch 1 x accumulation 8 x dp 8
            train_iters=int(os.environ.get("TRAIN_ITERS") or 20),  # a smoke run: iterations of 131072 tokens
        ),
        validation=ValidationConfig(
            eval_iters=0,  # no evaluation on mock data
        ),
        optimizer=OptimizerConfig(
            use_distributed_optimizer=True,  # optimizer states sharded (ZeRO 1)
            min_lr=0.0,  # PLACEHOLDER for the smoke run: set your own
            optimizer="adam",  # as planned
            lr=1.0e-4,  # PLACEHOLDER for the smoke run: set your own
        ),
        scheduler=SchedulerConfig(
            start_weight_decay=0.01,  # PLACEHOLDER for the smoke run: set your own
            end_weight_decay=0.01,  # PLACEHOLDER for the smoke run: set your own
        ),
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=True,  # optimizer states sharded (ZeRO 1)
            check_for_nan_in_grad=True,  # stops where gradients are no numbers
            overlap_grad_reduce=True,  # gradients reduced during the backward pass
            overlap_param_gather=True,  # weights gathered during the forward pass
        ),
        comm_overlap=CommOverlapConfig(
            overlap_grad_reduce=True,  # gradients reduced during the backward pass
            overlap_param_gather=True,  # weights gathered during the forward pass
            bucket_size=40000000,  # parameters of one message, as the plan counts
            tp_comm_overlap=False,  # tensor-parallel traffic blocks
        ),
        mixed_precision=MixedPrecisionConfig(
            grad_reduce_in_fp32=True,  # gradients kept and reduced in fp32
            bf16=True,  # bf16 weights
            params_dtype=torch.bfloat16,  # bf16 weights
            pipeline_dtype=torch.bfloat16,  # bf16 weights
        ),
        dist=DistributedInitConfig(),
        rng=RNGConfig(
            seed=1234,  # of weights and dropout
        ),
        dataset=MockGPTDatasetConfig(
            reset_position_ids=False,  # plain causal attention over the whole sequence
            reset_attention_mask=False,  # plain causal attention over the whole sequence
            eod_mask_loss=False,  # plain causal attention over the whole sequence
            random_seed=1234,  # of the mock data
            dataloader_type="single",  # one pass, in order
            seq_length=2048,  # tokens of one sequence
        ),
        tokenizer=TokenizerConfig(
            tokenizer_type="NullTokenizer",  # mock data needs no tokenizer
            vocab_size=32000,  # tokens of the vocabulary
        ),
        logger=LoggerConfig(
            log_interval=1,  # iteration time on every step
            log_throughput=True,  # TFLOP/s per accelerator
        ),
        checkpoint=CheckpointConfig(
            pretrained_checkpoint=os.environ.get("PRETRAINED_CHECKPOINT") or "pretrained",  # PLACEHOLDER: directory of the model that the adapters stand beside
        ),
        peft=LoRA(
            target_modules=["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],  # matrices with adapters
            dim=16,  # rank of the adapters
            alpha=32,  # PLACEHOLDER for the smoke run: set your own
            dropout=0.1,  # before the adapters
        ),
    )


if __name__ == "__main__":
    pretrain(config(), forward_step)
