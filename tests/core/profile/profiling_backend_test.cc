// Every call reaches the wrapped backend unchanged and is recorded under its name.
#include "core/backend/decorators.h"

#include <gtest/gtest.h>

#include "core/backend/all_args.h"
#include "core/backend/backend.h"
#include "core/base/error.h"
#include "tests/core/tensor/host_storage.h"

namespace mantissa {
namespace {

// Records each call and the address of its arguments.
class NotingBackend final : public ForwardsAllKernels<NotingBackend> {
 public:
  struct Call {
    std::string name;
    const void* arguments = nullptr;
    Stream* stream = nullptr;
    bool operator==(const Call&) const = default;
  };
  explicit NotingBackend(Call& last) : last_(last) {}

  Device device() const override { return {Device::Kind::kCuda, 3}; }
  std::string describe() const override { return "noting"; }
  std::unique_ptr<Stream> create_stream() override { return DryRunBackend().create_stream(); }
  void set_gemm_options(const GemmOptions& options) override { last_ = {"set_gemm_options", &options, nullptr}; }
  void set_attention_choice(AttentionChoice choice) override {
    last_ = {choice == AttentionChoice::kOwn ? "own attention" : "other attention", nullptr, nullptr};
  }
  Fp8GemmSupport fp8_gemm_support() const override { return Fp8GemmSupport::kTensorScaled; }
  std::string describe_fp8_gemm_support() const override { return "noting units"; }
  std::unique_ptr<CapturedWork> capture(Stream&, const std::function<void()>&) override { return nullptr; }
  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override {
    last_ = {"allocate " + std::to_string(bytes), what, nullptr};
    return nullptr;
  }
  std::shared_ptr<Storage> reserve(size_t bytes) override {
    last_ = {"reserve " + std::to_string(bytes), nullptr, nullptr};
    return nullptr;
  }
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) override {
    last_ = {"staging " + std::to_string(bytes), what, nullptr};
    return nullptr;
  }
  MemoryUse memory_use() const override { return {7, 11}; }
  void copy(const Tensor& src, const Tensor&, Stream& stream) override { last_ = {"copy", &src, &stream}; }
  void upload(const void* host, const Tensor&, Stream& stream) override { last_ = {"upload", host, &stream}; }
  void download(const Tensor&, void* host, Stream& stream) override { last_ = {"download", host, &stream}; }

  template <typename Args>
  void call(const Args& args, Stream& stream) {
    last_ = {std::string(Args::kName), &args, &stream};
  }

 private:
  Call& last_;
};

class ProfilingBackendTest : public ::testing::Test {
 protected:
  template <typename... Args>
  void expect_forwarded(KernelList<Args...>) {
    (expect_forwarded(Args()), ...);
  }
  template <typename Args>
  void expect_forwarded(const Args& args) {
    backend_.run(args, *stream_);
    EXPECT_EQ(last_, (NotingBackend::Call{std::string(Args::kName), &args, stream_.get()}));
  }

  NotingBackend::Call last_;
  StepProfiler profiler_{{.warm_up_steps = 0}};
  std::unique_ptr<Backend> profiling_ = create_profiling_backend(std::make_unique<NotingBackend>(last_), profiler_);
  Backend& backend_ = *profiling_;
  std::unique_ptr<Stream> stream_ = backend_.create_stream();
};

TEST_F(ProfilingBackendTest, HandsOnEveryKernel) { expect_forwarded(Kernels()); }

TEST_F(ProfilingBackendTest, HandsOnEverythingElse) {
  EXPECT_EQ(backend_.device(), (Device{Device::Kind::kCuda, 3}));
  EXPECT_EQ(backend_.describe(), "noting");
  EXPECT_EQ(backend_.memory_use().peak_bytes, 11u);
  EXPECT_EQ(backend_.fp8_gemm_support(), Fp8GemmSupport::kTensorScaled);
  EXPECT_EQ(backend_.describe_fp8_gemm_support(), "noting units");
  const GemmOptions options;
  backend_.set_gemm_options(options);
  EXPECT_EQ(last_, (NotingBackend::Call{"set_gemm_options", &options, nullptr}));
  backend_.set_attention_choice(AttentionChoice::kOwn);
  EXPECT_EQ(last_.name, "own attention");
  backend_.allocate(5, "what");
  EXPECT_EQ(last_.name, "allocate 5");
  backend_.reserve(6);
  EXPECT_EQ(last_.name, "reserve 6");
  backend_.allocate_staging(7, "what");
  EXPECT_EQ(last_.name, "staging 7");
  const Tensor tensor;
  float host = 0.0f;
  backend_.copy(tensor, tensor, *stream_);
  EXPECT_EQ(last_, (NotingBackend::Call{"copy", &tensor, stream_.get()}));
  backend_.upload(&host, tensor, *stream_);
  EXPECT_EQ(last_, (NotingBackend::Call{"upload", &host, stream_.get()}));
  backend_.download(tensor, &host, *stream_);
  EXPECT_EQ(last_, (NotingBackend::Call{"download", &host, stream_.get()}));
  backend_.fill(tensor, 1.0f, *stream_);
  EXPECT_EQ(last_.name, "fill");
}

TEST_F(ProfilingBackendTest, RecordsNameAndWorkInAStep) {
  profiler_.attach(*stream_, StreamOrder::kInline);
  const Tensor x(testing::host_storage(40), DType::kF32, {10});
  {
    const Range step(RangeKind::kPhase, "step");
    backend_.run(AddArgs{.a = x, .b = x, .y = x}, *stream_);
    EXPECT_EQ(last_.name, "add");
    backend_.fill(x, 0.0f, *stream_);
  }
  backend_.fill(x, 0.0f, *stream_);  // outside of a step
  const auto rows = profiler_.finish().rows();
  ASSERT_EQ(rows.size(), 3u);
  for (const OpTime& row : rows) {
    EXPECT_EQ(row.work.bytes, row.op == "add" ? 120.0 : row.op == "fill" ? 40.0 : 0.0) << row.op;
    EXPECT_EQ(row.calls, 1) << row.op;
  }
}

TEST_F(ProfilingBackendTest, RefusesToCapture) {
  EXPECT_THROW(backend_.capture(*stream_, [] {}), ConfigError);
}

}  // namespace
}  // namespace mantissa
