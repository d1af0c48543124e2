#include "comm/communicator.h"
#include "core/profile/step_profiler.h"

namespace mantissa {
namespace {

class ProfiledWork final : public Work {
 public:
  ProfiledWork(std::unique_ptr<Work> work, const char* name, Stream& stream, StepProfiler& profiler)
      : work_(std::move(work)), name_(name), stream_(stream), profiler_(profiler) {}

  bool test() override {
    // A test beside a GPU takes none of its time, but marks in its streams would.
    if (!profiler_.recording() || profiler_.order() == StreamOrder::kBeside) return work_->test();
    const StepProfiler::Op poll(profiler_, name_, {}, &stream_, SpanKind::kPoll);
    return work_->test();
  }

  void wait() override {
    if (!profiler_.recording()) return work_->wait();
    const StepProfiler::Op poll(profiler_, name_, {}, &stream_, SpanKind::kPoll);
    work_->wait();
  }

 private:
  const std::unique_ptr<Work> work_;
  const char* const name_;
  Stream& stream_;
  StepProfiler& profiler_;
};

class ProfilingCommunicator final : public ForwardingCommunicator {
  using Base = ForwardingCommunicator;

 public:
  ProfilingCommunicator(Communicator& inner, StepProfiler& profiler) : Base(inner), profiler_(profiler) {}
  ProfilingCommunicator(std::unique_ptr<Communicator> group, StepProfiler& profiler)
      : Base(std::move(group)), profiler_(profiler) {}

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    const double bytes = static_cast<double>(send.size_bytes()) * others() / size();
    return start("all_to_all", bytes, stream, [&] { return Base::all_to_all(send, recv, stream); });
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    const double bytes = static_cast<double>(send.size_bytes()) * others();
    return start("all_gather", bytes, stream, [&] { return Base::all_gather(send, recv, stream); });
  }
  std::unique_ptr<Work> node_barrier(Stream& stream) override {
    return start("node_barrier", 0.0, stream, [&] { return Base::node_barrier(stream); });
  }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    const double bytes = static_cast<double>(mine.size()) * others();
    return timed("all_gather_bytes", bytes, nullptr, [&] { return Base::all_gather_bytes(mine); });
  }
  void barrier() override {
    timed("barrier", 0.0, nullptr, [&] { Base::barrier(); });
  }
  std::unique_ptr<Communicator> split(int color, int members) override {
    return std::make_unique<ProfilingCommunicator>(Base::split(color, members), profiler_);
  }

 private:
  double others() const { return size() - 1; }

  template <typename Call>
  std::invoke_result_t<Call> timed(const char* name, double bytes, Stream* stream, Call call) {
    if (!profiler_.recording()) return call();
    const StepProfiler::Op op(profiler_, name, {.bytes = bytes, .bound = Bound::kOther}, stream);
    return call();
  }
  template <typename Start>
  std::unique_ptr<Work> start(const char* name, double bytes, Stream& stream, Start start) {
    return std::make_unique<ProfiledWork>(timed(name, bytes, &stream, start), name, stream, profiler_);
  }

  StepProfiler& profiler_;
};

}  // namespace

std::unique_ptr<Communicator> create_profiling_communicator(Communicator& communicator, StepProfiler& profiler) {
  return std::make_unique<ProfilingCommunicator>(communicator, profiler);
}

}  // namespace mantissa
