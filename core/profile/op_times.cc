#include "core/profile/op_times.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace mantissa {
namespace {

using nlohmann::json;

// A value where there is one, else an empty column of the same width.
std::string column(int width, int decimals, std::optional<double> value) {
  return value ? fmt::format("{:>{}.{}f}", *value, width, decimals) : std::string(static_cast<size_t>(width), ' ');
}

std::optional<double> rate(double amount, double ms) {
  if (amount <= 0.0 || ms <= 0.0) return std::nullopt;
  return amount / (1e-3 * ms) * 1e-9;
}

std::string label(const OpTime& row) {
  if (row.op.empty()) return "(no operation)";
  const std::string dtype = row.work.flops > 0.0 ? fmt::format(" {}", row.work.dtype) : "";
  return fmt::format("{}{}{}", row.beside ? "beside: " : "", row.op, dtype);
}

std::string line(const OpTime& row, const OpTimes& times, const Ceilings& ceilings) {
  const auto steps = static_cast<double>(times.steps());
  std::optional<double> calls, share, bytes_per_second, per_cent;
  if (!row.op.empty()) calls = static_cast<double>(row.calls) / steps;
  if (!row.beside && times.step_ms() > 0.0) share = 100.0 * row.ms / times.step_ms();
  if (!row.polled) bytes_per_second = rate(row.work.bytes, row.ms);
  if (const auto least = ceilings.least_seconds(row.work); least && row.ms > 0.0) per_cent = 1e5 * *least / row.ms;
  const std::string name_and_time =
      fmt::format("\n  {:<9} {:<28}{}{:>11.3f}", row.phase, label(row), column(9, 1, calls), row.ms / steps);
  const std::string text = name_and_time + column(11, 1, share) + column(12, 1, rate(row.work.flops, row.ms)) +
                           column(10, 2, bytes_per_second) + column(14, 1, per_cent);
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

// --- the trace

constexpr double kShortestPollUs = 10.0;
constexpr int kPhaseThread = 0;

int thread_of(const Span& span) { return span.kind == SpanKind::kPhase ? kPhaseThread : span.lane + 1; }

json name_event(const char* what, int rank, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

json event(const Span& span, int rank) {
  json event = {{"name", span.name},
                {"cat", span.kind == SpanKind::kPhase ? "phase" : "op"},
                {"ph", "X"},
                {"ts", span.begin_us},
                {"dur", span.end_us - span.begin_us},
                {"pid", rank},
                {"tid", thread_of(span)}};
  if (span.kind == SpanKind::kPhase) return event;
  json& arguments = event["args"] = {{"phase", span.phase}};
  if (span.work.bytes > 0.0) arguments["bytes"] = span.work.bytes;
  if (span.work.flops > 0.0) {
    arguments["flops"] = span.work.flops;
    arguments["dtype"] = std::string(name(span.work.dtype));
  }
  return event;
}

}  // namespace

size_t OpTimes::phase_index(std::string_view phase) const {
  const auto found = std::ranges::find_if(phases_, [&](const auto& entry) { return entry.first == phase; });
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
  std::ranges::stable_sort(rows, [this](const OpTime& a, const OpTime& b) {
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

std::optional<double> Ceilings::least_seconds(const KernelWork& work) const {
  if (work.bound != Bound::kDevice || (work.flops <= 0.0 && work.bytes <= 0.0)) return std::nullopt;
  const auto peak = gemm_flops.find(work.dtype);
  if (memory_bytes <= 0.0 || (work.flops > 0.0 && peak == gemm_flops.end())) return std::nullopt;
  const double products = work.flops > 0.0 ? work.flops / peak->second : 0.0;
  return std::max(products, work.bytes / memory_bytes);
}

std::vector<DType> product_dtypes(const OpTimes& times) {
  std::vector<DType> dtypes;
  for (const OpTime& row : times.rows()) {
    const bool known = std::ranges::find(dtypes, row.work.dtype) != dtypes.end();
    if (row.work.flops > 0.0 && !known) dtypes.push_back(row.work.dtype);
  }
  return dtypes;
}

std::string to_text(const OpTimes& times, const Ceilings& ceilings) {
  std::string text = fmt::format("\n  {:<9} {:<28}{:>9}{:>11}{:>11}{:>12}{:>10}{:>14}", "phase", "operation", "calls",
                                 "ms", "% of step", "GFLOP/s", "GB/s", "% of ceiling");
  for (const OpTime& row : times.rows()) text += line(row, times, ceilings);
  const auto steps = static_cast<double>(times.steps());
  for (const OpTime& whole : times.polled()) {
    text += fmt::format("\n  {} in all phases: {:.3f} ms a step{}", whole.op, whole.ms / steps,
                        whole.beside ? " on its stream" : "");
    if (whole.work.bytes > 0.0) text += fmt::format(", {:.3f} MB sent", whole.work.bytes * 1e-6 / steps);
    if (const auto gb = rate(whole.work.bytes, whole.ms)) text += fmt::format(", {:.3f} GB/s", *gb);
  }
  text += "\n  ceilings:";
  for (const auto& [dtype, flops] : ceilings.gemm_flops)
    text += fmt::format(" GEMM {} {:.1f} GFLOP/s,", dtype, flops * 1e-9);
  text += ceilings.memory_bytes > 0.0 ? fmt::format(" memory {:.2f} GB/s", ceilings.memory_bytes * 1e-9)
                                      : std::string(" memory not measured");
  constexpr double kMeaningful = 1.1;  // the rest is noise of the measurement
  const bool is_exceeded = std::ranges::any_of(times.rows(), [&](const OpTime& row) {
    return row.ms > 0.0 && 1e3 * ceilings.least_seconds(row.work).value_or(0.0) > kMeaningful * row.ms;
  });
  if (!is_exceeded) return text;
  return text +
         "\n  Above 110 % of a ceiling the figure means nothing: the data were in caches, or the ceilings were measured"
         "\n  while something else ran on this machine.";
}

std::string to_chrome_trace(const std::vector<StepSpans>& steps, int rank) {
  json events = json::array();
  int lanes = 1;
  for (const StepSpans& step : steps) {
    for (const Span& span : step.spans) {
      if (span.kind == SpanKind::kPoll && span.end_us - span.begin_us < kShortestPollUs) continue;
      lanes = std::max(lanes, span.lane + 1);
      events.push_back(event(span, rank));
    }
  }
  events.push_back(name_event("process_name", rank, kPhaseThread, fmt::format("rank {}", rank)));
  events.push_back(name_event("thread_name", rank, kPhaseThread, "phases"));
  for (int lane = 0; lane < lanes; ++lane) {
    events.push_back(
        name_event("thread_name", rank, lane + 1, lane == 0 ? "operations" : fmt::format("beside, stream {}", lane)));
  }
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(-1, ' ', true);
}

}  // namespace mantissa
