// Range: a named span of host time, for observers that ask where a step spends it. Device-free.
//
//   const Range range(RangeKind::kPhase, "forward");
//
// Without a sink, a range costs a load and a well-predicted branch.
#pragma once

#include <atomic>
#include <cstdint>

namespace mantissa {

enum class RangeKind : uint8_t {
  kPhase,  // a part of a step or of a run: "forward", "update", "checkpoint"
  kOp,     // a kernel of a backend: "gemm"
};

// Receives ranges as they begin and end. Ranges of one thread are nested; any thread may call.
class RangeSink {
 public:
  virtual ~RangeSink() = default;
  // `name` has static storage: its address may be kept, and serves as a key.
  virtual void begin(RangeKind kind, const char* name) = 0;
  virtual void end(RangeKind kind, const char* name) = 0;
};

namespace internal {
inline std::atomic<RangeSink*> range_sink = nullptr;
inline thread_local int muted_ranges = 0;
}  // namespace internal

// Ranges of this thread do not reach the sink while the object lives. For steps that compute nothing.
class MutedRanges {
 public:
  MutedRanges() { ++internal::muted_ranges; }
  ~MutedRanges() { --internal::muted_ranges; }
  MutedRanges& operator=(MutedRanges&&) = delete;
};

// Ranges that begin from now on go to `sink`, if not null. Returns the previous sink, which must outlive ranges in it.
inline RangeSink* set_range_sink(RangeSink* sink) { return internal::range_sink.exchange(sink); }

class Range {
 public:
  Range(RangeKind kind, const char* name) : sink_(internal::range_sink.load(std::memory_order_acquire)) {
    if (sink_ == nullptr) [[likely]]
      return;
    if (internal::muted_ranges > 0) {
      sink_ = nullptr;
      return;
    }
    kind_ = kind;
    name_ = name;
    sink_->begin(kind, name);
  }
  ~Range() {
    if (sink_ != nullptr) [[unlikely]]
      sink_->end(kind_, name_);
  }
  Range& operator=(Range&&) = delete;

 private:
  RangeSink* sink_;  // the sink when the range started; nullptr: none
  RangeKind kind_;
  const char* name_;
};

}  // namespace mantissa
