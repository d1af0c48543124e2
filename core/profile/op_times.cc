#include "core/profile/op_times.h"

#include <algorithm>

namespace mantissa {

size_t OpTimes::phase_index(std::string_view phase) const {
  const auto found =
      std::find_if(phases_.begin(), phases_.end(), [&](const auto& entry) { return entry.first == phase; });
  return static_cast<size_t>(found - phases_.begin());
}

void OpTimes::add(const StepSpans& step) {
  for (const Span& span : step.spans) {
    const bool is_phase = span.kind == SpanKind::kPhase, beside = span.lane != 0;
    if (is_phase) {
      const size_t index = phase_index(span.name);
      if (index == phases_.size()) phases_.emplace_back(span.name, 0.0);
      phases_[index].second += 1e-3 * (span.end_us - span.begin_us);
    }
    const std::string_view phase = span.phase, op = is_phase ? "" : span.name;
    OpTime& sum = sums_[{phase, op, beside, span.work.flops > 0.0 ? span.work.dtype : DType::kF32}];
    sum.phase = phase;
    sum.op = op;
    sum.beside = beside;
    sum.ms += 1e-3 * span.self_us;
    if (span.kind == SpanKind::kPoll) {
      polled_.insert(op);
      continue;
    }
    ++sum.calls;
    sum.work = {.flops = sum.work.flops + span.work.flops,
                .bytes = sum.work.bytes + span.work.bytes,
                .dtype = span.work.dtype,
                .bound = span.work.bound};
  }
  ++steps_;
  step_ms_ += 1e-3 * (step.spans[0].end_us - step.spans[0].begin_us);
}

std::vector<OpTime> OpTimes::rows() const {
  std::vector<OpTime> rows;
  for (const auto& [key, sum] : sums_) {
    rows.push_back(sum);
    rows.back().polled = polled_.contains(sum.op);
  }
  std::stable_sort(rows.begin(), rows.end(), [this](const OpTime& a, const OpTime& b) {
    const auto rank = [this](const OpTime& row) {
      return std::tuple(phase_index(row.phase), row.beside, row.op.empty(), -row.ms);
    };
    return rank(a) < rank(b);
  });
  return rows;
}

std::vector<OpTime> OpTimes::polled() const {
  std::vector<OpTime> found;
  for (const std::string_view op : polled_) {
    OpTime& whole = found.emplace_back(OpTime{.op = op, .polled = true, .work = {.bound = Bound::kOther}});
    for (const auto& [key, sum] : sums_) {
      if (sum.op != op) continue;
      whole.beside |= sum.beside;
      whole.calls += sum.calls;
      whole.ms += sum.ms;
      whole.work.bytes += sum.work.bytes;
    }
  }
  return found;
}

}  // namespace mantissa
