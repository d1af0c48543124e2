// The trial of another attention library against our kernels, before it is chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "core/kernels/attention/trial_cuda.h"
#include "core/tensor/half.h"
#include "tests/core/cuda/faulty_attention.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using testing::error_of;

class AttentionTrialTest : public FaultyAttention {};

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

// The library hides one fault at a time.
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
