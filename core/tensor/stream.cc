#include "core/tensor/stream.h"

#include <chrono>
#include <vector>

#include "core/base/check.h"

namespace mantissa {
namespace {

class HostTimer final : public StreamTimer {
 public:
  size_t mark() override {
    marks_.push_back(Clock::now());
    return marks_.size() - 1;
  }

  double milliseconds(size_t from, size_t to) override {
    MANTISSA_CHECK(from < marks_.size() && to < marks_.size(), "[stream_timer] marks {} and {} of {}", from, to,
                   marks_.size());
    return std::chrono::duration<double, std::milli>(marks_[to] - marks_[from]).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> marks_;
};

}  // namespace

std::unique_ptr<StreamTimer> make_host_timer() { return std::make_unique<HostTimer>(); }

}  // namespace mantissa
