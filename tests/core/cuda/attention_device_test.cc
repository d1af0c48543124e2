// When another library computes attention, and when our kernels do, with a library that is ours with faults.
#include "core/cuda/attention_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/cuda/attention_own.h"
#include "core/cuda/runtime.h"
#include "core/tensor/half.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using testing::error_of;

// What the library does.
struct Behaviour {
  std::string missing{};  // why there is none
  std::string refusal{};  // why it has no plan
  size_t workspace_bytes = 0;
  float error = 0.0f;  // that it adds to the first element of a row
  float drift = 0.0f;  // likewise, more of it in each run
  bool fails = false;  // when it runs
  std::vector<AttentionPass> planned{};
  int runs = 0;
};

void add_to_first_column(const Tensor& tensor, float error, CudaStream& stream) {
  stream.synchronize();
  const int64_t columns = tensor.shape()[1];
  auto* data = tensor.data<BFloat16>();
  for (int64_t i = 0; i < tensor.numel(); i += columns) data[i] = from_float<BFloat16>(to_float(data[i]) + error);
}

class FaultyPlan final : public AttentionPlan {
 public:
  explicit FaultyPlan(Behaviour& behaviour) : behaviour_(behaviour) {}
  size_t workspace_bytes() const override { return behaviour_.workspace_bytes; }
  void forward(const AttentionForwardArgs& args, CudaStream& stream) override {
    own_attention_forward(args, AttentionExtents(args), stream);
    spoil(args.out, stream);
  }
  void backward(const AttentionBackwardArgs& args, CudaStream& stream) override {
    own_attention_backward(args, AttentionExtents(args), stream);
    spoil(args.d_qkv, stream);
  }

 private:
  void spoil(const Tensor& result, CudaStream& stream) {
    if (behaviour_.fails) throw CudaError("it failed");
    ++behaviour_.runs;
    const float error = behaviour_.error + behaviour_.drift * static_cast<float>(behaviour_.runs);
    if (error != 0.0f) add_to_first_column(result, error, stream);
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

class AttentionChoiceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBatch = 1, kLength = 40, kHeads = 2, kDim = 16;

  AttentionChoiceTest()
      : stream_(0, device_properties(0)), device_([this]() -> std::unique_ptr<AttentionEngine> {
          ++opened_;
          if (!library_.missing.empty()) throw ConfigError(library_.missing);
          return std::make_unique<FaultyEngine>(library_);
        }) {
    const int64_t rows = kBatch * kLength;
    args_ = {.qkv = tensor(DType::kBF16, {rows, 3 * kHeads * kDim}),
             .out = tensor(DType::kBF16, {rows, kHeads * kDim}),
             .lse = tensor(DType::kF32, {kBatch, kHeads, kLength}),
             .batch = kBatch,
             .sequence_length = kLength,
             .num_heads = kHeads,
             .num_kv_heads = kHeads,
             .head_dim = kDim,
             .scale = 0.25f};
    set_values(1.0f);
    own_attention_forward(args_, AttentionExtents(args_), stream_);
    backward_args_ = {.qkv = args_.qkv,
                      .out = args_.out,
                      .lse = args_.lse,
                      .d_out = tensor(DType::kBF16, args_.out.shape()),
                      .d_qkv = tensor(DType::kBF16, args_.qkv.shape()),
                      .batch = kBatch,
                      .sequence_length = kLength,
                      .num_heads = kHeads,
                      .num_kv_heads = kHeads,
                      .head_dim = kDim,
                      .scale = 0.25f};
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
  bool forward() { return device_.try_forward(args_, AttentionExtents(args_), stream_); }
  bool backward() { return device_.try_backward(backward_args_, AttentionExtents(backward_args_), stream_); }
  std::string error_forward() {
    return error_of([&] { forward(); });
  }

  Behaviour library_;
  int opened_ = 0;
  CudaStream stream_;
  AttentionDevice device_;
  AttentionForwardArgs args_;
  AttentionBackwardArgs backward_args_;
};

TEST_F(AttentionChoiceTest, OwnDoesNotAskTheLibrary) {
  choose(AttentionChoice::kOwn);
  EXPECT_FALSE(forward());
  EXPECT_FALSE(backward());
  EXPECT_EQ(opened_, 0);
}

TEST_F(AttentionChoiceTest, AutoTakesALibraryThatAgrees) {
  choose(AttentionChoice::kAuto);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(forward());
  EXPECT_EQ(library_.runs, 1 + 3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(backward());
  EXPECT_EQ(library_.runs, 1 + 3 + 2 + 3);  // compared twice: the same bits?
  EXPECT_EQ(library_.planned,
            (std::vector<AttentionPass>{AttentionPass::kForward, AttentionPass::kReproducibleBackward}));
  EXPECT_EQ(opened_, 1);
}

// Rounding is no disagreement, and the library's bits are there from the first call on.
TEST_F(AttentionChoiceTest, TheFirstResultIsThatOfLaterCalls) {
  choose(AttentionChoice::kAuto);
  library_.error = 0x1p-6f;
  ASSERT_TRUE(forward());
  stream_.synchronize();
  const std::vector<uint16_t> first(reinterpret_cast<uint16_t*>(args_.out.raw()),
                                    reinterpret_cast<uint16_t*>(args_.out.raw()) + args_.out.numel());
  ASSERT_TRUE(forward());
  stream_.synchronize();
  EXPECT_EQ(std::memcmp(first.data(), args_.out.raw(), args_.out.size_bytes()), 0);
  EXPECT_EQ(library_.runs, 3);
}

TEST_F(AttentionChoiceTest, AutoLeavesALibraryThatIsMissingOrRefuses) {
  choose(AttentionChoice::kAuto);
  library_.refusal = "no kernel";
  EXPECT_FALSE(forward());
  EXPECT_FALSE(forward());
  EXPECT_EQ(library_.planned.size(), 1u);  // asked once
  library_.refusal = "";
  library_.workspace_bytes = (size_t{1} << 30) + 1;
  EXPECT_FALSE(backward());
  EXPECT_EQ(library_.runs, 0);

  AttentionDevice without([]() -> std::unique_ptr<AttentionEngine> { throw ConfigError("not installed"); });
  EXPECT_FALSE(without.try_forward(args_, AttentionExtents(args_), stream_));
}

TEST_F(AttentionChoiceTest, AutoLeavesALibraryThatIsWrong) {
  choose(AttentionChoice::kAuto);
  library_.error = 1.0f;
  EXPECT_FALSE(forward());
  EXPECT_FALSE(backward());
  EXPECT_EQ(library_.runs, 2);
  library_.error = 0.0f;
  EXPECT_FALSE(forward());  // for good
  EXPECT_EQ(library_.runs, 2);
}

TEST_F(AttentionChoiceTest, AutoLeavesALibraryThatFails) {
  choose(AttentionChoice::kAuto);
  library_.fails = true;
  EXPECT_FALSE(forward());
  library_.fails = false;
  EXPECT_FALSE(forward());
}

TEST_F(AttentionChoiceTest, GradientsThatVaryAreTakenOnlyWhereAskedFor) {
  library_.drift = 0x1p-7f;
  choose(AttentionChoice::kAuto);
  EXPECT_FALSE(backward());
  choose(AttentionChoice::kCudnn);
  EXPECT_TRUE(backward());
  choose(AttentionChoice::kCudnn, GemmSelection::kDeterministic);
  EXPECT_NE(error_of([&] { backward(); }).find("two runs of it give different bits"), std::string::npos);
  EXPECT_EQ(library_.planned,
            (std::vector<AttentionPass>{AttentionPass::kReproducibleBackward, AttentionPass::kBackward,
                                        AttentionPass::kReproducibleBackward}));
}

TEST_F(AttentionChoiceTest, TheVerdictDoesNotDependOnTheOperands) {
  choose(AttentionChoice::kAuto);
  set_values(INFINITY);
  EXPECT_TRUE(forward());
  EXPECT_TRUE(backward());
  begin_capture(stream_.handle());
  EXPECT_TRUE(forward());
  EXPECT_TRUE(backward());
  destroy_graph(end_capture(stream_.handle()));

  Behaviour wrong;
  wrong.error = 1.0f;
  AttentionDevice other([&] { return std::make_unique<FaultyEngine>(wrong); });
  EXPECT_FALSE(other.try_forward(args_, AttentionExtents(args_), stream_));
}

TEST_F(AttentionChoiceTest, ResultsThatAreNotFiniteOnlyInTheLibraryAreWrong) {
  choose(AttentionChoice::kAuto);
  for (const float error : {NAN, INFINITY}) {
    library_.error = error;
    EXPECT_FALSE(forward());
    EXPECT_FALSE(backward());
  }
  EXPECT_EQ(library_.runs, 2);
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
            "bf16, B=1 T=40 H=2 KV=2 D=16: no kernel; give cuda.attention=auto or own");
  library_.refusal = "";
  library_.error = 1.0f;
  EXPECT_NE(error_forward().find("its out is "), std::string::npos);
  AttentionForwardArgs single = args_;
  single.sequence_length = 1;
  single.batch = kLength;
  EXPECT_NE(error_of([&] {
              device_.try_forward(single, AttentionExtents(single), stream_);
            }).find("it needs two positions or more"),
            std::string::npos);

  AttentionDevice without([]() -> std::unique_ptr<AttentionEngine> { throw ConfigError("not installed"); });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { without.try_forward(args_, AttentionExtents(args_), stream_); }),
              "[attention] cuda.attention: cudnn, but not installed; give cuda.attention=auto or own");
  }
}

}  // namespace
}  // namespace mantissa::cuda
