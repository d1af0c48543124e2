// Every call arrives at the backend behind, as it was made, and is recorded under its name.
#include "core/backend/profiling_backend.h"

#include <gtest/gtest.h>

#include "core/backend/dry_run_backend.h"
#include "core/base/error.h"
#include "core/kernels/attention/args.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/embedding/args.h"
#include "core/kernels/loss/args.h"
#include "core/kernels/norm/args.h"
#include "core/kernels/optimizer/args.h"
#include "core/kernels/probe/args.h"
#include "core/kernels/quantize/args.h"
#include "tests/core/tensor/host_storage.h"

namespace mantissa {
namespace {

// Writes down which call came, and the address of its arguments.
class NotingBackend final : public Backend {
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
  NarrowUnits narrow_units() const override { return NarrowUnits::kTensorScaled; }
  std::string describe_narrow_units() const override { return "noting units"; }
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
  void fill(const Tensor& dst, float, Stream& stream) override { last_ = {"fill", &dst, &stream}; }

  void cast(const CastArgs& args, Stream& stream) override { last_ = {"cast", &args, &stream}; }
  void split(const SplitArgs& args, Stream& stream) override { last_ = {"split", &args, &stream}; }
  void add(const AddArgs& args, Stream& stream) override { last_ = {"add", &args, &stream}; }
  void gemm(const GemmArgs& args, Stream& stream) override { last_ = {"gemm", &args, &stream}; }
  void column_sum(const ColumnSumArgs& args, Stream& stream) override { last_ = {"column_sum", &args, &stream}; }
  void embedding_forward(const EmbeddingForwardArgs& args, Stream& stream) override {
    last_ = {"embedding_forward", &args, &stream};
  }
  void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) override {
    last_ = {"embedding_backward", &args, &stream};
  }
  void layer_norm_forward(const LayerNormForwardArgs& args, Stream& stream) override {
    last_ = {"layer_norm_forward", &args, &stream};
  }
  void layer_norm_backward(const LayerNormBackwardArgs& args, Stream& stream) override {
    last_ = {"layer_norm_backward", &args, &stream};
  }
  void rms_norm_forward(const RmsNormForwardArgs& args, Stream& stream) override {
    last_ = {"rms_norm_forward", &args, &stream};
  }
  void rms_norm_backward(const RmsNormBackwardArgs& args, Stream& stream) override {
    last_ = {"rms_norm_backward", &args, &stream};
  }
  void attention_forward(const AttentionForwardArgs& args, Stream& stream) override {
    last_ = {"attention_forward", &args, &stream};
  }
  void attention_backward(const AttentionBackwardArgs& args, Stream& stream) override {
    last_ = {"attention_backward", &args, &stream};
  }
  void gelu_forward(const GeluForwardArgs& args, Stream& stream) override { last_ = {"gelu_forward", &args, &stream}; }
  void gelu_backward(const GeluBackwardArgs& args, Stream& stream) override {
    last_ = {"gelu_backward", &args, &stream};
  }
  void swiglu_forward(const SwigluForwardArgs& args, Stream& stream) override {
    last_ = {"swiglu_forward", &args, &stream};
  }
  void swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) override {
    last_ = {"swiglu_backward", &args, &stream};
  }
  void rope(const RopeArgs& args, Stream& stream) override { last_ = {"rope", &args, &stream}; }
  void dropout(const DropoutArgs& args, Stream& stream) override { last_ = {"dropout", &args, &stream}; }
  void cross_entropy_forward(const CrossEntropyForwardArgs& args, Stream& stream) override {
    last_ = {"cross_entropy_forward", &args, &stream};
  }
  void cross_entropy_backward(const CrossEntropyBackwardArgs& args, Stream& stream) override {
    last_ = {"cross_entropy_backward", &args, &stream};
  }
  void tensor_stats(const TensorStatsArgs& args, Stream& stream) override { last_ = {"tensor_stats", &args, &stream}; }
  void record_verdict(const RecordVerdictArgs& args, Stream& stream) override {
    last_ = {"record_verdict", &args, &stream};
  }
  void decide_update(const DecideUpdateArgs& args, Stream& stream) override {
    last_ = {"decide_update", &args, &stream};
  }
  void adamw(const AdamWArgs& args, Stream& stream) override { last_ = {"adamw", &args, &stream}; }
  void sum_contributions(const SumContributionsArgs& args, Stream& stream) override {
    last_ = {"sum_contributions", &args, &stream};
  }
  void amax(const AmaxArgs& args, Stream& stream) override { last_ = {"amax", &args, &stream}; }
  void tensor_scale(const TensorScaleArgs& args, Stream& stream) override { last_ = {"tensor_scale", &args, &stream}; }
  void quantize(const QuantizeArgs& args, Stream& stream) override { last_ = {"quantize", &args, &stream}; }
  void from_codes(const FromCodesArgs& args, Stream& stream) override { last_ = {"from_codes", &args, &stream}; }
  void hadamard(const HadamardArgs& args, Stream& stream) override { last_ = {"hadamard", &args, &stream}; }
  void delayed_scales(const DelayedScalesArgs& args, Stream& stream) override {
    last_ = {"delayed_scales", &args, &stream};
  }
  void exponent_histogram(const ExponentHistogramArgs& args, Stream& stream) override {
    last_ = {"exponent_histogram", &args, &stream};
  }
  void update_stagnation(const UpdateStagnationArgs& args, Stream& stream) override {
    last_ = {"update_stagnation", &args, &stream};
  }
  void rounding_losses(const RoundingLossesArgs& args, Stream& stream) override {
    last_ = {"rounding_losses", &args, &stream};
  }
  void compare(const CompareArgs& args, Stream& stream) override { last_ = {"compare", &args, &stream}; }

 private:
  Call& last_;
};

class ProfilingBackendTest : public ::testing::Test {
 protected:
  template <typename Args>
  void expect_forwarded(const char* name, void (Backend::*kernel)(const Args&, Stream&)) {
    const Args args{};
    (backend_.*kernel)(args, *stream_);
    EXPECT_EQ(last_, (NotingBackend::Call{name, &args, stream_.get()}));
    ++forwarded_;
  }

  NotingBackend::Call last_;
  int forwarded_ = 0;
  StepProfiler profiler_{{.warm_up_steps = 0}};
  ProfilingBackend backend_{std::make_unique<NotingBackend>(last_), profiler_};
  std::unique_ptr<Stream> stream_ = backend_.create_stream();
};

// A kernel that is new must be added to ProfilingBackend, which would not compile, and here.
TEST_F(ProfilingBackendTest, HandsOnEveryKernel) {
  expect_forwarded("cast", &Backend::cast);
  expect_forwarded("split", &Backend::split);
  expect_forwarded("add", &Backend::add);
  expect_forwarded("gemm", &Backend::gemm);
  expect_forwarded("column_sum", &Backend::column_sum);
  expect_forwarded("embedding_forward", &Backend::embedding_forward);
  expect_forwarded("embedding_backward", &Backend::embedding_backward);
  expect_forwarded("layer_norm_forward", &Backend::layer_norm_forward);
  expect_forwarded("layer_norm_backward", &Backend::layer_norm_backward);
  expect_forwarded("rms_norm_forward", &Backend::rms_norm_forward);
  expect_forwarded("rms_norm_backward", &Backend::rms_norm_backward);
  expect_forwarded("attention_forward", &Backend::attention_forward);
  expect_forwarded("attention_backward", &Backend::attention_backward);
  expect_forwarded("gelu_forward", &Backend::gelu_forward);
  expect_forwarded("gelu_backward", &Backend::gelu_backward);
  expect_forwarded("swiglu_forward", &Backend::swiglu_forward);
  expect_forwarded("swiglu_backward", &Backend::swiglu_backward);
  expect_forwarded("rope", &Backend::rope);
  expect_forwarded("dropout", &Backend::dropout);
  expect_forwarded("cross_entropy_forward", &Backend::cross_entropy_forward);
  expect_forwarded("cross_entropy_backward", &Backend::cross_entropy_backward);
  expect_forwarded("tensor_stats", &Backend::tensor_stats);
  expect_forwarded("record_verdict", &Backend::record_verdict);
  expect_forwarded("decide_update", &Backend::decide_update);
  expect_forwarded("adamw", &Backend::adamw);
  expect_forwarded("sum_contributions", &Backend::sum_contributions);
  expect_forwarded("amax", &Backend::amax);
  expect_forwarded("tensor_scale", &Backend::tensor_scale);
  expect_forwarded("quantize", &Backend::quantize);
  expect_forwarded("from_codes", &Backend::from_codes);
  expect_forwarded("hadamard", &Backend::hadamard);
  expect_forwarded("delayed_scales", &Backend::delayed_scales);
  expect_forwarded("exponent_histogram", &Backend::exponent_histogram);
  expect_forwarded("update_stagnation", &Backend::update_stagnation);
  expect_forwarded("rounding_losses", &Backend::rounding_losses);
  expect_forwarded("compare", &Backend::compare);
  EXPECT_EQ(forwarded_, 36);
}

TEST_F(ProfilingBackendTest, HandsOnEverythingElse) {
  EXPECT_EQ(backend_.device(), (Device{Device::Kind::kCuda, 3}));
  EXPECT_EQ(backend_.describe(), "noting");
  EXPECT_EQ(backend_.memory_use().peak_bytes, 11u);
  EXPECT_EQ(backend_.narrow_units(), NarrowUnits::kTensorScaled);
  EXPECT_EQ(backend_.describe_narrow_units(), "noting units");
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
  EXPECT_EQ(last_, (NotingBackend::Call{"fill", &tensor, stream_.get()}));
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
  backend_.fill(x, 0.0f, *stream_);  // not in a step
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
