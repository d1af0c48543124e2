// The sections `precision` and `test` of bind_config().
#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

namespace names = config_names;
using names::Name;

constexpr Name<WorkingWeights> kWeights[] = {{"low", WorkingWeights::kLow}, {"fp32", WorkingWeights::kFp32}};
constexpr Name<AmaxChoice> kAmaxChoice[] = {{"max", AmaxChoice::kMax}, {"most_recent", AmaxChoice::kMostRecent}};

constexpr Name<FaultKind> kFault[] = {
    {"inf", FaultKind::kInf},          {"nan", FaultKind::kNan},         {"flip", FaultKind::kFlip},
    {"sleep", FaultKind::kSleep},      {"stop", FaultKind::kStop},       {"deadlock", FaultKind::kDeadlock},
    {"kill", FaultKind::kKill},        {"exit", FaultKind::kExit},       {"short_write", FaultKind::kShortWrite},
    {"no_space", FaultKind::kNoSpace}, {"corrupt", FaultKind::kCorrupt}, {"read_error", FaultKind::kReadError}};
constexpr Name<FaultTarget> kTarget[] = {{"gradient", FaultTarget::kGradient},
                                         {"wire", FaultTarget::kWire},
                                         {"master", FaultTarget::kMaster},
                                         {"first_moment", FaultTarget::kFirstMoment},
                                         {"second_moment", FaultTarget::kSecondMoment},
                                         {"weight", FaultTarget::kWeight}};
constexpr Name<std::string_view> kPhase[] = {
    {"none", "none"},         {"data", "data"},     {"forward", "forward"},      {"backward", "backward"},
    {"reduce", "reduce"},     {"decide", "decide"}, {"update", "update"},        {"wait", "wait"},
    {"evaluate", "evaluate"}, {"sample", "sample"}, {"checkpoint", "checkpoint"}};
constexpr Name<FileOperation> kOperation[] = {{"none", FileOperation::kNone},    {"open", FileOperation::kOpen},
                                              {"read", FileOperation::kRead},    {"write", FileOperation::kWrite},
                                              {"sync", FileOperation::kSync},    {"close", FileOperation::kClose},
                                              {"rename", FileOperation::kRename}};
constexpr Name<InjectedValue> kInjected[] = {{"inf", InjectedValue::kInf}, {"nan", InjectedValue::kNan}};
constexpr Name<Pass> kInjectedPass[] = {{"forward", Pass::kForward}, {"backward", Pass::kBackward}};

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
  const auto get = [&target, none] { return word_of(target, none); };
  return parsed_field(target, "one of " + known, get, [none, parse](const std::string& text) -> std::optional<Target> {
    if (const auto value = parse(text)) return Target(*value);
    if (*none == 0 || text != none) return std::nullopt;
    return std::make_optional<Target>();
  });
}

std::string op_words() {
  std::string words;
  for (const OpEntry& op : kOps) words += (words.empty() ? "" : ", ") + std::string(op.name);
  return words;
}

void bind_precision_settings(ConfigVisitor& v, PrecisionConfig& c) {
  v.scalar("compute", choice_field(c.compute, names::kCompute));
  v.scalar("recipe", word_field(c.recipe, kRecipeNames, parse_recipe, "none"));
  v.scalar("pattern", choice_field(c.pattern, names::kPattern));
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

void bind_test(ConfigVisitor& v, TestConfig& c) {
  v.list("faults", list_field(c.faults, [](ConfigVisitor& w, Fault& fault) {
           w.scalar("step", integer_field<int64_t>(fault.step, 1));
           w.scalar("rank", integer_field(fault.rank, 0));
           w.scalar("kind", choice_field(fault.kind, kFault));
           w.scalar("target", choice_field(fault.target, kTarget));
           w.scalar("parameter", text_field(fault.parameter));
           w.scalar("element", integer_field<int64_t>(fault.element, 0));
           w.scalar("bit", integer_field(fault.bit, 0, 31));
           w.scalar("phase", choice_field(fault.phase, kPhase));
           w.scalar("operation", choice_field(fault.operation, kOperation));
           w.scalar("file", text_field(fault.file));
           w.scalar("seconds", real_field(fault.seconds, RealRange{.min = 0.0, .max = 1e6}));
           w.scalar("steps", integer_field<int64_t>(fault.steps, 1));
           w.scalar("code", integer_field(fault.code, 0, 255));
         }));
  v.section("random", [&] {
    v.scalar("seed", integer_field(c.random.seed));
    v.scalar("count", integer_field(c.random.count, 0, 10000));
    v.texts("kinds", c.random.kinds);
  });
  v.list("activations", list_field(c.activations, [](ConfigVisitor& w, ActivationInjection& fault) {
           w.scalar("step", integer_field<int64_t>(fault.step, 1));
           w.scalar("rank", integer_field(fault.rank, 0));
           w.scalar("layer", text_field(fault.layer));
           w.scalar("op", word_field(fault.op, op_words(), parse_op));
           w.scalar("pass", choice_field(fault.pass, kInjectedPass));
           w.scalar("value", choice_field(fault.value, kInjected));
         }));
}

std::optional<FaultKind> parse_fault_kind(std::string_view word) {
  const auto* const found = std::ranges::find(kFault, word, &Name<FaultKind>::first);
  return found == std::end(kFault) ? std::nullopt : std::optional(found->second);
}
std::string_view name(FaultKind kind) { return std::ranges::find(kFault, kind, &Name<FaultKind>::second)->first; }
std::string_view name(FaultTarget target) {
  return std::ranges::find(kTarget, target, &Name<FaultTarget>::second)->first;
}
std::string_view name(FileOperation operation) {
  return std::ranges::find(kOperation, operation, &Name<FileOperation>::second)->first;
}

}  // namespace mantissa
