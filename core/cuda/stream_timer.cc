#include "core/cuda/stream_timer.h"

#include <vector>

#include "core/base/check.h"

namespace mantissa::cuda {
namespace {

class EventTimer final : public StreamTimer {
 public:
  explicit EventTimer(CudaStream& stream) : stream_(stream) {}
  ~EventTimer() override {
    for (const EventHandle event : events_) destroy_event(event);
  }
  EventTimer(const EventTimer&) = delete;
  EventTimer& operator=(const EventTimer&) = delete;

  size_t mark() override {
    events_.push_back(create_timing_event());
    record(events_.back(), stream_.handle());
    return events_.size() - 1;
  }

  double milliseconds(size_t from, size_t to) override {
    MANTISSA_CHECK(from < events_.size() && to < events_.size(), "[stream_timer] marks {} and {} of {}", from, to,
                   events_.size());
    synchronize(events_[from]);
    synchronize(events_[to]);
    return elapsed_ms(events_[from], events_[to]);
  }

 private:
  CudaStream& stream_;
  std::vector<EventHandle> events_;
};

}  // namespace

std::unique_ptr<StreamTimer> make_stream_timer(CudaStream& stream) { return std::make_unique<EventTimer>(stream); }

}  // namespace mantissa::cuda
