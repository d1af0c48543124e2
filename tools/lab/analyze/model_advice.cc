#include "tools/lab/analyze/model_advice.h"

#include "tools/probe/probe_log.h"

namespace mantissa {
namespace {

// "delayed:e4m3" or "bf16".
struct FormatInUse {
  std::optional<Scaling> scaling;  // nothing: the numbers are stored in the format as they are
  std::string number;
};

FormatInUse in_use(const std::string& format) {
  const size_t colon = format.find(':');
  if (colon == std::string::npos) return {std::nullopt, format};
  return {parse_scaling(format.substr(0, colon)), format.substr(colon + 1)};
}

constexpr const char* kNoMoreRange =
    "No format has more range than this one: look at the training itself (a lower optimizer.lr)";

// Another dtype for all of a layer.
std::string layer_in(const char* dtype) { return fmt::format("{} for that layer (precision.rules)", dtype); }

std::string unrounded(const Situation& at) {
  return fmt::format("that role in {} (precision.rules with role: {} and format: low)", at.stored_in,
                     at.role == probe_role::kActivation || at.role == probe_role::kWeight ? at.role : "gradient");
}

std::string wire_in_more(const FormatInUse& format) {
  return format.number == "fp16" ? "Gradients between ranks in bf16 or fp32 (comm.wire_dtype)"
                                 : "Gradients between ranks in fp32 (comm.wire_dtype)";
}

std::string larger_loss_scale(const Config& config) {
  return config.scaler.scaler.mode == ScalerMode::kNone ? "Loss scaling (scaler.mode=dynamic)"
                                                        : "A larger loss scale (scaler)";
}

std::string smaller_loss_scale(const Config& config) {
  switch (config.scaler.scaler.mode) {
    case ScalerMode::kNone:
      return "A loss scale below 1 (scaler.mode=static, scaler.min_scale and scaler.init_scale below 1)";
    case ScalerMode::kStatic:
      return "A smaller scaler.init_scale, or scaler.mode=dynamic, which skips such steps and comes down";
    case ScalerMode::kDynamic:
      return "The dynamic loss scale skips such steps and comes down: a smaller scaler.init_scale saves them";
  }
  return "";
}

std::string for_non_finite(const Situation& at) {
  return at.stored_in == "fp16" ? "Values beyond fp16's range: " + layer_in("bf16 or fp32") : kNoMoreRange;
}

// A loss scale, or where none is at work and the format has fp32's range, what fp32 would not cure either.
std::string for_non_finite_gradients(const Situation& at, const Config& config) {
  const bool is_scaled = config.scaler.scaler.mode != ScalerMode::kNone;
  return is_scaled || at.stored_in == "fp16" || at.format == "fp16" ? smaller_loss_scale(config) : kNoMoreRange;
}

std::string for_saturated(const Situation& at, const Config& config) {
  const FormatInUse format = in_use(at.format);
  if (at.role == probe_role::kWire) return wire_in_more(format);
  if (!format.scaling) {
    if (format.number != "fp16") return kNoMoreRange;
    return has_loss_scale(at.role) ? smaller_loss_scale(config) + "; or " + layer_in("bf16")
                                   : "Values beyond fp16's range: " + layer_in("bf16 or fp32");
  }
  const std::string wider =
      format.number == "e4m3"
          ? fmt::format("e5m2, which has more range, for that role (precision.rules with format: {}:e5m2)",
                        name(*format.scaling))
          : unrounded(at);
  return *format.scaling == Scaling::kDelayed ? "A larger precision.delayed.margin, or " + wider : "For these " + wider;
}

std::string for_underflowed(const Situation& at, const Config& config) {
  const FormatInUse format = in_use(at.format);
  if (at.role == probe_role::kWire) return wire_in_more(format);
  if (!format.scaling) {
    const bool is_fp16 = format.number == "fp16";
    const std::string other = layer_in(is_fp16 ? "bf16" : "fp32");
    if (has_loss_scale(at.role)) return larger_loss_scale(config) + ", or " + other;
    return fmt::format("Values below {}'s range: {}", format.number, other);
  }
  const bool has_e5m2 = format.number == "e4m3";
  const std::string e5m2 = fmt::format(
      "e5m2, which has more range, for that role (precision.rules with format: {}:e5m2)", name(*format.scaling));
  const bool has_margin = *format.scaling == Scaling::kDelayed && config.precision.delayed.margin > 0;
  switch (*format.scaling) {
    case Scaling::kDelayed:
    case Scaling::kCurrent:
      return fmt::format("{}{}maller blocks (precision.recipe=block or mxfp8), or {}",
                         has_margin ? "A smaller precision.delayed.margin, " : "", has_margin ? "s" : "S",
                         has_e5m2 ? e5m2 : unrounded(at));
    case Scaling::kBlock:
      return fmt::format("Smaller blocks (precision.recipe=mxfp8), or {}", has_e5m2 ? e5m2 : unrounded(at));
    case Scaling::kMicro:
      return "For these " + (has_e5m2 ? e5m2 : unrounded(at));
    case Scaling::kTwoLevel:
      return fmt::format("8 bits for these (precision.recipe=mxfp8), or {}", unrounded(at));
  }
  return "";
}

std::string for_subnormal(const Situation& at, const Config& config) {
  if (at.role == probe_role::kWire) return wire_in_more(in_use(at.format));
  if (!has_loss_scale(at.role)) return "Few of fp16's bits are left for these: " + layer_in("bf16");
  return larger_loss_scale(config) + ", or " + layer_in("bf16");
}

// Of products the format is that of both operands: "delayed:e4m3 x bf16", "fp32 x fp32 by tf32".
std::string for_product(Problem problem, const Situation& at, const Config& config) {
  if (at.format.find(" by ") != std::string::npos) {
    return "Products of the numbers as they are in that layer (precision.rules with format: fp32)";
  }
  if (at.format.find(':') != std::string::npos) {
    const std::string dtype = at.stored_in.empty() ? std::string(name(config.precision.compute)) : at.stored_in;
    return problem == Problem::kCostlyProduct
               ? fmt::format("Keep {} of that layer in {} (precision.rules with product: {} and format: low)", at.role,
                             dtype, at.role)
               : fmt::format("Keep that layer in {} (precision.rules)", dtype);
  }
  if (at.format == "fp32 x fp32") return "It is in fp32 already: these sums cancel, and no format here has more bits";
  const bool takes_scale = at.format.find("fp16") != std::string::npos && at.role != name(Product::kForward);
  return takes_scale ? larger_loss_scale(config) + ", or " + layer_in("fp32")
                     : fmt::format("It is in {} already: {}", at.stored_in, layer_in("fp32"));
}

}  // namespace

std::string advice(Problem problem, const Situation& situation, const Config& config) {
  switch (problem) {
    case Problem::kNonFinite:
      return for_non_finite(situation);
    case Problem::kNonFiniteGradients:
      return for_non_finite_gradients(situation, config);
    case Problem::kSaturated:
      return for_saturated(situation, config);
    case Problem::kUnderflowedGradients:
    case Problem::kUnderflowed:
      return for_underflowed(situation, config);
    case Problem::kSubnormal:
      return for_subnormal(situation, config);
    case Problem::kNoisyProduct:
    case Problem::kCostlyProduct:
      return for_product(problem, situation, config);
    case Problem::kStagnant:
      return "A larger learning rate: these weights no longer move";
  }
  return "";
}

}  // namespace mantissa
