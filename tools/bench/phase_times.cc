#include "tools/bench/phase_times.h"

#include <algorithm>

namespace mantissa {

PhaseTimes::PhaseTimes(std::unique_ptr<StreamTimer> timer) : timer_(std::move(timer)), before_(set_range_sink(this)) {}

PhaseTimes::~PhaseTimes() { set_range_sink(before_); }

void PhaseTimes::begin(RangeKind kind, const char* name) {
  if (kind == RangeKind::kPhase) open_.push_back({name, timer_->mark(), 0});
}

void PhaseTimes::end(RangeKind kind, const char*) {
  if (kind != RangeKind::kPhase) return;
  closed_.push_back(open_.back());
  closed_.back().to = timer_->mark();
  open_.pop_back();
}

std::vector<std::pair<std::string, double>> PhaseTimes::milliseconds() {
  std::vector<std::pair<std::string, double>> sums;
  for (const Span& span : closed_) {
    auto sum = std::find_if(sums.begin(), sums.end(), [&](const auto& entry) { return entry.first == span.name; });
    if (sum == sums.end()) sum = sums.insert(sums.end(), {span.name, 0.0});
    sum->second += timer_->milliseconds(span.from, span.to);
  }
  return sums;
}

}  // namespace mantissa
