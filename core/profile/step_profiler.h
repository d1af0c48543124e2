// StepProfiler: follows training steps through their phases and operations.
//
// It is the sink of ranges from attach() to its end and learns of phases from there; of operations, with the work that
// they are, from ProfilingBackend and ProfilingCommunicator. Both are in the way of calls only while somebody profiles.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/profile/op_times.h"
#include "core/profile/range.h"
#include "core/profile/step_spans.h"
#include "core/tensor/stream.h"
#include "core/tensor/stream_timer.h"

namespace mantissa {

// How the work of different streams of a device goes on.
enum class StreamOrder : uint8_t {
  kInline,  // each call has finished when it returns: one lane for all (CPU)
  kBeside,  // one beside the other: a lane for each (GPU)
};

struct ProfilerOptions {
  std::function<std::unique_ptr<StreamTimer>(Stream& stream)> create_timer = [](Stream&) { return make_host_timer(); };
  int warm_up_steps = 2;          // first steps, not recorded: they build primitives and choose products
  int traced_steps = 3;           // of the recorded ones, kept whole
  size_t traced_spans = 200'000;  // at most, in all of them: a step that would exceed it ends the trace
};

// A step is the phase "step"; what happens outside of it is not recorded. Phases and operations must come from the
// thread that made the profiler; ranges of others are only passed on. Profilers of a process end in the opposite order
// of their attaching. Nothing may be captured while one records.
class StepProfiler final : public RangeSink {
 public:
  explicit StepProfiler(ProfilerOptions options = {});
  ~StepProfiler() override;
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  // Once: the stream that steps are queued on, which must outlive the last step. Becomes the sink of ranges, which is
  // why the backend must be there: one that runs under another profiler makes that the sink.
  void attach(Stream& stream, StreamOrder order);

  void begin(RangeKind kind, const char* name) override;
  void end(RangeKind kind, const char* name) override;

  // Whether a step is open that is to be recorded.
  bool recording() const { return open_ != nullptr; }
  StreamOrder order() const { return order_; }
  // An operation on a stream, nullptr for that of the step, between what the stream was given before and after the
  // object's life time. Only while recording(). `name` is of static storage. Operations are nested.
  class Op {
   public:
    Op(StepProfiler& profiler, const char* name, const KernelWork& work, Stream* stream, SpanKind kind = SpanKind::kOp)
        : profiler_(profiler) {
      profiler.begin_span(kind, name, work, stream);
    }
    ~Op() { profiler_.end_span(); }
    Op(const Op&) = delete;
    Op& operator=(const Op&) = delete;

   private:
    StepProfiler& profiler_;
  };

  // Waits for what has been recorded. The times of all recorded steps.
  const OpTimes& finish();
  // The first recorded steps, those that are known by now.
  const std::vector<StepSpans>& traced() const { return traced_; }
  bool trace_complete() const { return trace_complete_; }
  const ProfilerOptions& options() const { return options_; }

 private:
  struct OpenSpan {
    size_t index;  // in Recording::spans
    bool phase;
  };
  struct Lane {
    std::unique_ptr<StreamTimer> timer;  // whose first mark was set where that of lane 0 has `aligned`
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
    std::vector<OpenSpan> open;
    size_t boundary = 0;
  };

  void begin_step();
  // nullptr: on the stream of the step. What it throws costs the recording of the step.
  void begin_span(SpanKind kind, const char* name, const KernelWork& work, Stream* stream);
  // Called by destructors. If the device fails at that very moment, which it will say again in the next call, the
  // recording of the step is all that is lost.
  void end_span() noexcept;
  void drop_step();
  int lane_of(Stream* stream);
  void add_lane(Stream& stream);
  const char* phase() const;
  // The oldest recording: waits for its marks and adds it up.
  void collect();
  StepSpans resolve(const Recording& recording) const;
  void keep_for_trace(StepSpans step, size_t boundary);

  const ProfilerOptions options_;
  const std::thread::id owner_ = std::this_thread::get_id();
  StreamOrder order_ = StreamOrder::kInline;
  std::vector<Stream*> streams_;             // by lane, once attached
  std::unique_ptr<StreamTimer> boundaries_;  // marks the begin of each recorded step while there is a trace to make
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
