#include "models/layers.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/error.h"
#include "core/ops/activation.h"
#include "core/ops/attention.h"
#include "core/ops/embedding.h"
#include "core/ops/linear.h"
#include "core/ops/norm.h"

namespace mantissa {
namespace {

constexpr std::string_view kDown = "lora_a", kUp = "lora_b";

bool fits(const std::string& pattern, std::string_view path) {
  return fnmatch(pattern.c_str(), std::string(path).c_str(), 0) == 0;
}

Init normal(float stddev) { return {Init::Kind::kNormal, stddev}; }

// GPT-2 scales the projections that add to the residual stream by 1 / sqrt(number of additions).
float residual_stddev(const ModelConfig& config) {
  return config.init_stddev / std::sqrt(2.0f * static_cast<float>(config.layers));
}

// Registers a linear layer of a block: a normal weight, a bias of zeros if there is one, and adapters.
LinearParameters add_linear(ParameterSet& parameters, const ModelConfig& config, const std::string& path,
                            int64_t inputs, int64_t outputs, LinearBias bias, float stddev) {
  LinearParameters result;
  result.weight = &parameters.add(path + ".weight", {outputs, inputs}, normal(stddev));
  if (config.resolved(bias)) result.bias = &parameters.add(path + ".bias", {outputs}, {Init::Kind::kZeros});
  result.adapters = {parameters, path, inputs, projections_of(config, path), config.lora};
  return result;
}

// x (R, K) of `samples` sequences.
Var run_linear(Tape& tape, std::string_view name, Var x, const LinearParameters& parameters, int64_t samples = 1) {
  const Tape::LayerGuard guard(tape, name);
  if (parameters.adapters.empty()) return linear(tape, std::move(x), *parameters.weight, parameters.bias);
  Var y = linear(tape, x, *parameters.weight, parameters.bias);
  return parameters.adapters.add_to(tape, std::move(y), x, samples);
}

// The dtype in which the linear layer `name` computes.
DType dtype_of(Tape& tape, std::string_view name, DType x, const LinearParameters& parameters) {
  const Tape::LayerGuard guard(tape, name);
  return linear_dtype(tape, x, *parameters.weight);
}

// Whether the linear layer `name` rounds the operands of its products.
bool rounds_operands(Tape& tape, std::string_view name) {
  const Tape::LayerGuard guard(tape, name);
  return tape.linear_formats().any();
}

}  // namespace

DType linear_input_dtype(Tape& tape, std::string_view path) {
  const Tape::LayerGuard guard(tape, path);
  return tape.compute_dtype(Op::kLinear, DType::kF32, DType::kF32);
}

Norm::Norm(ParameterSet& parameters, const std::string& path, const ModelConfig& config)
    : kind_(config.norm), epsilon_(config.norm_epsilon) {
  weight_ = &parameters.add(path + ".weight", {config.width}, {Init::Kind::kOnes});
  if (config.bias && kind_ == NormKind::kLayerNorm) {
    bias_ = &parameters.add(path + ".bias", {config.width}, {Init::Kind::kZeros});
  }
}

NormedSum Norm::forward(Tape& tape, DeferredSum x, DType out) const {
  if (kind_ == NormKind::kRmsNorm) return add_rms_norm(tape, std::move(x), *weight_, epsilon_, out);
  return add_layer_norm(tape, std::move(x), *weight_, bias_, epsilon_, out);
}

SelfAttention::SelfAttention(ParameterSet& parameters, const std::string& path, const ModelConfig& config, Mask mask,
                             int64_t block)
    : config_(config),
      shape_{.num_heads = config.heads,
             .num_kv_heads = config.resolved_kv_heads(),
             .head_dim = config.resolved_head_dim(),
             .scale = config.attention_scale,
             .mask = mask,
             .window = config.window_of(block)},
      rotates_(config.position == Position::kRope && config.rope_blocks.contains(block)) {
  qkv_ = add_linear(parameters, config, path + ".qkv", config.width, shape_.qkv_row(), config.qkv_bias,
                    config.init_stddev);
  if (config.qk_norm) {
    query_norm_ = &parameters.add(path + ".query_norm.weight", {shape_.head_dim}, {Init::Kind::kOnes});
    key_norm_ = &parameters.add(path + ".key_norm.weight", {shape_.head_dim}, {Init::Kind::kOnes});
  }
  out_ = add_linear(parameters, config, path + ".out", shape_.out_row(), config.width, config.out_bias,
                    residual_stddev(config));
}

Var SelfAttention::forward(Tape& tape, Var x, int64_t sequence_length) const {
  const Tape::LayerGuard guard(tape, "attention");
  AttentionShape shape = shape_;
  shape.sequence_length = sequence_length;
  const int64_t samples = x.value.dim(0) / sequence_length;
  Var qkv = run_linear(tape, "qkv", std::move(x), qkv_, samples);
  if (query_norm_ != nullptr) {
    qkv = head_norm(tape, std::move(qkv), shape, *query_norm_, *key_norm_, config_.norm_epsilon);
  }
  if (rotates_) qkv = rope(tape, std::move(qkv), shape, config_.rope, tape.document_starts());
  Var mixed = attention(tape, std::move(qkv), shape, tape.document_starts());
  Var out = run_linear(tape, "out", std::move(mixed), out_, samples);
  return dropout(tape, std::move(out), config_.dropout, samples);
}

FeedForward::FeedForward(ParameterSet& parameters, const std::string& path, const ModelConfig& config)
    : config_(config) {
  const int64_t hidden = config.resolved_mlp_width();
  const int64_t outputs = is_gated(config.activation) ? 2 * hidden : hidden;
  up_ = add_linear(parameters, config, path + ".up", config.width, outputs, config.mlp_bias, config.init_stddev);
  down_ =
      add_linear(parameters, config, path + ".down", hidden, config.width, config.mlp_bias, residual_stddev(config));
}

Var FeedForward::forward(Tape& tape, Var x, int64_t samples) const {
  const Tape::LayerGuard guard(tape, "mlp");
  const bool is_fused = gelu_form(config_.activation) && up_.adapters.empty() && down_.adapters.empty();
  Var out = is_fused ? gelu_between(tape, std::move(x)) : activation_between(tape, std::move(x), samples);
  return dropout(tape, std::move(out), config_.dropout, samples);
}

Var FeedForward::activation_between(Tape& tape, Var x, int64_t samples) const {
  Var hidden = activate(tape, run_linear(tape, "up", std::move(x), up_, samples), config_.activation);
  return run_linear(tape, "down", std::move(hidden), down_, samples);
}

Var FeedForward::gelu_between(Tape& tape, Var x) const {
  const GeluForm form = *gelu_form(config_.activation);
  const DType up = dtype_of(tape, "up", x.value.dtype(), up_), hidden = tape.compute_dtype(Op::kGelu, up, up);
  if (tape.shows_every_op() || rounds_operands(tape, "up") || rounds_operands(tape, "down") || hidden != up ||
      dtype_of(tape, "down", hidden, down_) != hidden) {
    return activation_between(tape, std::move(x), 1);  // without adapters
  }
  GeluOutput y;
  {
    const Tape::LayerGuard guard(tape, "up");
    y = linear_gelu(tape, std::move(x), *up_.weight, up_.bias, form);
  }
  const Tape::LayerGuard guard(tape, "down");
  return linear(tape, std::move(y), *down_.weight, down_.bias);
}

Embedding::Embedding(ParameterSet& parameters, const ModelConfig& config) : config_(config) {
  tokens_ = &parameters.add("token_embedding.weight", {config.vocab, config.width}, normal(config.init_stddev));
  tokens_->role = ParameterRole::kEmbedding;
  if (config.position == Position::kLearned) {
    positions_ =
        &parameters.add("position_embedding.weight", {config.context, config.width}, normal(config.init_stddev));
    positions_->role = ParameterRole::kEmbedding;
  }
}

Var Embedding::forward(Tape& tape, const Tensor& tokens, int64_t sequence_length) const {
  const Tape::LayerGuard guard(tape, "token_embedding");
  Var x = embedding(tape, tokens, sequence_length, *tokens_, positions_, tape.document_starts());
  return dropout(tape, std::move(x), config_.dropout, tokens.numel() / sequence_length);
}

Head::Head(ParameterSet& parameters, const ModelConfig& config, const Embedding& embedding) : config_(config) {
  if (config.tie_head) {
    weight_ = &embedding.token_table();
    weight_->consumer = "head";
  } else {
    weight_ = &parameters.add("head.weight", {config.vocab, config.width}, normal(config.init_stddev));
  }
}

Var Head::forward(Tape& tape, const Var& x) const { return run_linear(tape, "head", x, {weight_, nullptr}); }

LossOutput Head::loss(Tape& tape, const Var& x, const Tensor& targets) const {
  // 128 MiB in 16 bits, 256 in fp32. Each chunk reads the whole weight and updates its whole gradient, so smaller
  // chunks cost time: with 2^24, a step of 2 layers of width 384 and a vocabulary of 131072 took 1.25 times as long on
  // 2 CPU cores, and saved 190 MiB in fp32 next to 800 MiB of the weight, its gradient and the optimizer's state.
  constexpr int64_t kChunkLogits = int64_t{1} << 26, kRowGranule = 128;
  const int64_t vocab = weight_->shape[0];
  const bool is_small = x.value.dim(0) * vocab <= kChunkLogits;
  // Hooks see the product as an op of its own, at the price of its memory; check_outputs must fit in a step's.
  if (is_small || rounds_operands(tape, "head") || tape.options().after_op) {
    return cross_entropy(tape, forward(tape, x), targets, config_.logit_softcap);
  }
  const int64_t rows = std::max(kChunkLogits / vocab / kRowGranule * kRowGranule, kRowGranule);
  const Tape::LayerGuard guard(tape, "head");
  return linear_cross_entropy(tape, x, *weight_, targets, rows, config_.logit_softcap);
}

std::vector<Projection> projections_of(const ModelConfig& config, std::string_view layer) {
  const int64_t dim = config.resolved_head_dim(), keys = config.resolved_kv_heads() * dim,
                hidden = config.resolved_mlp_width();
  if (layer.ends_with(".attention.qkv")) return {{"q_proj", config.heads * dim}, {"k_proj", keys}, {"v_proj", keys}};
  if (layer.ends_with(".attention.out")) return {{"o_proj", config.width}};
  if (layer.ends_with(".mlp.down")) return {{"down_proj", config.width}};
  MANTISSA_CHECK(layer.ends_with(".mlp.up"), "[projections_of] '{}' is no linear layer of a block", layer);
  if (is_gated(config.activation)) return {{"gate_proj", hidden}, {"up_proj", hidden}};
  return {{"up_proj", hidden}};
}

bool LoraConfig::selects(std::string_view pattern, std::string_view layer, std::string_view projection) {
  const std::string glob(pattern);
  const std::string beside = std::string(layer.substr(0, layer.rfind('.') + 1)).append(projection);
  for (const std::string& path : {std::string(layer), beside}) {
    // The whole path, or its end after a dot.
    if (fits(glob, path) || fits("*." + glob, path)) return true;
  }
  return false;
}

LoraAdapters::LoraAdapters(ParameterSet& parameters, const std::string& layer, int64_t inputs,
                           const std::vector<Projection>& projections, const LoraConfig& config)
    : dropout_(config.dropout) {
  int64_t outputs = 0;
  for (const Projection& projection : projections) outputs += projection.rows;
  int64_t row = 0;
  for (const Projection& projection : projections) {
    const int64_t first_row = row;
    row += projection.rows;
    const bool is_chosen = config.rank > 0 && std::ranges::any_of(config.targets, [&](const std::string& pattern) {
                             return LoraConfig::selects(pattern, layer, projection.name);
                           });
    if (!is_chosen) continue;
    const AdapterPlace place{layer, projection.name};
    const float bound = 1.0f / std::sqrt(static_cast<float>(inputs));
    Parameter& down = parameters.add(adapter_name(place, kDown), {config.rank, inputs}, {Init::Kind::kUniform, bound});
    Parameter& up = parameters.add(adapter_name(place, kUp), {projection.rows, config.rank}, {Init::Kind::kZeros});
    adapters_.push_back(
        {.name = projection.name,
         .matrices = {
             .down = &down, .up = &up, .first_row = first_row, .outputs = outputs, .factor = config.factor()}});
  }
}

Var LoraAdapters::add_to(Tape& tape, Var y, const Var& x, int64_t samples) const {
  for (const Adapter& adapter : adapters_) {
    const Tape::LayerGuard guard(tape, adapter.name);
    const Var change = low_rank(tape, dropout(tape, x, dropout_, samples), adapter.matrices);
    y = add(tape, y, change);
  }
  return y;
}

std::optional<AdapterPlace> adapter_place(const Parameter& parameter) {
  std::string_view path = parameter.layer();
  if (!path.ends_with(kDown) && !path.ends_with(kUp)) return std::nullopt;
  path = path.substr(0, path.rfind('.'));
  const size_t dot = path.rfind('.');
  return AdapterPlace{std::string(path.substr(0, dot)), std::string(path.substr(dot + 1))};
}

std::string adapter_name(const AdapterPlace& place, std::string_view matrix) {
  return fmt::format("{}.{}.{}.weight", place.layer, place.projection, matrix);
}

void freeze_base(ParameterSet& parameters, const LoraConfig& config) {
  std::set<std::string> used, layers;
  for (int i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = parameters[i];
    const auto place = adapter_place(parameter);
    parameter.is_trainable = place.has_value();
    if (!place) {
      const bool is_linear = parameter.shape.rank() == 2 && parameter.name.starts_with("blocks.");
      if (is_linear) layers.insert(std::string(parameter.layer()));
      continue;
    }
    for (const std::string& pattern : config.targets) {
      if (LoraConfig::selects(pattern, place->layer, place->projection)) used.insert(pattern);
    }
  }
  for (const std::string& pattern : config.targets) {
    if (used.contains(pattern)) continue;
    throw ConfigError(
        fmt::format("model.lora.targets: '{}' selects no linear layer in the blocks of this model; there are {}; parts "
                    "of them are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj",
                    pattern, fmt::join(layers, ", ")));
  }
  require<ConfigError>(!used.empty(), "model.lora.targets: it is empty; give '*' for all linear layers in the blocks");
}

}  // namespace mantissa
