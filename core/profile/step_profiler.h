// StepProfiler: records the phases and operations of training steps.
//
// From attach() until its destruction it is the sink of ranges, which report phases. ProfilingBackend and
// ProfilingCommunicator report operations and their work. These two intercept calls only while a profiler is used.
#pragma once

#include <deque>
#include <functional>

#include "core/profile/op_times.h"
#include "core/profile/range.h"
#include "core/tensor/stream.h"

namespace mantissa {

// How a device runs the work of different streams.
enum class StreamOrder : uint8_t {
  kInline,  // each call has finished when it returns: one lane for all (CPU)
  kBeside,  // streams run concurrently: a lane for each (GPU)
};

struct ProfilerOptions {
  std::function<std::unique_ptr<StreamTimer>(Stream& stream)> create_timer = [](Stream&) { return make_host_timer(); };
  int warm_up_steps = 2;          // first steps, not recorded: they build primitives and choose GEMMs
  int traced_steps = 3;           // recorded steps that are kept whole
  size_t traced_spans = 200'000;  // limit over all traced steps: a step that would exceed it ends the trace
};

// A step is the phase "step"; anything outside of it is not recorded. Phases and operations must come from the thread
// that made the profiler; ranges of other threads are only passed on. Profilers of a process must end in the reverse
// order of attach(). No work may be captured while a step is recorded.
class StepProfiler final : public RangeSink {
 public:
  explicit StepProfiler(ProfilerOptions options = {}) : options_(std::move(options)) {}
  ~StepProfiler() override;
  StepProfiler& operator=(StepProfiler&&) = delete;

  // Call once, with the stream that steps are queued on; it must outlive the last step. Makes this the sink of ranges.
  // Create the backend before: a backend that runs under another profiler makes the other profiler the sink.
  void attach(Stream& stream, StreamOrder order);

  void begin(RangeKind kind, const char* name) override;
  void end(RangeKind kind, const char* name) override;

  bool recording() const { return open_ != nullptr; }  // whether a step is being recorded
  // The innermost open phase of the step that is being recorded.
  const char* phase() const;
  StreamOrder order() const { return order_; }
  // The work queued on `stream` (nullptr: the step's) in its lifetime, while recording(). `name` is static. Nested.
  class Op {
   public:
    Op(StepProfiler& profiler, const char* name, const KernelWork& work, Stream* stream, SpanKind kind = SpanKind::kOp)
        : profiler_(profiler) {
      profiler.begin_span(kind, name, work, stream);
    }
    ~Op() { profiler_.end_span(); }
    Op& operator=(Op&&) = delete;

   private:
    StepProfiler& profiler_;
  };

  const OpTimes& finish();  // waits for the recorded work and returns the times of all recorded steps
  // The first recorded steps, as far as they have been collected.
  const std::vector<StepSpans>& traced() const { return traced_; }
  bool trace_complete() const { return trace_complete_; }
  const ProfilerOptions& options() const { return options_; }

 private:
  struct Lane {
    std::unique_ptr<StreamTimer> timer;  // its first mark is at the same moment as mark `aligned` of lane 0
    size_t aligned = 0;
    std::vector<size_t> open{};  // spans, innermost last
  };
  struct Recording {
    struct Marks {
      size_t from = 0, to = 0;
      int parent = -1;  // on the same lane
    };
    std::vector<Span> spans;
    std::vector<Marks> marks;  // of each span
    std::vector<Lane> lanes;
    std::vector<size_t> open;  // spans, innermost last
    size_t boundary = 0;
  };

  void begin_step();
  // stream: nullptr for that of the step. An exception also drops the recording of the step.
  void begin_span(SpanKind kind, const char* name, const KernelWork& work, Stream* stream);
  // Called by destructors. If the device fails, the step's recording is lost, and the next call reports it.
  void end_span() noexcept;
  void drop_step() {
    recordings_.pop_back();
    open_ = nullptr;
  }
  int lane_of(Stream* stream);
  void add_lane(Stream& stream);
  // Waits for the marks of the oldest recording and adds it to the times.
  void collect();
  StepSpans resolve(const Recording& recording) const;
  void keep_for_trace(StepSpans step, size_t boundary);

  const ProfilerOptions options_;
  const std::thread::id owner_ = std::this_thread::get_id();
  StreamOrder order_ = StreamOrder::kInline;
  std::vector<Stream*> streams_;             // by lane, once attached
  std::unique_ptr<StreamTimer> boundaries_;  // marks the start of each recorded step until the trace is complete
  std::deque<std::unique_ptr<Recording>> recordings_;  // not collected yet
  Recording* open_ = nullptr;
  int64_t steps_ = 0;  // begun
  OpTimes times_;
  std::vector<StepSpans> traced_;
  size_t traced_spans_ = 0;
  bool trace_complete_ = false;
  RangeSink* before_ = nullptr;  // once attached
};

}  // namespace mantissa
