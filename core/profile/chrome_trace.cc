#include "core/profile/chrome_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace mantissa {
namespace {

using nlohmann::json;

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
