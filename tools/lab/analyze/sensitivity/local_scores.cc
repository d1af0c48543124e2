#include "tools/lab/analyze/sensitivity/local_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/probe/args.h"
#include "core/ops/rounded_operand.h"
#include "core/tensor/arena.h"
#include "tools/probe/probe_row.h"

namespace mantissa {
namespace {

constexpr int64_t kLongestBlock = 128;

constexpr double kNever = std::numeric_limits<double>::infinity();

// By format, for forward products and for whole layers in a dtype.
constexpr std::pair<std::string_view, RiskThresholds> kMeasured[] = {
    {"bf16", {0.0051, kNever}},      {"fp16", {0.095, kNever, true}}, {"current", {0.078, 0.29}},
    {"current:e4m3", {0.078, 0.29}},  // the same formats in forward products
    {"block", {0.29, 0.29}},         {"mxfp8", {0.18, kNever}},       {"nvfp4", {0.0, 0.5}},
};

Tensor first_rows(const Tensor& matrix, int64_t rows) {
  return matrix.slice(0, rows * matrix.dim(1)).view({rows, matrix.dim(1)});
}

// Memory for one trial: both operands in fp32 and rounded, three copies of the largest product, and rounding buffers.
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

OperandRisk risk_of(const FormatLosses& losses) {
  return {.overflow = losses.share(losses.overflowed + losses.non_finite),
          .underflow = losses.share(losses.underflowed),
          .precision = losses.share(losses.subnormal)};
}

// y (R, N), dx (R, K) or dW (N, K), without bias and earlier contributions.
struct LoweredProduct {
  Tensor value{};                     // fp32
  FormatLosses losses[2] = {};        // of the operands, in the order of roles_of()
  double weight_error_squares = 0.0;  // |Q(W) - W|^2; 0 if W is no operand
};

GemmArgs gemm(Product product, const Tensor& a, const Tensor& b, const Tensor& c) {
  return {.a = a,
          .b = b,
          .c = c,
          .trans_a = product == Product::kWeightGradient ? Transpose::kYes : Transpose::kNo,
          .trans_b = product == Product::kForward ? Transpose::kYes : Transpose::kNo};
}

// Runs a kernel that fills `args.record`, and returns the record.
template <typename Record, typename Args>
Record record_of(Tape& tape, Args args) {
  Record record{};
  args.record = tape.allocate(DType::kU8, {static_cast<int64_t>(sizeof(Record))}, "record");
  tape.backend().upload(&record, args.record, tape.stream());
  tape.backend().run(args, tape.stream());
  tape.backend().download(args.record, &record, tape.stream());
  return record;
}

// |Q(W) - W|^2 of the numbers that the rounded values stand for.
double weight_error(Tape& tape, const RoundedMatrix& made, const Tensor& weight) {
  float scale = 1.0f;
  if (made.scale.defined()) tape.backend().download(made.scale, &scale, tape.stream());
  const std::vector<float> exact = on_host(tape, weight), values = on_host(tape, tape.cast(made.values, DType::kF32));
  double squares = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = static_cast<double>(values[i]) / static_cast<double>(scale) - static_cast<double>(exact[i]);
    squares += error * error;
  }
  return squares;
}

// A layer's operands on the sampled rows, in fp32: x (R, K), dy (R, N); the weight is (N, K). Its exact products follow
// once they are needed.
struct LayerOperands {
  Tape& tape;
  const Parameter& weight;
  Tensor x{}, dy{};
  float gradient_scale = 1.0f;  // of dy in a dtype, a power of two: fp16's loss scale
  std::vector<float> exact[std::size(kAllProducts)] = {}, gradient{};  // the latter is dy

  const Tensor& given(Role role) const {
    return role == Role::kActivation ? x : role == Role::kGradient ? dy : weight.weight;
  }
  Tensor result(Product product, DType dtype, const char* name) const {
    const int64_t rows = x.dim(0), inputs = x.dim(1), outputs = dy.dim(1);
    const Shape backward = product == Product::kInputGradient ? Shape{rows, inputs} : Shape{outputs, inputs};
    return tape.allocate(dtype, product == Product::kForward ? Shape{rows, outputs} : backward, name);
  }
  const std::vector<float>& exact_product(Product product) {
    std::vector<float>& values = exact[static_cast<size_t>(product)];
    if (!values.empty()) return values;
    const ProductRoles roles = roles_of(product);
    const Tensor made = result(product, DType::kF32, "exact product");
    tape.backend().run(gemm(product, given(roles.a), given(roles.b), made), tape.stream());
    return values = on_host(tape, made);
  }
  const std::vector<float>& derivative(Product product) {
    if (product != Product::kForward) return exact_product(product);
    if (gradient.empty()) gradient = on_host(tape, dy);
    return gradient;
  }
};

// The losses of an operand in a dtype. Only fp16's gradients have a scale.
FormatLosses losses_in(DType dtype, const LayerOperands& layer, Role role) {
  const bool is_scaled = role == Role::kGradient && dtype == DType::kF16;
  return format_losses(record_of<ExponentHistogram>(layer.tape, ExponentHistogramArgs{.x = layer.given(role)}),
                       format_of(dtype), is_scaled ? std::ilogb(layer.gradient_scale) : 0);
}

// The product of a layer whose operands have the recipe's formats, summed in fp32, or which computes in a dtype and
// rounds the result to it. ConfigError if sizes are not whole blocks.
LoweredProduct lowered_product(const LayerOperands& layer, Product product, const std::string& format) {
  Tape& tape = layer.tape;
  const auto dtype = parse_float_dtype(format);
  LinearFormats formats;
  for (const Role role : kAllRoles) {
    if (!dtype) formats.set(product, role, format_for(*parse_recipe(format), role));
  }
  const ProductRoles roles = roles_of(product);
  const Role both[] = {roles.a, roles.b};
  const Tensor result = layer.result(product, dtype.value_or(DType::kF32), "lowered product");
  LoweredProduct lowered;
  RoundedMatrix made[2];
  for (const int side : {0, 1}) {
    const bool is_weight = both[side] == Role::kWeight;
    const Tensor& given = layer.given(both[side]);
    if (dtype) {
      lowered.losses[side] = losses_in(*dtype, layer, both[side]);
      made[side].values = tape.cast(given, *dtype);
      const CompareArgs args{.x = made[side].values, .reference = given};
      if (is_weight) lowered.weight_error_squares = record_of<ErrorSums>(tape, args).error_squares;
      continue;
    }
    const OperandUse use{.product = product,
                         .role = both[side],
                         .format = formats.at(product, both[side]),
                         .values = values_dtype(tape, formats, product, DType::kF32),
                         .transformed = is_transformed(formats, product)};
    made[side] =
        is_weight ? round_weight(tape, layer.weight, given, use) : round_operand(tape, given, layer.weight, use);
    if (is_weight) lowered.weight_error_squares = weight_error(tape, made[side], given);
    if (!use.format) continue;
    Tensor source = given;
    if (use.transformed) {
      source = tape.allocate(DType::kBF16, given.shape(), "transformed operand");
      tape.backend().run(HadamardArgs{.x = given, .y = source}, tape.stream());
    }
    lowered.losses[side] = record_of<FormatLosses>(
        tape,
        RoundingLossesArgs{.src = source, .format = *use.format, .axis = axis_of(use), .scale = made[side].scale});
  }
  GemmArgs args = gemm(product, made[0].values, made[1].values, result);
  args.a_scale = made[0].scale;
  args.b_scale = made[1].scale;
  tape.backend().run(args, tape.stream());
  lowered.value = tape.cast(result, DType::kF32);
  return lowered;
}

void try_decision(const PrecisionDecision& decision, LayerOperands& layer, LocalScore& score) {
  const Product product = decision.product.value_or(Product::kForward);
  LoweredProduct lowered;
  try {
    lowered = lowered_product(layer, product, decision.format);
  } catch (const ConfigError&) {
    return;
  }
  score.seen = true;
  score.rows = layer.x.dim(0);
  score.weight_error_squares = lowered.weight_error_squares;
  std::vector<OperandRisk> risks = {risk_of(lowered.losses[0]), risk_of(lowered.losses[1])};
  if (!decision.product) {  // its gradients have that dtype, too
    risks.push_back(risk_of(lowered_product(layer, Product::kInputGradient, decision.format).losses[0]));
  }
  score.risk = std::ranges::max(risks, {}, &OperandRisk::sum);

  const std::vector<float> values = on_host(layer.tape, lowered.value);
  const std::vector<float>&exact = layer.exact_product(product), &derivative = layer.derivative(product);
  for (size_t i = 0; i < values.size(); ++i) {
    const double change = static_cast<double>(values[i]) - static_cast<double>(exact[i]);
    const double effect = static_cast<double>(derivative[i]) * change;
    score.fisher += effect * effect;
  }
  constexpr size_t kMostSamples = LocalScores::kMaxSamples;
  const size_t stride = (values.size() + kMostSamples - 1) / kMostSamples | 1;  // odd: not always the same columns
  std::vector<float> some_exact, some_lowered;
  for (size_t i = 0; i < values.size(); i += stride) {
    some_exact.push_back(exact[i]);
    some_lowered.push_back(values[i]);
  }
  score.entropy = entropy_in_deviations(some_lowered);
  score.information = mutual_information(some_exact, some_lowered);
}

}  // namespace

LocalScores::LocalScores(const std::vector<PrecisionDecision>& decisions, const Options& options, const Config& config,
                         ModelRuntime& runtime)
    : decisions_(decisions),
      options_(options),
      config_(config),
      runtime_(runtime),
      scores_(decisions.size()),
      step_(runtime.backend->make_tensor(DType::kI32, {1}, "sensitivity: step")) {
  for (size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i].op == Op::kLinear) of_layer_[decisions[i].layer].push_back(i);
  }
}

int64_t LocalScores::sampled_rows(int64_t rows) const {
  const int64_t context = config_.model.context;
  // Blocks of scales that divide all rows must divide the sampled rows.
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
  Arena arena(runtime_.backend->reserve(arena_bytes(x, dy)));
  const UniformPrecision policy;
  const int64_t context = config_.model.context;
  Tape tape(*runtime_.backend, *runtime_.stream, arena, policy, runtime_.derived_weights,
            {.random = {.seed = config_.train.seed,
                        .step = step_,
                        .first_sample = 0,
                        .samples = std::max<int64_t>(1, rows / context)}});
  LayerOperands layer{.tape = tape,
                      .weight = shown.weight,
                      .x = tape.cast(x, DType::kF32),
                      .dy = tape.cast(dy, DType::kF32),
                      .gradient_scale = static_cast<float>(options_.loss_scale)};
  for (const size_t index : found->second) {
    if (!scores_[index].seen) try_decision(decisions_[index], layer, scores_[index]);
  }
  runtime_.stream->synchronize();  // before the arena goes
}

std::vector<LocalScore> LocalScores::take() {
  std::vector<LocalScore> taken(decisions_.size());
  std::swap(taken, scores_);
  return taken;
}

const char* name(PrecisionBand band) {
  constexpr const char* kNames[] = {"low", "mixed", "fp32", "unrated"};
  return kNames[static_cast<size_t>(band)];
}

std::optional<RiskThresholds> measured_thresholds(const PrecisionDecision& decision) {
  for (const auto& [format, thresholds] : kMeasured) {
    if (format == decision.format && lowers_forward_product(decision)) return thresholds;
  }
  return std::nullopt;
}

PrecisionBand band_of(const OperandRisk& risk, const std::optional<RiskThresholds>& thresholds) {
  if (!thresholds) return PrecisionBand::kUnrated;
  if (thresholds->overflow_harms && risk.overflow > 0.0) return PrecisionBand::kFp32;
  if (risk.sum() < thresholds->low) return PrecisionBand::kLow;
  return risk.sum() <= thresholds->high ? PrecisionBand::kMixed : PrecisionBand::kFp32;
}

}  // namespace mantissa
