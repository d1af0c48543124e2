#include "models/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/base/round_up.h"

namespace mantissa {
namespace {

std::map<std::string, ModelFactory>& factories() {
  static std::map<std::string, ModelFactory> instance;
  return instance;
}

}  // namespace

std::optional<BlockSelection> BlockSelection::parse(std::string_view text) {
  BlockSelection result;
  if (text == "all") return result;
  result.is_all_ = false;
  if (text == "none") return result;
  const auto read = [&text](int64_t& value) {
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
    return parsed.ec == std::errc() && value >= 0;
  };
  const auto skip = [&text](char c) {
    const bool is_there = text.starts_with(c);
    if (is_there) text.remove_prefix(1);
    return is_there;
  };
  do {
    int64_t first = 0, last = 0;
    if (!read(first)) return std::nullopt;
    last = first;
    if (skip('-') && (!read(last) || last < first)) return std::nullopt;
    if (!result.ranges_.empty() && first <= result.ranges_.back().second) return std::nullopt;
    result.ranges_.emplace_back(first, last);
  } while (skip(','));
  return text.empty() ? std::optional(result) : std::nullopt;
}

BlockSelection BlockSelection::of(const std::vector<bool>& chosen) {
  BlockSelection result;
  if (std::ranges::count(chosen, false) == 0) return result;
  result.is_all_ = false;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto block = static_cast<int64_t>(i);
    if (!chosen[i]) continue;
    if (i > 0 && chosen[i - 1]) {
      result.ranges_.back().second = block;
    } else {
      result.ranges_.emplace_back(block, block);
    }
  }
  return result;
}

bool BlockSelection::contains(int64_t block) const {
  return is_all_ || std::ranges::any_of(
                        ranges_, [block](const auto& range) { return block >= range.first && block <= range.second; });
}

std::string BlockSelection::text() const {
  if (is_all_) return "all";
  if (ranges_.empty()) return "none";
  std::string text;
  for (const auto& [first, last] : ranges_) {
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return text;
}

double training_flops_per_token(const ModelConfig& config) {
  const double width = static_cast<double>(config.width), mlp = static_cast<double>(config.resolved_mlp_width());
  const double mixed = static_cast<double>(config.heads * config.resolved_head_dim());
  const double packed_qkv =
      static_cast<double>((config.heads + 2 * config.resolved_kv_heads()) * config.resolved_head_dim());
  const double mlp_matrices = is_gated(config.activation) ? 3 : 2;
  const double block = width * packed_qkv + mixed * width + mlp_matrices * width * mlp;
  const double matrix_parameters =
      static_cast<double>(config.layers) * block + width * static_cast<double>(config.vocab);
  int64_t keys = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    const int64_t window = config.window_of(i);
    keys += window > 0 ? std::min(window, config.context) : config.context;
  }
  return 6 * matrix_parameters + 12 * static_cast<double>(keys) * mixed;
}

bool register_model(const std::string& name, ModelFactory factory) {
  return factories().emplace(name, std::move(factory)).second;
}

std::unique_ptr<Model> create_model(const ModelConfig& config, ParameterSet& parameters) {
  const auto found = factories().find(config.name);
  require<ConfigError>(found != factories().end(), "model.name: expected one of {}, got '{}'",
                       fmt::join(model_names(), ", "), config.name);
  return found->second(config, parameters);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

void require_causal(const Model& model, const ModelConfig& config) {
  require<ConfigError>(model.objective() == Objective::kNextToken,
                       "model '{}' predicts masked tokens: it cannot continue a text", config.name);
}

int64_t padded_length(int64_t length, int64_t context) {
  constexpr int64_t kStep = 64;
  return std::min(round_up(length, kStep), context);
}

Tensor continued_logits(Tape& tape, Model& model, const Tensor& tokens) {
  return tape.cast(model.logits(tape, tokens, 1).value, DType::kF32);
}

Tensor next_logits(Tape& tape, Model& model, const Tensor& tokens, int64_t length, const ModelConfig& config) {
  const int64_t padded = padded_length(length, config.context);
  const Tensor hidden = model.hidden(tape, tokens.slice(0, padded), padded).value;  // (padded, width)
  const Var last{hidden.slice((length - 1) * config.width, config.width).view(Shape{1, config.width})};
  return tape.cast(model.head(tape, last).value, DType::kF32).view(Shape{config.vocab});
}

}  // namespace mantissa
