// Names that users of other programs try: messages about unknown keys give ours.
#include "tools/config/config_binding.h"

namespace mantissa {

ConfigSynonyms config_synonyms() {
  return {{"learning_rate", "optimizer.lr"},
          {"max_lr", "optimizer.lr"},
          {"min_lr", "optimizer.final_lr"},
          {"lr_schedule", "optimizer.schedule"},
          {"lr_scheduler", "optimizer.schedule"},
          {"warmup_iters", "optimizer.warmup_steps"},
          {"eps", "optimizer.epsilon"},
          {"wd", "optimizer.weight_decay"},
          {"grad_clip", "optimizer.clip.max_norm"},
          {"clip_grad", "optimizer.clip.max_norm"},
          {"n_layer", "model.layers"},
          {"num_layers", "model.layers"},
          {"depth", "model.layers"},
          {"n_head", "model.heads"},
          {"num_heads", "model.heads"},
          {"n_embd", "model.width"},
          {"d_model", "model.width"},
          {"hidden_size", "model.width"},
          {"d_ff", "model.mlp_width"},
          {"block_size", "model.context"},
          {"seq_len", "model.context"},
          {"seq_length", "model.context"},
          {"vocab_size", "model.vocab"},
          {"init_std", "model.init_stddev"},
          {"tie_embeddings", "model.tie_head"},
          {"max_iters", "train.steps"},
          {"max_steps", "train.steps"},
          {"batch_size", "train.global_batch"},
          {"out_dir", "train.run_dir"},
          {"rules[].dtype", "format"},
          {"rules[].compute", "format"},
          {"dtype", "precision.compute"},
          {"tf32", "precision.fp32_products"},
          {"sharded", "optimizer.sharding"},
          {"loss_scale", "scaler.init_scale"},
          {"bucket_size_mb", "comm.bucket_mib"},
          {"save_interval", "checkpoint.interval"}};
}

}  // namespace mantissa
