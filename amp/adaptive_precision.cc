#include "amp/adaptive_precision.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr int kMaxDoublings = 6;

constexpr const char* kLoss = "loss";
constexpr const char* kNorm = "gradient norm";
constexpr const char* kSkips = "skipped steps";
constexpr const char* kValidation = "validation";
constexpr const char* kRoughness = "loss roughness";

struct SignalText {
  const char *signal, *finite, *not_finite;
};
constexpr SignalText kTexts[] = {
    {kLoss, "the loss was {:.4g} nats above its recent median", "the loss was not finite"},
    {kNorm, "the gradient norm was {:.4g} times its recent quantile", "the gradient norm was not finite"},
    {kSkips, "a share of {:.4g} of recent steps was skipped", "a loss or gradient was not finite"},
    {"underflow", "a share of {:.4g} of gradients underflowed", nullptr},
    {kValidation, "the validation loss did not improve, evaluations in a row: {:g}",
     "the validation loss was not finite"},
    {"curvature", "the curvature along the update was {:.4g}", nullptr},
    {"gradient noise", "the noise between micro-batches was {:.4g} of the squared gradient norm",
     "the gradient noise was not finite"},
    {kRoughness, "the last losses were {:.4g} times as rough as the window", nullptr}};

// By nearest rank: one of the values.
double quantile(std::deque<double> values, double q) {
  const auto rank = static_cast<int64_t>(std::ceil(q * static_cast<double>(values.size()))) - 1;
  const auto place = values.begin() + std::clamp<int64_t>(rank, 0, static_cast<int64_t>(values.size()) - 1);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

void remember(std::deque<double>& values, double value, int window) {
  if (!std::isfinite(value)) return;  // no reference for others
  values.push_back(value);
  if (static_cast<int>(values.size()) > window) values.pop_front();
}

// The compute dtype of an op whose format is a dtype or `low`. Other ops follow their inputs.
DType dtype_of(const Precision& precision, Op op) { return compute_dtype(precision, {}, op, DType::kF32, DType::kF32); }

bool rounds(const Precision& precision, Op op) { return op == Op::kLinear && precision.linear.any(); }

}  // namespace

bool AdaptiveOptions::watches_any() const {
  return loss_rise > 0.0 || norm_factor > 0.0 || skipped_share > 0.0 || underflow_share > 0.0 ||
         stalled_evaluations > 0 || curvature > 0.0 || gradient_noise > 0.0 || loss_roughness > 0.0;
}

double gradient_noise_of(double sum_of_squared_norms, double squared_norm, int64_t micro_batches) {
  const auto n = static_cast<double>(micro_batches);
  if (micro_batches < 2 || !(squared_norm > 0.0) || !std::isfinite(squared_norm)) return std::nan("");
  return (n * sum_of_squared_norms - squared_norm) / ((n - 1.0) * squared_norm);
}

double roughness_of(std::span<const double> losses) {
  double squares = 0.0;
  for (size_t i = 1; i < losses.size(); ++i) squares += (losses[i] - losses[i - 1]) * (losses[i] - losses[i - 1]);
  return std::sqrt(squares / (2.0 * static_cast<double>(losses.size() - 1)));
}

double curvature_of(double loss_before, double loss_after, double gradient_dot_update) {
  if (!(gradient_dot_update < 0.0)) return std::numeric_limits<double>::quiet_NaN();
  return 2.0 * (loss_after - loss_before - gradient_dot_update) / -gradient_dot_update;
}

void validate(const AdaptiveOptions& options, int levels) {
  const auto require = [](bool holds, const char* name, auto value, const char* expected) {
    if (!holds) throw ConfigError(fmt::format("[adaptive_precision] {} = {}: expected {}", name, value, expected));
  };
  require(levels >= 2, "levels", levels, "at least two, the one with the most precision first");
  require(options.start >= 0 && options.start < levels, "start", options.start, "the number of a level, from 0");
  require(options.max_switches > 0, "max_switches", options.max_switches, "a number above 0");
  require(options.min_steps > 0, "min_steps", options.min_steps, "a number above 0");
  require(options.stable_steps >= 0, "stable_steps", options.stable_steps, "a number of steps, or 0 to never go down");
  require(options.check_interval > 0, "check_interval", options.check_interval, "a number above 0");
  require(options.band > 0.0 && options.band <= 1.0, "band", options.band, "a share above 0 and up to 1");
  require(options.window > 0, "window", options.window, "a number above 0");
  require(options.warmup > 0 && options.warmup <= options.window, "warmup", options.warmup,
          "a number above 0 and up to the window");
  require(options.norm_factor == 0.0 || options.norm_factor > 1.0, "norm_factor", options.norm_factor,
          "a number above 1, or 0 for off");
  require(options.norm_quantile > 0.0 && options.norm_quantile <= 1.0, "norm_quantile", options.norm_quantile,
          "a number above 0 and up to 1");
  require(options.skipped_share <= 1.0, "skipped_share", options.skipped_share, "a share of at most 1");
  require(options.underflow_share <= 1.0, "underflow_share", options.underflow_share, "a share of at most 1");
  require(options.curvature_interval > 0, "curvature_interval", options.curvature_interval, "a number above 0");
  require(options.noise_interval > 0, "noise_interval", options.noise_interval, "a number above 0");
  require(options.loss_roughness == 0.0 || options.loss_roughness > 1.0, "loss_roughness", options.loss_roughness,
          "a number above 1, or 0 for off");
  require(options.loss_roughness == 0.0 || (options.warmup >= 3 && 2 * options.warmup <= options.window), "warmup",
          options.warmup, "at least 3 and at most half of the window, for loss_roughness");
  require(options.watches_any(), "signals", "none", "at least one threshold above 0");
}

std::string describe(const BadSignal& bad) {
  const auto* const text = std::ranges::find(std::begin(kTexts), std::end(kTexts) - 1, bad.signal, &SignalText::signal);
  const bool has_value = std::isfinite(bad.value) || text->not_finite == nullptr;
  return fmt::format("{} (step {}; threshold {:g})",
                     has_value ? fmt::format(fmt::runtime(text->finite), bad.value) : text->not_finite, bad.step,
                     bad.threshold);
}

AdaptivePrecision::AdaptivePrecision(const AdaptiveOptions& options, int levels, int64_t steps)
    : AdaptivePrecision(options, levels, State{.level = options.start, .highest = options.start, .uneasy_at = steps}) {}

AdaptivePrecision::AdaptivePrecision(const AdaptiveOptions& options, int levels, State state)
    : options_(options), levels_(levels), state_(std::move(state)) {
  state_.level = std::min(state_.level, levels - 1);  // another ladder
  const std::pair<const char*, double> seldom[] = {{kUnderflow, options.underflow_share},
                                                   {kValidation, options.stalled_evaluations},
                                                   {kCurvature, options.curvature},
                                                   {kNoise, options.gradient_noise}};
  for (const auto& [signal, threshold] : seldom) {
    if (threshold == 0.0) state_.uneasy.erase(signal);  // no measurement would
  }
}

void AdaptivePrecision::go_on_as(const AdaptivePrecision& now, int64_t steps) {
  const std::optional<double> best = state_.best_validation;
  state_ = now.state_;
  state_.best_validation = best;
  state_.losses.clear();
  state_.norms.clear();
  state_.skips.clear();
  state_.stalled = 0;
  state_.bad.clear();
  state_.uneasy.clear();
  state_.changed_at = state_.uneasy_at = steps;
}

void AdaptivePrecision::compare(const char* signal, int64_t step, double value, double threshold, double ease) {
  if (!(value < ease)) state_.uneasy_at = step;
  if (value < threshold) return;
  const BadSignal bad{.signal = signal, .step = step, .value = value, .threshold = threshold};
  const auto known = std::ranges::find(state_.bad, signal, &BadSignal::signal);
  if (known == state_.bad.end()) {
    state_.bad.push_back(bad);
  } else if (!std::isfinite(value) && std::isfinite(known->value)) {
    *known = bad;  // keeps the first of each kind, but a non-finite value replaces a finite value
  }
}

void AdaptivePrecision::compare_seldom(const char* signal, int64_t step, double value, double threshold) {
  if (threshold == 0.0) return;
  const double ease = options_.band * threshold;
  if (value < ease) {
    state_.uneasy.erase(signal);
  } else {
    state_.uneasy.insert(signal);
  }
  compare(signal, step, value, threshold, ease);
}

void AdaptivePrecision::applied(int64_t step, double loss, double norm) {
  // Before enough values are known, only a value that is not finite is bad.
  const auto over = [this](const std::deque<double>& values, double value, double q, auto relate) {
    if (static_cast<int>(values.size()) >= options_.warmup) return relate(value, quantile(values, q));
    return std::isfinite(value) ? 0.0 : value;
  };
  if (options_.loss_rise > 0.0) {
    compare(kLoss, step, over(state_.losses, loss, 0.5, std::minus<>()), options_.loss_rise,
            options_.band * options_.loss_rise);
  }
  if (options_.loss_rise > 0.0 || options_.loss_roughness > 0.0) remember(state_.losses, loss, options_.window);
  if (const auto roughness = relative_roughness()) {
    compare(kRoughness, step, *roughness, options_.loss_roughness,
            1.0 + options_.band * (options_.loss_roughness - 1.0));
  }
  if (options_.norm_factor > 0.0) {
    // A usual norm is about 1 of these: the band is a part of the rest.
    compare(kNorm, step, over(state_.norms, norm, options_.norm_quantile, std::divides<>()), options_.norm_factor,
            1.0 + options_.band * (options_.norm_factor - 1.0));
    remember(state_.norms, norm, options_.window);
  }
}

void AdaptivePrecision::skipped(int64_t step, double loss, double norm) {
  const auto examine = [&](const char* signal, double value, double threshold) {
    if (threshold > 0.0 && !std::isfinite(value)) compare(signal, step, std::nan(""), threshold, threshold);
  };
  examine(kLoss, loss, options_.loss_rise);
  examine(kNorm, norm, options_.norm_factor);
  if (options_.skipped_share == 0.0) return;
  std::erase_if(state_.skips, [&](int64_t before) { return before <= step - options_.window; });
  state_.skips.push_back(step);
  // Where one step is enough, it does not wait for min_steps: faults would end the run first.
  const bool goes_at_once =
      options_.skipped_share * options_.window <= 1.0 && !(std::isfinite(loss) && std::isfinite(norm));
  const double share = static_cast<double>(state_.skips.size()) / options_.window;
  compare(kSkips, step, goes_at_once ? std::nan("") : share, options_.skipped_share,
          options_.band * options_.skipped_share);
}

void AdaptivePrecision::evaluated(int64_t step, double loss) {
  if (options_.stalled_evaluations == 0) return;
  const bool better = !state_.best_validation || loss < *state_.best_validation - options_.min_improvement;
  state_.stalled = better ? 0 : state_.stalled + 1;
  if (std::isfinite(loss) && better) state_.best_validation = loss;
  // A loss that is not finite is bad at once.
  const double value = std::isfinite(loss) ? state_.stalled : std::numeric_limits<double>::quiet_NaN();
  compare_seldom(kValidation, step, value, options_.stalled_evaluations);
}

std::optional<double> AdaptivePrecision::relative_roughness() const {
  const auto recent = static_cast<size_t>(options_.warmup);
  if (options_.loss_roughness == 0.0 || state_.losses.size() < 2 * recent) return std::nullopt;
  const std::vector<double> losses(state_.losses.begin(), state_.losses.end());
  const std::span<const double> all(losses);
  const double before = roughness_of(all.first(all.size() - recent));
  return before > 0.0 ? std::optional(roughness_of(all.last(recent)) / before) : std::nullopt;
}

bool AdaptivePrecision::is_steady(int64_t step) const {
  const int64_t since = std::max(state_.uneasy_at, state_.changed_at);
  return options_.stable_steps > 0 && step - since >= options_.stable_steps << std::min(state_.returns, kMaxDoublings);
}

AdaptivePrecision::Switch AdaptivePrecision::go_to(int level, int64_t step) {
  Switch change{.from = state_.level, .to = level};
  const bool up = level < state_.level;
  if (up) {
    change.causes = state_.bad;
    // Bad steps are no reference for better ones.
    state_.losses.clear();
    state_.norms.clear();
    state_.raised = true;
  } else {
    change.steady_steps = step - std::max<int64_t>(state_.uneasy_at, std::max<int64_t>(state_.changed_at, 0));
    if (state_.raised) ++state_.returns;
  }
  state_.skips.clear();
  state_.stalled = 0;
  state_.bad.clear();
  state_.uneasy.clear();
  state_.level = level;
  state_.highest = std::min(state_.highest, level);
  state_.changed_at = step;
  ++state_.switches;
  return change;
}

std::optional<AdaptivePrecision::Switch> AdaptivePrecision::decide(int64_t step) {
  const bool is_last = state_.switches + 1 == options_.max_switches;
  if (!state_.bad.empty()) {
    if (state_.level == 0 || state_.switches == options_.max_switches) {
      state_.bad.clear();  // no level is left
      return std::nullopt;
    }
    const bool can_wait =
        std::ranges::all_of(state_.bad, [](const BadSignal& bad) { return std::isfinite(bad.value); });
    if (can_wait && !may_switch(step)) return std::nullopt;
    const int above = state_.bad.size() > 1 ? 0 : state_.level - 1;
    return go_to(is_last ? std::min(above, state_.highest) : above, step);
  }
  if (is_last || state_.level + 1 == levels_ || !may_switch(step) || !is_steady(step)) return std::nullopt;
  return go_to(state_.level + 1, step);
}

int lift_room(const Precision& precision, Op op) {
  const DType dtype = dtype_of(precision, op);
  return (rounds(precision, op) ? 1 : 0) + (dtype == DType::kF16 ? 2 : dtype == DType::kBF16 ? 1 : 0);
}

std::string describe_lift(const Precision& precision, Op op) {
  const DType dtype = dtype_of(precision, op);
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles) {
      const auto format = precision.linear.at(product, role);
      if (format && rounds(precision, op)) return fmt::format("{} in {}", name(*format), dtype);
    }
  }
  return fmt::format("{}", dtype);
}

std::vector<PrecisionRule> lift_rules(const std::string& layer, Op op, const Precision& precision, int levels) {
  DType dtype = dtype_of(precision, op);
  for (int level = rounds(precision, op) ? 1 : 0; level < levels; ++level) {
    dtype = dtype == DType::kF16 ? DType::kBF16 : DType::kF32;
  }
  std::vector<PrecisionRule> rules = {{.match = layer, .op = op, .format = dtype, .source = "precision.fallback"}};
  if (op == Op::kLinear && dtype == DType::kF32 && precision.fp32_products != Fp32Products::kFp32) {
    rules.push_back({.match = layer, .op = op, .format = precision.fp32_products, .source = "precision.fallback"});
  }
  return rules;
}

void validate(const FallbackOptions& options) {
  if (options.overflows >= 0 && options.window > 0 && options.clean_steps > 0 && options.overflows <= options.window) {
    return;
  }
  throw ConfigError(
      fmt::format("[precision_fallback] expected overflows from 0 to the window, and a window and clean_steps above 0, "
                  "got overflows = {}, window = {}, clean_steps = {}",
                  options.overflows, options.window, options.clean_steps));
}

bool PrecisionFallback::overflowed(int64_t step, const std::string& layer, int room) {
  if (!enabled()) return false;
  Layer& found = state_[layer];
  found.since = step;
  std::erase_if(found.overflows, [&](int64_t before) { return before <= step - options_.window; });
  found.overflows.push_back(step);
  return static_cast<int>(found.overflows.size()) >= options_.overflows && lift_now(step, layer, room);
}

bool PrecisionFallback::lift_now(int64_t step, const std::string& layer, int room) {
  if (room <= 0) return false;
  Layer& found = state_[layer];
  ++found.levels;
  found.since = step;
  found.overflows.clear();
  return true;
}

bool PrecisionFallback::goes_back(const Layer& layer, int64_t step) const {
  const int64_t wait = options_.clean_steps << std::min(layer.returns, kMaxDoublings);
  return layer.levels > 0 && step - layer.since > wait;
}

bool PrecisionFallback::is_due(int64_t step) const {
  return std::ranges::any_of(state_, [&](const auto& entry) { return goes_back(entry.second, step); });
}

std::vector<std::string> PrecisionFallback::settle(int64_t step) {
  std::vector<std::string> back;
  for (auto& [name, layer] : state_) {
    if (!goes_back(layer, step)) continue;
    --layer.levels;
    ++layer.returns;
    layer.since = step - 1;
    back.push_back(name);
  }
  return back;
}

std::map<std::string, int> PrecisionFallback::lifts() const {
  std::map<std::string, int> lifts;
  for (const auto& [name, layer] : state_) {
    if (layer.levels > 0 && name != kWholeModel) lifts.emplace(name, layer.levels);
  }
  return lifts;
}

bool PrecisionFallback::leaves_fp16() const {
  const auto whole = state_.find(kWholeModel);
  return whole != state_.end() && whole->second.levels > 0;
}

}  // namespace mantissa
