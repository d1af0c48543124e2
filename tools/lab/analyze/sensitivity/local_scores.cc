#include "tools/lab/analyze/sensitivity/local_scores.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/tensor/arena.h"
#include "tools/lab/analyze/sensitivity/information.h"
#include "tools/lab/analyze/sensitivity/lowered_product.h"

namespace mantissa {
namespace {

constexpr int64_t kLongestBlock = 128;

Tensor first_rows(const Tensor& matrix, int64_t rows) {
  return matrix.slice(0, rows * matrix.dim(1)).view({rows, matrix.dim(1)});
}

// Room for what is tried at once: both operands in fp32 and rounded, of the largest product three copies, and what
// rounding takes besides.
size_t arena_bytes(const Tensor& x, const Tensor& dy) {
  const int64_t rows = x.dim(0), inputs = x.dim(1), outputs = dy.dim(1);
  const int64_t elements = rows * inputs + rows * outputs + inputs * outputs;
  return static_cast<size_t>(10 * elements) * sizeof(float) + (size_t{1} << 20);
}

std::vector<float> on_host(Tape& tape, const Tensor& values) {
  std::vector<float> host(static_cast<size_t>(values.numel()));
  tape.backend().download(values, host.data(), tape.stream());
  return host;
}

}  // namespace

// A layer's operands on the rows that are looked at, and its exact products as they are asked for.
struct LocalScores::Layer {
  Tape& tape;
  LayerOperands operands;
  std::vector<float> exact[std::size(kAllProducts)];
  std::vector<float> gradient{};  // dy

  const std::vector<float>& product(Product which) {
    std::vector<float>& values = exact[static_cast<size_t>(which)];
    if (values.empty()) values = on_host(tape, exact_product(tape, operands, which));
    return values;
  }
  const std::vector<float>& derivative(Product which) {
    if (which != Product::kForward) return product(which);
    if (gradient.empty()) gradient = on_host(tape, operands.dy);
    return gradient;
  }
};

OperandRisk risk_of(const FormatLosses& losses) {
  return {.overflow = losses.share(losses.overflowed + losses.non_finite),
          .underflow = losses.share(losses.underflowed),
          .precision = losses.share(losses.subnormal)};
}

LocalScores::LocalScores(const std::vector<PrecisionDecision>& decisions, const Options& options, Session& session)
    : decisions_(decisions),
      options_(options),
      session_(session),
      scores_(decisions.size()),
      step_(session.runtime.backend->make_tensor(DType::kI32, {1}, "sensitivity: step")) {
  for (size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i].op == Op::kLinear) of_layer_[decisions[i].layer].push_back(i);
  }
}

int64_t LocalScores::sampled_rows(int64_t rows) const {
  const int64_t context = session_.config.model.context;
  // Blocks of scales that go into all rows go into those that are looked at.
  const int64_t unit = std::gcd(rows, kLongestBlock);
  int64_t samples = std::min(rows, std::max(context, options_.rows)) / context;
  while (samples * context < rows && samples * context % unit != 0) ++samples;
  return samples == 0 ? rows : std::min(rows, samples * context);
}

void LocalScores::on_product(const ObservedProduct& shown) {
  if (shown.product != Product::kWeightGradient || !shown.is_first) return;
  const auto found = of_layer_.find(shown.weight.precision_layer());
  if (found == of_layer_.end()) return;
  const int64_t rows = sampled_rows(shown.b.given.dim(0));
  const Tensor x = first_rows(shown.b.given, rows), dy = first_rows(shown.a.given, rows);
  if (std::max(rows, x.dim(1)) * dy.dim(1) > options_.max_elements) return;
  ModelRuntime& runtime = session_.runtime;
  Arena arena(runtime.backend->reserve(arena_bytes(x, dy)));
  const UniformPrecision policy;
  const int64_t context = session_.config.model.context;
  Tape tape(*runtime.backend, *runtime.stream, arena, policy, runtime.derived_weights,
            {.random = {.seed = session_.config.train.seed,
                        .step = step_,
                        .first_sample = 0,
                        .samples = std::max<int64_t>(1, rows / context)}});
  const LayerOperands operands{.weight = shown.weight,
                               .x = tape.cast(x, DType::kF32),
                               .dy = tape.cast(dy, DType::kF32),
                               .gradient_scale = static_cast<float>(options_.loss_scale / options_.shown_scale)};
  Layer layer{.tape = tape, .operands = operands, .exact = {}};
  for (const size_t index : found->second) {
    if (!scores_[index].seen) look_at(decisions_[index], layer, scores_[index]);
  }
  runtime.stream->synchronize();  // the arena goes
}

LinearFormats LocalScores::formats_of(const PrecisionDecision& decision) const {
  const Recipe recipe = *parse_recipe(decision.format);
  LinearFormats formats;
  for (const Role role : kAllRoles) formats.set(*decision.product, role, format_for(recipe, role));
  return formats;
}

void LocalScores::look_at(const PrecisionDecision& decision, Layer& layer, LocalScore& score) {
  const Product product = decision.product.value_or(Product::kForward);
  std::optional<LoweredProduct> lowered;
  try {
    lowered = decision.product
                  ? lowered_product(layer.tape, layer.operands, product, formats_of(decision))
                  : lowered_product(layer.tape, layer.operands, product, *parse_float_dtype(decision.format));
  } catch (const ConfigError& error) {
    score.refusal = error.what();
    return;
  }
  score.seen = true;
  score.rows = layer.operands.x.dim(0);
  score.weight_error_squares = lowered->weight_error_squares;
  const OperandRisk risks[] = {risk_of(lowered->losses[0]), risk_of(lowered->losses[1])};
  score.risk = risks[0].sum() >= risks[1].sum() ? risks[0] : risks[1];
  if (!decision.product) {  // its gradients are in the dtype as well
    const LoweredProduct backward =
        lowered_product(layer.tape, layer.operands, Product::kInputGradient, *parse_float_dtype(decision.format));
    if (const OperandRisk risk = risk_of(backward.losses[0]); risk.sum() > score.risk.sum()) score.risk = risk;
  }

  const std::vector<float> values = on_host(layer.tape, lowered->value);
  const std::vector<float>&exact = layer.product(product), &derivative = layer.derivative(product);
  // A backward product and its change are both as large as the gradients that were shown.
  const double scale =
      product == Product::kForward ? options_.shown_scale : options_.shown_scale * options_.shown_scale;
  for (size_t i = 0; i < values.size(); ++i) {
    const double change = static_cast<double>(values[i]) - static_cast<double>(exact[i]);
    const double effect = static_cast<double>(derivative[i]) * change / scale;
    score.first_order += effect;
    score.fisher += effect * effect;
  }
  const size_t stride = (values.size() + kMaxSamples - 1) / kMaxSamples | 1;  // odd: not one column alone
  std::vector<float> some_exact, some_lowered;
  for (size_t i = 0; i < values.size(); i += stride) {
    some_exact.push_back(exact[i]);
    some_lowered.push_back(values[i]);
  }
  score.entropy = entropy_in_deviations(some_lowered);
  score.information = mutual_information(some_exact, some_lowered);
}

std::vector<LocalScore> LocalScores::take() {
  std::vector<LocalScore> taken(decisions_.size());
  std::swap(taken, scores_);
  return taken;
}

}  // namespace mantissa
