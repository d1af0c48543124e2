#include "core/profile/step_profiler.h"

#include <algorithm>

namespace mantissa {

constexpr std::string_view kStep = "step";  // the phase that is a whole step

StepProfiler::~StepProfiler() {
  if (!streams_.empty()) set_range_sink(before_);
}

void StepProfiler::attach(Stream& stream, StreamOrder order) {
  MANTISSA_CHECK(streams_.empty(), "[step_profiler.attach] called twice");
  streams_.push_back(&stream);
  order_ = order;
  before_ = set_range_sink(this);
}

void StepProfiler::begin(RangeKind kind, const char* name) {
  if (before_ != nullptr) before_->begin(kind, name);
  if (kind != RangeKind::kPhase || std::this_thread::get_id() != owner_) return;
  if (open_ == nullptr && name == kStep) begin_step();
  if (open_ != nullptr) begin_span(SpanKind::kPhase, name, {}, nullptr);
}

void StepProfiler::end(RangeKind kind, const char* name) {
  if (before_ != nullptr) before_->end(kind, name);
  if (kind != RangeKind::kPhase || std::this_thread::get_id() != owner_ || open_ == nullptr) return;
  end_span();
  if (open_ == nullptr || !open_->open.empty()) return;
  if (std::uncaught_exceptions() > 0) return drop_step();  // an exception ended the step early
  open_ = nullptr;
}

void StepProfiler::begin_step() try {
  if (steps_++ < options_.warm_up_steps) return;
  // The host is at most one step ahead of a GPU: the older of two recordings is over, and reading it does not stall.
  while (recordings_.size() >= 2) collect();
  auto recording = std::make_unique<Recording>();
  open_ = recording.get();
  recordings_.push_back(std::move(recording));
  for (Stream* const stream : streams_) add_lane(*stream);
  if (trace_complete_) return;
  if (!boundaries_) boundaries_ = options_.create_timer(*streams_[0]);
  open_->boundary = boundaries_->mark();
} catch (...) {
  if (open_ != nullptr) drop_step();
  throw;
}

void StepProfiler::add_lane(Stream& stream) {
  Lane lane{.timer = options_.create_timer(stream)};
  if (!open_->lanes.empty()) {
    // Makes the first mark of this lane and the next one of lane 0 the same moment.
    stream.wait(*streams_[0]->record());
    lane.aligned = open_->lanes[0].timer->mark();
  }
  lane.timer->mark();
  open_->lanes.push_back(std::move(lane));
}

int StepProfiler::lane_of(Stream* stream) {
  if (stream == nullptr || order_ == StreamOrder::kInline) return 0;
  const auto found = std::find(streams_.begin(), streams_.end(), stream);
  if (found != streams_.end()) return static_cast<int>(found - streams_.begin());
  add_lane(*stream);
  streams_.push_back(stream);
  return static_cast<int>(streams_.size()) - 1;
}

const char* StepProfiler::phase() const {
  for (auto index = open_->open.rbegin(); index != open_->open.rend(); ++index) {
    if (open_->spans[*index].kind == SpanKind::kPhase) return open_->spans[*index].name;
  }
  return kStep.data();
}

void StepProfiler::begin_span(SpanKind kind, const char* name, const KernelWork& work, Stream* stream) try {
  const int lane = lane_of(stream);
  Lane& on = open_->lanes[static_cast<size_t>(lane)];
  const char* const in_phase = kind == SpanKind::kPhase ? name : phase();
  open_->spans.push_back({.name = name, .phase = in_phase, .kind = kind, .lane = lane, .work = work});
  open_->marks.push_back({.parent = on.open.empty() ? -1 : static_cast<int>(on.open.back())});
  const size_t index = open_->spans.size() - 1;
  open_->open.push_back(index);
  on.open.push_back(index);
  open_->marks.back().from = on.timer->mark();
} catch (...) {
  drop_step();
  throw;
}

void StepProfiler::end_span() noexcept {
  if (open_ == nullptr) return;  // dropped
  const size_t index = open_->open.back();
  Lane& on = open_->lanes[static_cast<size_t>(open_->spans[index].lane)];
  on.open.pop_back();
  open_->open.pop_back();
  try {
    open_->marks[index].to = on.timer->mark();
  } catch (const std::exception&) {
    drop_step();
  }
}

StepSpans StepProfiler::resolve(const Recording& recording) const {
  std::vector<double> offsets_us;
  for (const Lane& lane : recording.lanes) {
    offsets_us.push_back(1e3 * recording.lanes[0].timer->milliseconds(0, lane.aligned));
  }
  StepSpans step{.spans = recording.spans};
  for (size_t index = 0; index < step.spans.size(); ++index) {
    Span& span = step.spans[index];
    const auto lane = static_cast<size_t>(span.lane);
    // Start and end are differences from one mark: nested spans stay nested whatever the timer's precision.
    const auto at = [&](size_t mark) {
      return offsets_us[lane] + 1e3 * recording.lanes[lane].timer->milliseconds(0, mark);
    };
    span.begin_us = at(recording.marks[index].from);
    span.end_us = at(recording.marks[index].to);
    const double duration_us = span.end_us - span.begin_us;
    span.self_us = duration_us;
    const int parent = recording.marks[index].parent;
    if (parent >= 0) step.spans[static_cast<size_t>(parent)].self_us -= duration_us;
  }
  return step;
}

void StepProfiler::collect() {
  const std::unique_ptr<Recording> recording = std::move(recordings_.front());
  recordings_.pop_front();
  StepSpans step = resolve(*recording);
  times_.add(step);
  if (!trace_complete_) keep_for_trace(std::move(step), recording->boundary);
}

void StepProfiler::keep_for_trace(StepSpans step, size_t boundary) {
  if (traced_spans_ + step.spans.size() > options_.traced_spans) {
    trace_complete_ = true;
    return;
  }
  // A GPU's times have float precision: clamp them so that no step starts before the previous step ends.
  double base_us = 1e3 * boundaries_->milliseconds(0, boundary) - step.spans[0].begin_us;
  if (!traced_.empty()) base_us = std::max(base_us, traced_.back().spans[0].end_us - step.spans[0].begin_us);
  for (Span& span : step.spans) {
    span.begin_us += base_us;
    span.end_us += base_us;
  }
  traced_spans_ += step.spans.size();
  traced_.push_back(std::move(step));
  trace_complete_ = static_cast<int>(traced_.size()) >= options_.traced_steps;
}

const OpTimes& StepProfiler::finish() {
  MANTISSA_CHECK(open_ == nullptr, "[step_profiler.finish] called within a step");
  while (!recordings_.empty()) collect();
  return times_;
}

}  // namespace mantissa
