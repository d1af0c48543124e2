// Streams and timers that follow a script: time passes only in advance().
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/profile/step_profiler.h"
#include "core/tensor/stream.h"

namespace mantissa::testing {

class ScriptedStream final : public Stream {
 public:
  // The stream is busy for this long.
  void advance(double ms) { now_ms += ms; }

  std::unique_ptr<Event> record() override { return std::make_unique<Moment>(now_ms); }
  void wait(const Event& event) override { now_ms = std::max(now_ms, dynamic_cast<const Moment&>(event).ms); }
  void synchronize() override {}

  double now_ms = 0.0;

 private:
  struct Moment final : Event {
    explicit Moment(double at) : ms(at) {}
    bool done() const override { return true; }
    double ms;
  };
};

class ScriptedTimer final : public StreamTimer {
 public:
  explicit ScriptedTimer(const ScriptedStream& stream) : stream_(stream) {}
  size_t mark() override {
    marks_.push_back(stream_.now_ms);
    return marks_.size() - 1;
  }
  double milliseconds(size_t from, size_t to) override { return marks_.at(to) - marks_.at(from); }

 private:
  const ScriptedStream& stream_;
  std::vector<double> marks_;
};

inline std::unique_ptr<StreamTimer> scripted_timer(Stream& stream) {
  return std::make_unique<ScriptedTimer>(dynamic_cast<ScriptedStream&>(stream));
}

// Runs an operation of `ms` on a stream.
inline void run_op(StepProfiler& profiler, const char* name, const KernelWork& work, ScriptedStream& stream, double ms,
                   SpanKind kind = SpanKind::kOp) {
  if (!profiler.recording()) return stream.advance(ms);
  const StepProfiler::Op op(profiler, name, work, &stream, kind);
  stream.advance(ms);
}

}  // namespace mantissa::testing
