// The choice between another attention library and our kernels.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/cuda/faulty_attention.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using testing::error_of;

class AttentionChoiceTest : public FaultyAttention {};

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

TEST_F(AttentionChoiceTest, WindowsAndDocumentsAreOurs) {
  AttentionForwardArgs window = args_, documents = args_;
  window.shape.window = 8;
  documents.starts = {
      stream_.allocate_scratch(kBatch * kLength * sizeof(int32_t), "test"), DType::kI32, {kBatch * kLength}};
  for (const auto& [args, what] : {std::pair{window, " window=8"}, std::pair{documents, " with documents"}}) {
    choose(AttentionChoice::kAuto);
    EXPECT_FALSE(device_.try_forward(args, stream_));
    choose(AttentionChoice::kCudnn);
    EXPECT_EQ(error_of([&] { device_.try_forward(args, stream_); }),
              std::string("[attention] cuda.attention: cudnn, but cuDNN does not compute the forward pass of causal "
                          "attention in bf16, B=2 T=40 H=2 KV=2 D=16") +
                  what + ": cuDNN is used neither with a window nor with documents; give cuda.attention=auto or own");
  }
  EXPECT_TRUE(library_.planned.empty());
}

}  // namespace
}  // namespace mantissa::cuda
