// The choice between another attention library and our kernels, and that library's trial. Our kernels, with faults,
// stand in for the library.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda/runtime/runtime.h"
#include "core/kernels/attention/device_cuda.h"
#include "core/kernels/attention/own_cuda.h"
#include "core/kernels/attention/trial_cuda.h"
#include "core/tensor/half.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using testing::error_of;

// ---- The library: our kernels with faults.

// The results in which the library gives 0 instead of NaN.
enum class Hides { kNothing, kAll, kOut, kLse };

// How the library behaves, and what was called.
struct Behaviour {
  std::string refusal{};  // why the library has no plan
  size_t workspace_bytes = 0;
  float error = 0.0f;  // added to the first element of each row
  float drift = 0.0f;  // added to it as well, growing with each run
  bool fails = false;  // on execution
  bool finds_no_memory = false;
  std::function<void(const AttentionForwardArgs&)> changes{};  // changes the results
  Hides hides = Hides::kNothing;
  std::optional<AttentionFault> hidden{};  // only if the operands have this fault; otherwise always
  std::vector<AttentionPass> planned{};
  int runs = 0;
};

void add_to_first_column(const Tensor& tensor, float error, CudaStream& stream) {
  stream.synchronize();
  const int64_t columns = tensor.shape()[1];
  auto* data = tensor.data<BFloat16>();
  for (int64_t i = 0; i < tensor.numel(); i += columns) data[i] = from_float<BFloat16>(to_float(data[i]) + error);
}

// Whether these operands have the fault: it is the first one of its position in the last head.
template <typename Args>
bool has(const AttentionFault& fault, const Args& args) {
  const Tensor* operands = &args.qkv;
  if constexpr (requires { args.d_out; }) {
    if (fault.operand == AttentionFault::Operand::kGradient) operands = &args.d_out;
  }
  const float value = to_float(operands->template data<BFloat16>()[fault.index(args.shape)]);
  return std::isnan(fault.value) ? std::isnan(value) : value == fault.value;
}

template <typename T>
void hide_in(const Tensor& result) {
  for (int64_t i = 0; i < result.numel(); ++i) {
    T& element = result.data<T>()[i];
    if (!std::isfinite(to_float(element))) element = from_float<T>(0.0f);
  }
}

class FaultyPlan final : public AttentionPlan {
 public:
  explicit FaultyPlan(Behaviour& behaviour) : behaviour_(behaviour) {}
  size_t workspace_bytes() const override { return behaviour_.workspace_bytes; }
  void run(const AttentionForwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    own_attention_forward(args, stream);
    spoil(args.out, workspace, stream);
    if (behaviour_.changes) {
      stream.synchronize();
      behaviour_.changes(args);
    }
    if (!hides_in(args, stream)) return;
    if (behaviour_.hides != Hides::kLse) hide_in<BFloat16>(args.out);
    if (behaviour_.hides != Hides::kOut) hide_in<float>(args.lse);
  }
  void run(const AttentionBackwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    own_attention_backward(args, stream);
    spoil(args.d_qkv, workspace, stream);
    if (hides_in(args, stream)) hide_in<BFloat16>(args.d_qkv);
  }

 private:
  void spoil(const Tensor& result, std::byte* workspace, CudaStream& stream) {
    if (behaviour_.fails) throw CudaError("it failed");
    if (behaviour_.finds_no_memory) throw OutOfDeviceMemory("there is none");
    set_bytes_async(workspace, 0, behaviour_.workspace_bytes, stream.handle());
    ++behaviour_.runs;
    const float error = behaviour_.error + behaviour_.drift * static_cast<float>(behaviour_.runs);
    if (error != 0.0f) add_to_first_column(result, error, stream);
  }
  template <typename Args>
  bool hides_in(const Args& args, CudaStream& stream) const {
    if (behaviour_.hides == Hides::kNothing) return false;
    stream.synchronize();
    return !behaviour_.hidden || has(*behaviour_.hidden, args);
  }
  Behaviour& behaviour_;
};

class FaultyEngine final : public AttentionEngine {
 public:
  explicit FaultyEngine(Behaviour& behaviour) : behaviour_(behaviour) {}
  std::unique_ptr<AttentionPlan> plan(const AttentionKey& key) override {
    behaviour_.planned.push_back(key.pass);
    if (!behaviour_.refusal.empty()) throw CudaError(behaviour_.refusal);
    return std::make_unique<FaultyPlan>(behaviour_);
  }

 private:
  Behaviour& behaviour_;
};

// The library. `behaviour` must outlive it and may change meanwhile.
std::unique_ptr<AttentionEngine> faulty_attention(Behaviour& behaviour) {
  return std::make_unique<FaultyEngine>(behaviour);
}

class AttentionChoiceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBatch = 2, kLength = 40, kHeads = 2, kDim = 16;

  AttentionChoiceTest()
      : stream_(std::make_shared<DeviceMemory>(0), device_properties(0)), device_([this] {
          ++opened_;
          return faulty_attention(library_);
        }) {
    const int64_t rows = kBatch * kLength;
    args_ = {.qkv = tensor(DType::kBF16, {rows, 3 * kHeads * kDim}),
             .out = tensor(DType::kBF16, {rows, kHeads * kDim}),
             .lse = tensor(DType::kF32, {kBatch, kHeads, kLength}),
             .shape = {.batch = kBatch,
                       .sequence_length = kLength,
                       .num_heads = kHeads,
                       .num_kv_heads = kHeads,
                       .head_dim = kDim,
                       .scale = 0.25f}};
    set_values(1.0f);
    own_attention_forward(args_, stream_);
    backward_args_ = {.qkv = args_.qkv,
                      .out = args_.out,
                      .lse = args_.lse,
                      .d_out = tensor(DType::kBF16, args_.out.shape()),
                      .d_qkv = tensor(DType::kBF16, args_.qkv.shape()),
                      .shape = {.batch = kBatch,
                                .sequence_length = kLength,
                                .num_heads = kHeads,
                                .num_kv_heads = kHeads,
                                .head_dim = kDim,
                                .scale = 0.25f}};
    stream_.synchronize();
    fill(backward_args_.d_out, 1.0f);
  }

  static Tensor tensor(DType dtype, Shape shape) {
    const size_t bytes = static_cast<size_t>(shape.numel() * static_cast<int64_t>(size_bytes(dtype)));
    auto* const data = static_cast<std::byte*>(allocate_device(bytes));
    return {std::make_shared<Storage>(data, bytes, Device{Device::Kind::kCuda, 0}, [data] { free_device(data); }),
            dtype, shape};
  }
  static void fill(const Tensor& tensor, float factor) {
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      tensor.data<BFloat16>()[i] = from_float<BFloat16>(factor * std::sin(static_cast<float>(i * i % 977)));
    }
  }
  void set_values(float factor) {
    stream_.synchronize();
    fill(args_.qkv, factor);
  }

  void choose(AttentionChoice choice, GemmSelection selection = GemmSelection::kTimed) {
    stream_.set_attention_choice(choice);
    stream_.set_gemm_options({.selection = selection});
  }
  bool forward() { return device_.try_forward(args_, stream_); }
  bool backward() { return device_.try_backward(backward_args_, stream_); }
  std::string error_forward() {
    return testing::error_of([&] { forward(); });
  }
  // Uses a library of its own.
  bool forward_by(Behaviour& library) {
    AttentionDevice device([&] { return faulty_attention(library); });
    return device.try_forward(args_, stream_);
  }
  // The error of kCudnn. Leaves the choice unchanged.
  std::string error_forward_by(Behaviour library) {
    const AttentionChoice before = stream_.attention_choice();
    stream_.set_attention_choice(AttentionChoice::kCudnn);
    const std::string error = testing::error_of([&] { forward_by(library); });
    stream_.set_attention_choice(before);
    return error;
  }

  Behaviour library_;
  int opened_ = 0;
  CudaStream stream_;
  AttentionDevice device_;
  AttentionForwardArgs args_;
  AttentionBackwardArgs backward_args_;
};

// ---- The choice

TEST_F(AttentionChoiceTest, OwnDoesNotAskTheLibrary) {
  choose(AttentionChoice::kOwn);
  EXPECT_FALSE(forward());
  EXPECT_FALSE(backward());
  EXPECT_EQ(opened_, 0);
}

TEST_F(AttentionChoiceTest, AutoTakesALibraryThatAgreesForForwardPassesOnly) {
  choose(AttentionChoice::kAuto);
  EXPECT_TRUE(forward());
  const int first = library_.runs;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(forward());
  EXPECT_EQ(library_.runs, first + 3);  // tried only once
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(backward());
  EXPECT_EQ(library_.runs, first + 3);
  EXPECT_EQ(library_.planned, std::vector<AttentionPass>{AttentionPass::kForward});
  EXPECT_EQ(opened_, 1);
}

TEST_F(AttentionChoiceTest, CudnnTakesTheLibraryForBothPasses) {
  choose(AttentionChoice::kCudnn, GemmSelection::kDeterministic);
  EXPECT_TRUE(forward());
  EXPECT_TRUE(backward());
  const int first = library_.runs;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(backward());
  EXPECT_EQ(library_.runs, first + 3);
  EXPECT_EQ(library_.planned,
            (std::vector<AttentionPass>{AttentionPass::kForward, AttentionPass::kReproducibleBackward}));
}

// Rounding is no disagreement. The library's bits are there from the first call on.
TEST_F(AttentionChoiceTest, TheFirstResultIsThatOfLaterCalls) {
  choose(AttentionChoice::kAuto);
  library_.error = 0x1p-6f;
  ASSERT_TRUE(forward());
  stream_.synchronize();
  const std::vector<uint16_t> first(reinterpret_cast<uint16_t*>(args_.out.raw()),
                                    reinterpret_cast<uint16_t*>(args_.out.raw()) + args_.out.numel());
  const int runs = library_.runs;
  ASSERT_TRUE(forward());
  EXPECT_EQ(library_.runs, runs + 1);
  stream_.synchronize();
  EXPECT_EQ(std::memcmp(first.data(), args_.out.raw(), args_.out.size_bytes()), 0);
}

TEST_F(AttentionChoiceTest, AutoLeavesALibraryThatIsMissingOrRefuses) {
  choose(AttentionChoice::kAuto);
  library_.refusal = "no kernel";
  EXPECT_FALSE(forward());
  EXPECT_FALSE(forward());
  EXPECT_EQ(library_.planned.size(), 1u);  // asked only once
  EXPECT_EQ(library_.runs, 0);

  AttentionDevice without([]() -> std::unique_ptr<AttentionEngine> { throw ConfigError("not installed"); });
  EXPECT_FALSE(without.try_forward(args_, stream_));
}

// A T x T matrix in memory is too large for any implementation.
TEST_F(AttentionChoiceTest, AutoLeavesALibraryWhoseWorkspaceIsLarge) {
  constexpr size_t kSmallBytes = size_t{16} << 20;
  choose(AttentionChoice::kAuto);
  library_.workspace_bytes = kSmallBytes + 1;
  EXPECT_FALSE(forward());
  EXPECT_EQ(library_.runs, 0);
  Behaviour small;
  small.workspace_bytes = kSmallBytes;
  EXPECT_TRUE(forward_by(small));
  choose(AttentionChoice::kCudnn, GemmSelection::kDeterministic);
  EXPECT_TRUE(backward());  // because requested by name
}

TEST_F(AttentionChoiceTest, OnlyAPlanThatIsUsedHoldsAWorkspace) {
  Behaviour wrong;
  wrong.workspace_bytes = size_t{5} << 20;
  wrong.error = 1.0f;
  choose(AttentionChoice::kAuto);
  EXPECT_FALSE(forward_by(wrong));
  EXPECT_LT(stream_.workspace_bytes(), wrong.workspace_bytes);
  Behaviour right;
  right.workspace_bytes = wrong.workspace_bytes;
  EXPECT_TRUE(forward_by(right));
  EXPECT_GE(stream_.workspace_bytes(), right.workspace_bytes);
}

TEST_F(AttentionChoiceTest, AutoLeavesALibraryThatFails) {
  choose(AttentionChoice::kAuto);
  library_.fails = true;
  EXPECT_FALSE(forward());
  library_.fails = false;
  EXPECT_FALSE(forward());
}

TEST_F(AttentionChoiceTest, ALibraryForWhichThereIsNoMemoryIsNotUsed) {
  Behaviour large;
  large.workspace_bytes = size_t{3} << 20;
  large.finds_no_memory = true;
  choose(AttentionChoice::kAuto);
  EXPECT_FALSE(forward_by(large));
  EXPECT_NE(error_forward_by(large).find(
                "no device memory is left to compare it with our kernels, with 3 MiB for its workspace"),
            std::string::npos);
}

TEST_F(AttentionChoiceTest, NoPlanIsMadeOrCheckedInsideOfAGraph) {
  choose(AttentionChoice::kAuto);
  begin_capture(stream_.handle());
  EXPECT_FALSE(forward());
  destroy_graph(end_capture(stream_.handle()));
  EXPECT_EQ(opened_, 0);
  EXPECT_TRUE(forward());
  begin_capture(stream_.handle());
  EXPECT_TRUE(forward());
  destroy_graph(end_capture(stream_.handle()));

  choose(AttentionChoice::kCudnn);
  begin_capture(stream_.handle());
  EXPECT_NE(error_forward().find("it was not run before a graph was captured"), std::string::npos);
  destroy_graph(end_capture(stream_.handle()));
}

TEST_F(AttentionChoiceTest, CudnnIsRefusedWithTheReason) {
  choose(AttentionChoice::kCudnn);
  library_.refusal = "no kernel";
  EXPECT_EQ(error_forward(),
            "[attention] cuda.attention: cudnn, but cuDNN does not compute the forward pass of causal attention in "
            "bf16, B=2 T=40 H=2 KV=2 D=16: no kernel; give cuda.attention=auto or own");
  library_.refusal = "";
  library_.error = 1.0f;
  EXPECT_NE(error_forward().find("its out is "), std::string::npos);
  AttentionForwardArgs single = args_;
  single.shape.sequence_length = 1;
  single.shape.batch = kBatch * kLength;
  EXPECT_NE(error_of([&] { device_.try_forward(single, stream_); }).find("it needs two positions or more"),
            std::string::npos);

  AttentionDevice without([]() -> std::unique_ptr<AttentionEngine> { throw ConfigError("not installed"); });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { without.try_forward(args_, stream_); }),
              "[attention] cuda.attention: cudnn, but not installed; give cuda.attention=auto or own");
  }
}

// ---- The trial

class AttentionTrialTest : public AttentionChoiceTest {};

TEST_F(AttentionTrialTest, AutoLeavesALibraryThatIsWrong) {
  choose(AttentionChoice::kAuto);
  library_.error = 1.0f;
  EXPECT_FALSE(forward());
  EXPECT_EQ(library_.runs, 1);
  library_.error = 0.0f;
  EXPECT_FALSE(forward());  // for good
  EXPECT_EQ(library_.runs, 1);
}

// Our backward pass reads the library's lse.
TEST_F(AttentionTrialTest, AutoLeavesALibraryWhoseLseIsNotOurs) {
  using Change = std::function<void(const AttentionForwardArgs&)>;
  const auto each = [](float (*change)(float)) -> Change {
    return [change](const AttentionForwardArgs& args) {
      for (int64_t i = 0; i < args.lse.numel(); ++i) args.lse.data<float>()[i] = change(args.lse.data<float>()[i]);
    };
  };
  const Change one_too_large = [](const AttentionForwardArgs& args) {
    args.lse.data<float>()[args.lse.numel() - 1] += 0x1p-10f;
  };
  const Change by_position = [](const AttentionForwardArgs& args) {  // (B, T, H)
    auto* lse = args.lse.data<float>();
    const std::vector<float> ours(lse, lse + args.lse.numel());
    for (int64_t i = 0; i < args.lse.numel(); ++i) {
      const int64_t b = i / (kHeads * kLength), h = i / kLength % kHeads, t = i % kLength;
      lse[(b * kLength + t) * kHeads + h] = ours[static_cast<size_t>(i)];
    }
  };
  const Change in_bits = each([](float lse) { return lse * 1.442695f; });
  const Change not_written = each([](float) { return NAN; });
  choose(AttentionChoice::kAuto);
  for (const Change& change : {one_too_large, by_position, in_bits, not_written}) {
    Behaviour other;
    other.changes = change;
    EXPECT_FALSE(forward_by(other));
    EXPECT_EQ(other.runs, 1);
    EXPECT_NE(error_forward_by(other).find("its lse is "), std::string::npos);
  }
}

// One fault at a time, each of which the library hides.
TEST_F(AttentionTrialTest, FaultsMustShowInForwardPasses) {
  std::vector<AttentionFault> faults(std::begin(kForwardFaults), std::end(kForwardFaults));
  faults.push_back(kNothingToSee);
  for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
    args_.shape.mask = mask;
    for (const AttentionFault& fault : faults) {
      const std::string error = error_forward_by({.hides = Hides::kAll, .hidden = fault});
      EXPECT_NE(error.find(fault.lost_in("out")), std::string::npos) << error;
    }
  }
  const std::string error = error_forward_by({.hides = Hides::kLse, .hidden = kForwardFaults[0]});
  EXPECT_NE(error.find(kForwardFaults[0].lost_in("lse")), std::string::npos) << error;
  Behaviour blind{.hides = Hides::kOut};
  choose(AttentionChoice::kAuto);
  EXPECT_FALSE(forward_by(blind));
}

// For queries whose scores are all -Inf: out is 0 and lse is the given value.
TEST_F(AttentionTrialTest, AnOutOfZeroMustShowInLse) {
  const auto zero_out = [](float lse) {
    return [lse](const AttentionForwardArgs& args) {
      const AttentionShape& extents = args.shape;
      for (int64_t row = 0; row < args.lse.numel(); ++row) {
        float& row_lse = args.lse.data<float>()[row];
        if (row_lse != -INFINITY) continue;
        const int64_t b = row / (kHeads * kLength), head = row / kLength % kHeads;
        BFloat16* out = args.out.data<BFloat16>() + extents.out_offset(b, head, row % kLength);
        std::fill_n(out, kDim, from_float<BFloat16>(0.0f));
        row_lse = lse;
      }
    };
  };
  choose(AttentionChoice::kAuto);
  for (const float lse : {INFINITY, 0.0f}) {
    Behaviour hidden{.changes = zero_out(lse)};
    EXPECT_FALSE(forward_by(hidden)) << lse;
  }
  for (const float lse : {-INFINITY, NAN}) {
    Behaviour shown{.changes = zero_out(lse)};
    EXPECT_TRUE(forward_by(shown)) << lse;
  }
}

TEST_F(AttentionTrialTest, FaultsMustShowInBackwardPasses) {
  choose(AttentionChoice::kCudnn);
  for (const AttentionFault& fault : kBackwardFaults) {
    Behaviour blind{.hides = Hides::kAll, .hidden = fault};
    AttentionDevice device([&] { return faulty_attention(blind); });
    const std::string error = error_of([&] { device.try_backward(backward_args_, stream_); });
    EXPECT_NE(error.find(fault.lost_in("gradient")), std::string::npos) << error;
  }
}

TEST_F(AttentionTrialTest, GradientsThatVaryAreTakenOnlyWhereAskedFor) {
  library_.drift = 0x1p-7f;
  choose(AttentionChoice::kAuto);
  EXPECT_FALSE(forward());
  EXPECT_FALSE(backward());
  choose(AttentionChoice::kCudnn);
  EXPECT_TRUE(backward());
  choose(AttentionChoice::kCudnn, GemmSelection::kDeterministic);
  EXPECT_NE(error_of([&] { backward(); }).find("two runs of it give different bits"), std::string::npos);
  EXPECT_EQ(library_.planned, (std::vector<AttentionPass>{AttentionPass::kForward, AttentionPass::kBackward,
                                                          AttentionPass::kReproducibleBackward}));
}

TEST_F(AttentionTrialTest, TheVerdictDoesNotDependOnTheOperands) {
  set_values(INFINITY);
  for (const AttentionChoice choice : {AttentionChoice::kAuto, AttentionChoice::kCudnn}) {
    const bool both = choice == AttentionChoice::kCudnn;
    choose(choice);
    EXPECT_TRUE(forward());
    EXPECT_EQ(backward(), both);
    begin_capture(stream_.handle());
    EXPECT_TRUE(forward());
    EXPECT_EQ(backward(), both);
    destroy_graph(end_capture(stream_.handle()));
  }
  choose(AttentionChoice::kAuto);
  Behaviour wrong;
  wrong.error = 1.0f;
  EXPECT_FALSE(forward_by(wrong));
}

TEST_F(AttentionTrialTest, ResultsThatAreNotFiniteOnlyInTheLibraryAreWrong) {
  for (const float error : {NAN, INFINITY}) {
    library_.error = error;
    choose(AttentionChoice::kAuto);
    EXPECT_FALSE(forward());
    choose(AttentionChoice::kCudnn);
    EXPECT_NE(error_of([&] { backward(); }).find("its gradient is inf from that of our kernels"), std::string::npos);
  }
  EXPECT_EQ(library_.runs, 1 + 2);  // kAuto asks once
}

}  // namespace
}  // namespace mantissa::cuda
