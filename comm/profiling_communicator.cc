#include "comm/profiling_communicator.h"

namespace mantissa {
namespace {

KernelWork sent(double bytes) { return {.bytes = bytes, .bound = Bound::kOther}; }

class ProfiledWork final : public Work {
 public:
  ProfiledWork(std::unique_ptr<Work> work, const char* name, Stream& stream, StepProfiler& profiler)
      : work_(std::move(work)), name_(name), stream_(stream), profiler_(profiler) {}

  bool test() override {
    // A look from beside a GPU takes none of its time, and marks in its streams would.
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

class ProfilingCommunicator final : public Communicator {
 public:
  ProfilingCommunicator(Communicator& inner, StepProfiler& profiler) : inner_(inner), profiler_(profiler) {}

  std::string name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    return start("all_to_all", bytes(send) * others() / size(), stream,
                 [&] { return inner_.all_to_all(send, recv, stream); });
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    return start("all_gather", bytes(send) * others(), stream, [&] { return inner_.all_gather(send, recv, stream); });
  }
  std::unique_ptr<Work> meet(Stream& stream) override {
    return start("meet", 0.0, stream, [&] { return inner_.meet(stream); });
  }

  bool carries_device_memory() const override { return inner_.carries_device_memory(); }
  bool shares_node_memory() const override { return inner_.shares_node_memory(); }
  bool can_be_captured() const override { return inner_.can_be_captured(); }
  void watch_captured(Stream& stream) override { inner_.watch_captured(stream); }
  std::unique_ptr<Registration> register_buffers(std::span<const Tensor> buffers) override {
    return inner_.register_buffers(buffers);
  }

  std::shared_ptr<Storage> allocate_shared(size_t bytes, const char* what) override {
    return inner_.allocate_shared(bytes, what);
  }

  SharedRows rows_of_all(const Tensor& mine) const override { return inner_.rows_of_all(mine); }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    if (!profiler_.recording()) return inner_.all_gather_bytes(mine);
    const StepProfiler::Op op(profiler_, "all_gather_bytes", sent(static_cast<double>(mine.size()) * others()),
                              nullptr);
    return inner_.all_gather_bytes(mine);
  }
  void barrier() override {
    if (!profiler_.recording()) return inner_.barrier();
    const StepProfiler::Op op(profiler_, "barrier", sent(0.0), nullptr);
    inner_.barrier();
  }
  void abort(int exit_code) override { inner_.abort(exit_code); }

 private:
  static double bytes(const Tensor& tensor) { return static_cast<double>(tensor.size_bytes()); }
  double others() const { return inner_.size() - 1; }

  template <typename Start>
  std::unique_ptr<Work> start(const char* name, double bytes, Stream& stream, Start start) {
    const auto timed = [&] {
      if (!profiler_.recording()) return start();
      const StepProfiler::Op op(profiler_, name, sent(bytes), &stream);
      return start();
    };
    return std::make_unique<ProfiledWork>(timed(), name, stream, profiler_);
  }

  Communicator& inner_;
  StepProfiler& profiler_;
};

}  // namespace

std::unique_ptr<Communicator> create_profiling_communicator(Communicator& communicator, StepProfiler& profiler) {
  return std::make_unique<ProfilingCommunicator>(communicator, profiler);
}

}  // namespace mantissa
