// The section `precision` of bind_config().
#include <fmt/core.h>

#include <optional>

#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

constexpr config_names::Name<WorkingWeights> kWeights[] = {{"low", WorkingWeights::kLow},
                                                           {"fp32", WorkingWeights::kFp32}};
constexpr config_names::Name<AmaxChoice> kAmaxChoice[] = {{"max", AmaxChoice::kMax},
                                                          {"most_recent", AmaxChoice::kMostRecent}};

template <typename T>
std::string word_of(const T& value, const char*) {
  return std::string(name(value));
}
template <typename T>
std::string word_of(const std::optional<T>& value, const char* none) {
  return value ? std::string(name(*value)) : none;
}

// A word that `parse` knows. `none`: the word for nothing, if there is one.
template <typename Target, typename Parse>
ScalarField word_field(Target& target, const std::string& words, Parse parse, const char* none = "") {
  const std::string known = std::string(none) + (*none == 0 ? "" : ", ") + words;
  return {.expected = "one of " + known,
          .get = [&target, none] { return word_of(target, none); },
          .set =
              [&target, none, parse](const ConfigNode& node) {
                if (node.kind != ConfigNode::Kind::kScalar) return false;
                const auto value = parse(node.text);
                const bool is_none = *none != 0 && node.text == none;
                if (value) target = *value;
                if (is_none) target = {};
                return value || is_none;
              }};
}

std::string op_words() {
  std::string words;
  for (const OpEntry& op : kOps) words += (words.empty() ? "" : ", ") + std::string(op.name);
  return words;
}

void bind_precision_settings(ConfigVisitor& v, PrecisionConfig& c) {
  v.scalar("compute", choice_field(c.compute, config_names::kCompute));
  v.scalar("recipe", word_field(c.recipe, kRecipeNames, parse_recipe, "none"));
  v.scalar("pattern", choice_field(c.pattern, config_names::kPattern));
  v.scalar("pattern_blocks", integer_field<int64_t>(c.pattern_blocks, 1, 10000));
  v.scalar("fp32_products", word_field(c.fp32_products, "fp32, tf32, bf16x3, bf16x6", parse_fp32_products));
  v.list("rules", list_field(c.rules, [](ConfigVisitor& w, PrecisionRule& rule) {
           w.scalar("match", text_field(rule.match));
           w.scalar("op", word_field(rule.op, op_words(), parse_op, "any"));
           w.scalar("product", word_field(rule.product, "fprop, dgrad, wgrad", parse_product, "any"));
           w.scalar("role", word_field(rule.role, "activation, weight, gradient", parse_role, "any"));
           w.scalar("format",
                    word_field(rule.format, fmt::format("{}, {}", kPlainFormatNames, kRecipeNames), parse_rule_format));
         }));
  v.scalar("weights", choice_field(c.weights, kWeights));
  v.section("delayed", [&] {
    v.scalar("history", integer_field(c.delayed.history, 1, 1 << 16));
    v.scalar("amax", choice_field(c.delayed.choice, kAmaxChoice));
    v.scalar("margin", integer_field(c.delayed.margin, 0, 32));
  });
}

void bind_adaptive(ConfigVisitor& v, PrecisionConfig& precision, AdaptiveConfig& c) {
  v.list("levels", list_field(
                       c.levels, [](ConfigVisitor& w, PrecisionConfig& level) { bind_precision_settings(w, level); },
                       [&precision] { return precision; }));
  AdaptiveOptions& o = c.options;
  const RealRange share = {.min = 0.0, .max = 1.0};
  v.scalar("start", integer_field(o.start, 0, 1000));
  v.scalar("min_steps", integer_field<int64_t>(o.min_steps, 1, kMaxSteps));
  v.scalar("stable_steps", integer_field<int64_t>(o.stable_steps, 0, kMaxSteps));
  v.scalar("check_interval", integer_field<int64_t>(o.check_interval, 1, kMaxSteps));
  v.scalar("warmup", integer_field(o.warmup, 1, 1 << 16));
  v.scalar("rollback", bool_field(o.rollback));
  v.scalar("loss_rise", real_field(o.loss_rise, RealRange::at_least_zero()));
  v.scalar("norm_factor", real_field(o.norm_factor, RealRange::at_least_zero()));
  v.scalar("skipped_share", real_field(o.skipped_share, share));
  v.scalar("underflow_share", real_field(o.underflow_share, share));
  v.scalar("stalled_evaluations", integer_field(o.stalled_evaluations, 0));
  v.scalar("min_improvement", real_field(o.min_improvement, RealRange::at_least_zero()));
  v.scalar("curvature", real_field(o.curvature, RealRange::at_least_zero()));
  v.scalar("gradient_noise", real_field(o.gradient_noise, RealRange::at_least_zero()));
  v.scalar("loss_roughness", real_field(o.loss_roughness, RealRange::at_least_zero()));
}

}  // namespace

ScalarField op_field(Op& op) { return word_field(op, op_words(), parse_op); }

// Phases and levels bind the settings that they change separately.
void bind_precision(ConfigVisitor& v, Config& c) {
  bind_precision_settings(v, c.precision);
  v.section("fallback", [&] {
    v.scalar("overflows", integer_field(c.precision_fallback.overflows, 0));
    v.scalar("window", integer_field<int64_t>(c.precision_fallback.window, 1, kMaxSteps));
    v.scalar("clean_steps", integer_field<int64_t>(c.precision_fallback.clean_steps, 1, kMaxSteps));
  });
  v.list("schedule", list_field(
                         c.precision_schedule,
                         [](ConfigVisitor& w, PrecisionPhase& phase) {
                           w.scalar("after_step", integer_field<int64_t>(phase.after_step, 0, kMaxSteps));
                           w.scalar("after_tokens", integer_field<int64_t>(phase.after_tokens, 0));
                           bind_precision_settings(w, phase.precision);
                         },
                         [&c] { return PrecisionPhase{.precision = c.precision}; }));
  v.section("adaptive", [&] { bind_adaptive(v, c.precision, c.precision_adaptive); });
}

}  // namespace mantissa
