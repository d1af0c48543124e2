// Kernels in fp64 over the rows of a matrix: norms, embedding, loss, sums of columns. See fp64_cpu.h.
#include "core/kernels/fp64/fp64_cpu.h"

namespace mantissa::cpu::fp64 {
namespace {

constexpr int64_t kColumnsOfTask = 16;

// Calls body(begin, end) for ranges of columns in parallel. Sums over rows are made so: each column by one thread, in
// the order of rows.
template <typename Body>
void each_columns(int64_t columns, const Body& body) {
  parallel_for(divide_up(columns, kColumnsOfTask),
               [&](int64_t task) { body(task * kColumnsOfTask, std::min(columns, (task + 1) * kColumnsOfTask)); });
}

// d_weight and d_bias are sums over rows; both passes of one column range are done together.
void sum_weight_gradients(const LayerNormBackwardArgs& args, const Rows& rows) {
  const double *const x = args.x.data<double>(), *const dy = args.dy.data<double>();
  const double *const rstd = args.rstd.data<double>(), *const mean = data_or_null<double>(args.mean);
  double *const d_weight = args.d_weight.data<double>(), *const d_bias = data_or_null<double>(args.d_bias);
  each_columns(rows.columns, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      if (args.weight_mode == GradientMode::kWrite) d_weight[c] = 0.0;
      if (d_bias != nullptr && args.bias_mode == GradientMode::kWrite) d_bias[c] = 0.0;
    }
    for (int64_t index = 0; index < rows.rows; ++index) {
      const double center = mean != nullptr ? mean[index] : 0.0;
      for (int64_t c = begin; c < end; ++c) {
        const int64_t at = args.heads.row(index) * rows.columns + c;
        d_weight[c] += dy[at] * (x[at] - center) * rstd[index];
        if (d_bias != nullptr) d_bias[c] += dy[at];
      }
    }
  });
}

// For both norms: RMS norm has no mean.
void norm_forward(const LayerNormForwardArgs& args, const Rows& rows) {
  const double* const weight = args.weight.data<double>();
  const double* const bias = data_or_null<double>(args.bias);
  double* const means = data_or_null<double>(args.mean);
  const auto n = static_cast<double>(rows.columns);
  parallel_rows(rows.rows, rows.columns, [&](int64_t index) {
    const int64_t at = args.heads.row(index) * rows.columns;
    const double* x = args.x.data<double>() + at;
    if (args.sum.defined()) {
      const double* const residual = args.residual.data<double>() + at;
      double* const sum = args.sum.data<double>() + at;
      for (int64_t c = 0; c < rows.columns; ++c) sum[c] = x[c] + residual[c];
      x = sum;
    }
    double mean = 0.0, square = 0.0;
    if (means != nullptr) {
      for (int64_t c = 0; c < rows.columns; ++c) mean += x[c];
      means[index] = mean /= n;
    }
    for (int64_t c = 0; c < rows.columns; ++c) square += (x[c] - mean) * (x[c] - mean);
    const double rstd = 1.0 / std::sqrt(square / n + static_cast<double>(args.epsilon));
    args.rstd.data<double>()[index] = rstd;
    double* const y = args.y.data<double>() + at;
    for (int64_t c = 0; c < rows.columns; ++c) {
      y[c] = (x[c] - mean) * rstd * weight[c] + (bias != nullptr ? bias[c] : 0.0);
    }
  });
}

void norm_backward(const LayerNormBackwardArgs& args, const Rows& rows) {
  const double* const weight = args.weight.data<double>();
  const double* const means = data_or_null<double>(args.mean);
  const auto n = static_cast<double>(rows.columns);
  sum_weight_gradients(args, rows);  // before dx, which may be dy
  parallel_rows(rows.rows, rows.columns, [&](int64_t index) {
    const int64_t at = args.heads.row(index) * rows.columns;
    const double *const x = args.x.data<double>() + at, *const dy = args.dy.data<double>() + at;
    const double mean = means != nullptr ? means[index] : 0.0, rstd = args.rstd.data<double>()[index];
    double sum = 0.0, projection = 0.0;
    for (int64_t c = 0; c < rows.columns; ++c) {
      const double g = weight[c] * dy[c];
      sum += g;
      projection += g * (x[c] - mean) * rstd;
    }
    const double offset = means != nullptr ? sum / n : 0.0;
    double* const dx = args.dx.data<double>() + at;
    for (int64_t c = 0; c < rows.columns; ++c) {
      const double d = rstd * (weight[c] * dy[c] - offset - (x[c] - mean) * rstd * projection / n);
      dx[c] = args.mode == GradientMode::kAccumulate ? dx[c] + d : d;
    }
  });
}

void require_indices(const char* op, const char* what, const Tensor& indices, int64_t limit, int32_t except) {
  const int32_t* const data = indices.data<int32_t>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    MANTISSA_CHECK(data[i] == except || (data[i] >= 0 && data[i] < limit), "[{}] {} must be in [0, {}), got {} at {}",
                   op, what, limit, data[i], i);
  }
}

constexpr int32_t kNoException = 0;  // an index that is valid anyway

}  // namespace

void run(const LayerNormForwardArgs& args) { norm_forward(args, check_args(args)); }
void run(const LayerNormBackwardArgs& args) { norm_backward(args, check_args(args)); }
void run(const RmsNormForwardArgs& args) { norm_forward(args.as_layer_norm(), check_args(args)); }
void run(const RmsNormBackwardArgs& args) { norm_backward(args.as_layer_norm(), check_args(args)); }

void run(const EmbeddingForwardArgs& args) {
  const Rows rows = check_args(args);
  require_indices("embedding", "tokens", args.tokens, args.token_table.dim(0), kNoException);
  const int64_t last =
      check_start_values("embedding", args.starts, args.sequence_length, DocumentStart::kAlsoBefore) - 1;
  MANTISSA_CHECK(!args.position_table.defined() || last < args.position_table.dim(0),
                 "[embedding] positions must be in [0, {}), got {}", args.position_table.dim(0), last);
  const int32_t* const starts = data_or_null<int32_t>(args.starts);
  const double *const table = args.token_table.data<double>(), *const positions =
                                                                   data_or_null<double>(args.position_table);
  parallel_rows(rows.rows, rows.columns, [&](int64_t row) {
    const double* const token = table + args.tokens.data<int32_t>()[row] * rows.columns;
    double* const y = args.y.data<double>() + row * rows.columns;
    std::copy_n(token, rows.columns, y);
    if (positions == nullptr) return;
    const double* const position = positions + position_in_document(starts, row, args.sequence_length) * rows.columns;
    for (int64_t c = 0; c < rows.columns; ++c) y[c] += position[c];
  });
}

void run(const EmbeddingBackwardArgs& args) {
  const Rows rows = check_args(args);
  require_indices("embedding backward", "tokens", args.tokens, args.d_token_table.dim(0), kNoException);
  check_start_values("embedding backward", args.starts, args.sequence_length);
  const int32_t* const starts = data_or_null<int32_t>(args.starts);
  const int32_t* const tokens = args.tokens.data<int32_t>();
  const double* const dy = args.dy.data<double>();
  double *const d_token = args.d_token_table.data<double>(), *const d_position =
                                                                 data_or_null<double>(args.d_position_table);
  if (args.token_mode == GradientMode::kWrite) std::fill_n(d_token, args.d_token_table.numel(), 0.0);
  if (d_position != nullptr && args.position_mode == GradientMode::kWrite) {
    std::fill_n(d_position, args.d_position_table.numel(), 0.0);
  }
  each_columns(rows.columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows.rows; ++row) {
      const int64_t position = d_position == nullptr ? 0 : position_in_document(starts, row, args.sequence_length);
      for (int64_t c = begin; c < end; ++c) {
        const double d = dy[row * rows.columns + c];
        d_token[tokens[row] * rows.columns + c] += d;
        if (d_position != nullptr) d_position[position * rows.columns + c] += d;
      }
    }
  });
}

// The value that a logit counts as, and its derivative: see core/kernels/loss/args.h.
struct CappedLogit {
  double value, slope;
};

CappedLogit capped(double logit, float softcap) {
  if (softcap <= 0.0f) return {logit, 1.0};
  const double cap = static_cast<double>(softcap), cosh = std::cosh(logit / cap);
  return {cap * std::tanh(logit / cap) + 0.0 * logit, 1.0 / (cosh * cosh)};
}

void run(const CrossEntropyForwardArgs& args) {
  const Rows rows = check_args(args);
  require_indices("cross_entropy", "targets", args.targets, rows.columns, args.ignore_index);
  double* const losses = args.losses.data<double>();
  parallel_rows(rows.rows, rows.columns, [&](int64_t row) {
    const double* const logits = args.logits.data<double>() + row * rows.columns;
    const int32_t target = args.targets.data<int32_t>()[row];
    const double largest = capped(*std::max_element(logits, logits + rows.columns), args.softcap).value;
    double sum = 0.0;
    for (int64_t c = 0; c < rows.columns; ++c) sum += std::exp(capped(logits[c], args.softcap).value - largest);
    const double lse = largest + std::log(sum);
    args.lse.data<double>()[row] = lse;
    losses[row] = target == args.ignore_index ? 0.0 : lse - capped(logits[target], args.softcap).value;
  });
  double total = 0.0;
  for (int64_t row = 0; row < rows.rows; ++row) total += losses[row];
  *args.loss_sum.data<double>() = total;
}

void run(const CrossEntropyBackwardArgs& args) {
  const Rows rows = check_args(args);
  require_indices("cross_entropy backward", "targets", args.targets, rows.columns, args.ignore_index);
  const double scale = *args.scale.data<double>();
  parallel_rows(rows.rows, rows.columns, [&](int64_t row) {
    double* const logits = args.logits.data<double>() + row * rows.columns;
    const int32_t target = args.targets.data<int32_t>()[row];
    if (target == args.ignore_index) {
      std::fill_n(logits, rows.columns, 0.0);
      return;
    }
    const double lse = args.lse.data<double>()[row];
    const CappedLogit at_target = capped(logits[target], args.softcap);
    const double of_target = scale * std::expm1(at_target.value - lse) * at_target.slope;
    for (int64_t c = 0; c < rows.columns; ++c) {
      const auto [value, slope] = capped(logits[c], args.softcap);
      logits[c] = scale * std::exp(value - lse) * slope;
    }
    logits[target] = of_target;
  });
}

void run(const ColumnSumArgs& args) {
  const Rows rows = check_args(args);
  const double* const x = args.x.data<double>();
  double* const out = args.out.data<double>();
  each_columns(rows.columns, [&](int64_t begin, int64_t end) {
    if (args.mode == GradientMode::kWrite) std::fill(out + begin, out + end, 0.0);
    for (int64_t row = 0; row < rows.rows; ++row) {
      for (int64_t c = begin; c < end; ++c) out[c] += x[row * rows.columns + c];
    }
  });
}

}  // namespace mantissa::cpu::fp64
