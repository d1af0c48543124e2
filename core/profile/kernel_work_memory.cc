// Work of the operations that memory bounds: what they read and write.
#include <algorithm>

#include "core/profile/kernel_work.h"
#include "core/profile/operand_bytes.h"

namespace mantissa {
namespace {

KernelWork traffic(double bytes) { return {.bytes = bytes}; }

// `rows` rows of a table.
double row_bytes(const Tensor& table, int64_t rows) {
  return bytes_of(table) * static_cast<double>(rows) / static_cast<double>(table.dim(0));
}

}  // namespace

KernelWork work_of(const CastArgs& args) { return traffic(bytes_of(args.src, args.dst)); }
KernelWork work_of(const SplitArgs& args) {
  return traffic(bytes_of(args.x, args.parts[0], args.parts[1], args.parts[2]));
}
KernelWork work_of(const AddArgs& args) { return traffic(bytes_of(args.a, args.b, args.y)); }
KernelWork work_of(const ColumnSumArgs& args) { return traffic(bytes_of(args.x) + result_bytes(args.out, args.mode)); }

KernelWork work_of(const EmbeddingForwardArgs& args) {
  double bytes = bytes_of(args.tokens, args.y) + row_bytes(args.token_table, args.tokens.numel());
  if (args.position_table.defined()) bytes += row_bytes(args.position_table, args.sequence_length);
  return traffic(bytes);
}

KernelWork work_of(const EmbeddingBackwardArgs& args) {
  const int64_t rows = std::min(args.tokens.numel(), args.d_token_table.dim(0));
  const double tokens = args.token_mode == GradientMode::kWrite ? bytes_of(args.d_token_table)
                                                                : 2.0 * row_bytes(args.d_token_table, rows);
  return traffic(bytes_of(args.tokens, args.dy) + tokens + result_bytes(args.d_position_table, args.position_mode));
}

KernelWork work_of(const LayerNormForwardArgs& args) {
  return traffic(bytes_of(args.x, args.residual, args.sum, args.weight, args.bias, args.y, args.mean, args.rstd));
}
KernelWork work_of(const LayerNormBackwardArgs& args) {
  return traffic(bytes_of(args.x, args.dy, args.weight, args.mean, args.rstd) + result_bytes(args.dx, args.mode) +
                 result_bytes(args.d_weight, args.weight_mode) + result_bytes(args.d_bias, args.bias_mode));
}
KernelWork work_of(const RmsNormForwardArgs& args) {
  return traffic(bytes_of(args.x, args.residual, args.sum, args.weight, args.y, args.rstd));
}
KernelWork work_of(const RmsNormBackwardArgs& args) {
  return traffic(bytes_of(args.x, args.dy, args.weight, args.rstd) + result_bytes(args.dx, args.mode) +
                 result_bytes(args.d_weight, args.weight_mode));
}

KernelWork work_of(const GeluForwardArgs& args) { return traffic(bytes_of(args.x, args.y)); }
KernelWork work_of(const GeluBackwardArgs& args) { return traffic(bytes_of(args.x, args.dy, args.dx)); }
KernelWork work_of(const SwigluForwardArgs& args) { return traffic(bytes_of(args.x, args.y)); }
KernelWork work_of(const SwigluBackwardArgs& args) { return traffic(bytes_of(args.x, args.dy, args.dx)); }

KernelWork work_of(const RopeArgs& args) {
  const double touched = args.x.raw() != args.y.raw()
                             ? 1.0
                             : static_cast<double>(args.rotated_heads) / static_cast<double>(args.row_heads);
  return traffic(bytes_of(args.x, args.y) * touched);
}

KernelWork work_of(const DropoutArgs& args) { return traffic(bytes_of(args.x, args.y)); }

KernelWork work_of(const CrossEntropyForwardArgs& args) {
  return traffic(bytes_of(args.logits, args.targets, args.losses, args.lse, args.loss_sum));
}
KernelWork work_of(const CrossEntropyBackwardArgs& args) {
  return traffic(2.0 * bytes_of(args.logits) + bytes_of(args.targets, args.lse, args.scale));
}

KernelWork work_of(const TensorStatsArgs& args) { return traffic(bytes_of(args.x) + 2.0 * bytes_of(args.record)); }
KernelWork work_of(const RecordVerdictArgs& args) { return traffic(bytes_of(args.losses, args.stats, args.record)); }
KernelWork work_of(const DecideUpdateArgs& args) {
  return traffic(bytes_of(args.records, args.plan, args.hold, args.control, args.decision));
}

KernelWork work_of(const AdamWArgs& args) {
  const bool separate = args.master.defined() && args.weight.defined() && args.weight.raw() != args.master.raw();
  const double written = separate ? bytes_of(args.weight) : 0.0;
  if (!args.gradient.defined()) return traffic(bytes_of(args.master) + written);
  const Tensor& weights = args.master.defined() ? args.master : args.weight;
  const double state = bytes_of(weights, args.compensation, args.m, args.v, args.m_absmax, args.v_absmax);
  return traffic(2.0 * state + bytes_of(args.gradient) + written);
}

KernelWork work_of(const SumContributionsArgs& args) {
  return traffic(bytes_of(args.contributions, args.out) + 2.0 * bytes_of(args.record));
}

KernelWork work_of(const AmaxArgs& args) { return traffic(bytes_of(args.x, args.record)); }
KernelWork work_of(const TensorScaleArgs& args) { return traffic(bytes_of(args.record, args.scale)); }
KernelWork work_of(const QuantizeArgs& args) {
  return traffic(bytes_of(args.src, args.dst, args.codes, args.transposed_codes, args.code_scales,
                          args.transposed_code_scales, args.scale) +
                 2.0 * bytes_of(args.record));
}
KernelWork work_of(const FromCodesArgs& args) { return traffic(bytes_of(args.codes, args.dst, args.scale)); }
KernelWork work_of(const HadamardArgs& args) { return traffic(bytes_of(args.x, args.y)); }
KernelWork work_of(const DelayedScalesArgs& args) {
  return traffic(bytes_of(args.records, args.mine, args.total, args.history, args.maxima) +
                 2.0 * bytes_of(args.scales, args.entries));
}
KernelWork work_of(const ExponentHistogramArgs& args) {
  return traffic(bytes_of(args.x) + result_bytes(args.record, args.mode));
}
KernelWork work_of(const UpdateStagnationArgs& args) {
  return traffic(bytes_of(args.weight, args.delta, args.updated) + result_bytes(args.record, args.mode));
}
KernelWork work_of(const RoundingLossesArgs& args) {
  const double passes = block_length(args.format.scaling) > 0 ? 2.0 : 1.0;
  return traffic(passes * bytes_of(args.src) + bytes_of(args.scale) + result_bytes(args.record, args.mode));
}
KernelWork work_of(const CompareArgs& args) {
  return traffic(bytes_of(args.x, args.reference) + result_bytes(args.record, args.mode));
}

KernelWork work_of_copy(const Tensor& src, const Tensor& dst) {
  if (src.device().kind == dst.device().kind) return traffic(bytes_of(src, dst));
  return {.bytes = bytes_of(src), .bound = Bound::kOther};
}

KernelWork work_of_transfer(const Tensor& tensor) {
  if (tensor.device().kind == Device::Kind::kCpu) return traffic(2.0 * bytes_of(tensor));
  return {.bytes = bytes_of(tensor), .bound = Bound::kOther};
}

KernelWork work_of_fill(const Tensor& dst) { return traffic(bytes_of(dst)); }

}  // namespace mantissa
