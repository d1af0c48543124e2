// cuDNN's attention requested by name: GPUs only, and only with a usable cuDNN.
//
// If the library has no plan, or its trial rejects it, the call throws an error with the reason. Nothing is then
// compared, and cuda.attention: auto must use our kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "core/base/error.h"
#include "core/kernels/attention/device_cuda.h"
#include "tests/core/kernels/attention/attention_case.h"
#include "tests/core/kernels/attention/attention_choice_scope.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/random_values.h"
#include "tests/testing/error_of.h"

namespace mantissa::kernel_test {
namespace {

using mantissa::testing::error_of;
using reference::AttentionCase;

constexpr double kInf = std::numeric_limits<double>::infinity();

Stream& stream() { return device_under_test().stream(); }

// dtype, causal mask, selection of kernels.
class AttentionByCudnn : public ::testing::TestWithParam<std::tuple<DType, bool, GemmSelection>> {
 protected:
  void SetUp() override {
    const std::string reason = error_of([] { cuda::open_attention_engine(cuda::as_cuda(stream()).device_index()); });
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  struct Operands {
    std::vector<double> qkv, d_out;
  };
  static Operands made_up(const AttentionCase& c) {
    return {reference::random_values(static_cast<int64_t>(c.qkv_size()), 1),
            reference::random_values(static_cast<int64_t>(c.out_size()), 2)};
  }

  // A value that is not finite, in sequence kSequence and query head kHead or its key head.
  enum class Fault { kQuery, kKey, kValue, kGradient };
  static constexpr size_t kSequence = 1, kHead = 3;
  static Operands with_fault(const AttentionCase& c, Fault fault, size_t at, double bad) {
    Operands operands = made_up(c);
    // Makes an Inf in a key give a score of +Inf, which has no probability. A score of -Inf has probability 0.
    for (size_t h = kHead - 1; h <= kHead; ++h) operands.qkv[c.query(kSequence, h, c.length - 1)] = 0.5;
    if (fault == Fault::kQuery) operands.qkv[c.query(kSequence, kHead, at)] = bad;
    if (fault == Fault::kKey) operands.qkv[c.key(kSequence, kHead, at)] = bad;
    if (fault == Fault::kValue) operands.qkv[c.value(kSequence, kHead, at)] = bad;
    if (fault == Fault::kGradient) operands.d_out[c.out(kSequence, kHead, at)] = bad;
    return operands;
  }

  // Runs cuDNN. Returns nothing, with refusal() set, if it is refused. Any other error fails the test.
  std::optional<AttentionRun> by_cudnn(const AttentionCase& c, const Operands& operands) {
    const AttentionChoiceScope scope(stream(), AttentionChoice::kCudnn, selection);
    std::optional<AttentionRun> run;
    try {
      run.emplace(c, dtype, operands.qkv, operands.d_out);
    } catch (const ConfigError& error) {
      refusal_ = error.what();
    }
    return run;
  }
  AttentionRun by_choice(AttentionChoice choice, const AttentionCase& c, const Operands& operands) const {
    const AttentionChoiceScope scope(stream(), choice);
    return AttentionRun(c, dtype, operands.qkv, operands.d_out);
  }
  const std::string& refusal() const { return refusal_; }
  // Skips the test if a shape was refused. Failed comparisons still count.
  void tell_refusal() const {
    if (!refusal_.empty()) GTEST_SKIP() << refusal_;
  }

  // With auto, our kernels must run if the forward pass is refused.
  void expect_auto_is_ours(const AttentionCase& c, const Operands& operands) const {
    const AttentionRun ours = by_choice(AttentionChoice::kOwn, c, operands);
    const AttentionRun automatic = by_choice(AttentionChoice::kAuto, c, operands);
    EXPECT_EQ(bytes_of(automatic.out), bytes_of(ours.out));
    EXPECT_EQ(bytes_of(automatic.lse), bytes_of(ours.lse));
  }

  const DType dtype = std::get<0>(GetParam());
  const bool causal = std::get<1>(GetParam());
  const GemmSelection selection = std::get<2>(GetParam());

 private:
  std::string refusal_;
};

TEST_P(AttentionByCudnn, AgreesWithTheReference) {
  const PlacementScope placement(Placement::kAligned);
  const size_t length = static_cast<size_t>(device_under_test().large(140));
  for (const AttentionCase& c :
       {AttentionCase{2, length, 2, 2, 64, 0.125, causal}, AttentionCase{1, length, 4, 2, 128, 0.09, causal},
        AttentionCase{2, 2, 3, 1, 8, 0.4, causal}}) {
    SCOPED_TRACE(::testing::Message() << "T=" << c.length << " D=" << c.dim);
    const Operands operands = made_up(c);
    const std::optional<AttentionRun> run = by_cudnn(c, operands);
    if (!run) continue;
    const AttentionChoiceScope scope(stream(), AttentionChoice::kCudnn);  // so that its roundings are allowed
    run->expect_forward();
    run->expect_backward();
    if (selection != GemmSelection::kDeterministic) continue;
    const std::optional<AttentionRun> again = by_cudnn(c, operands);
    ASSERT_TRUE(again) << refusal();
    EXPECT_EQ(bytes_of(again->d_qkv), bytes_of(run->d_qkv));
  }
  tell_refusal();
}

// One element is not finite. Wherever our kernels then give NaN or Inf, cuDNN must too, unless the mask hides the
// element from the result.
TEST_P(AttentionByCudnn, GivesNoNumbersWhereOurKernelsGiveNone) {
  const PlacementScope placement(Placement::kAligned);
  const AttentionCase c{2, 130, 4, 2, 64, 0.125, causal};
  constexpr size_t b = kSequence, head = kHead;
  size_t index = 0;
  for (const Fault fault : {Fault::kQuery, Fault::kKey, Fault::kValue, Fault::kGradient}) {
    for (const size_t at : {size_t{0}, size_t{70}, c.length - 1}) {
      for (const double bad : {static_cast<double>(NAN), kInf}) {
        SCOPED_TRACE(::testing::Message() << bad << " in operand " << static_cast<int>(fault) << ", position " << at);
        if (!device_under_test().takes_case(index++)) continue;
        const Operands operands = with_fault(c, fault, at, bad);
        const std::optional<AttentionRun> theirs = by_cudnn(c, operands);
        if (!theirs) {
          if (refusal().find("forward pass") != std::string::npos) expect_auto_is_ours(c, operands);
          return tell_refusal();  // the shape is refused, and all cases have it
        }
        const AttentionRun ours = by_choice(AttentionChoice::kOwn, c, operands);
        const auto sees = [&](size_t query) { return fault == Fault::kQuery ? query == at : at < c.visible(query); };
        const auto expect_none = [](const std::vector<double>& result, const std::vector<double>& reference, size_t i) {
          EXPECT_TRUE(std::isfinite(reference[i]) || !std::isfinite(result[i])) << "element " << i;
        };
        const std::vector<double> out = values_of(theirs->out), our_out = values_of(ours.out);
        const std::vector<double> lse = values_of(theirs->lse), our_lse = values_of(ours.lse);
        size_t faults = 0;
        for (size_t t = 0; t < c.length; ++t) {
          if (!sees(t)) continue;
          for (size_t h = head - 1; h <= head; ++h) {  // both use one key head
            // If a query sees only -Inf, it is enough that lse shows it.
            const double row_lse = lse[c.lse(b, h, t)];
            const bool shown = our_lse[c.lse(b, h, t)] == -kInf && (std::isnan(row_lse) || row_lse == -kInf);
            for (size_t d = 0; d < c.dim && !shown; ++d) expect_none(out, our_out, c.out(b, h, t) + d);
            expect_none(lse, our_lse, c.lse(b, h, t));
            faults += !std::isfinite(our_out[c.out(b, h, t)]);
          }
        }
        EXPECT_EQ(faults > 0, fault != Fault::kGradient);
        // A fault in the last query, or in the first key or value, reaches gradients in spite of the mask.
        const bool of_query = fault == Fault::kQuery || fault == Fault::kGradient;
        if (at != (of_query ? c.length - 1 : 0)) continue;
        const std::vector<double> d_qkv = values_of(theirs->d_qkv), our_d_qkv = values_of(ours.d_qkv);
        // A query that sees only -Inf has NaN as probability, or 0 in cuDNN, whose lse shows it.
        std::vector<bool> shown(d_qkv.size());
        for (size_t t = 0; t < c.length; ++t) {
          for (size_t h = head - 1; h <= head; ++h) {
            if (our_lse[c.lse(b, h, t)] != -kInf) continue;
            for (size_t d = 0; d < c.dim; ++d) shown[c.query(b, h, t) + d] = true;
          }
        }
        for (size_t i = 0; i < d_qkv.size(); ++i) {
          if (!shown[i]) expect_none(d_qkv, our_d_qkv, i);
        }
        EXPECT_FALSE(std::isfinite(our_d_qkv[c.key(b, head, 0)]));
      }
    }
  }
}

// With auto, they are computed from the results of the library's forward pass.
TEST_P(AttentionByCudnn, AutomaticGradientsAreOurs) {
  const PlacementScope placement(Placement::kAligned);
  const AttentionCase c{2, 130, 4, 2, 64, 0.125, causal};
  const AttentionChoiceScope automatic(stream(), AttentionChoice::kAuto, selection);
  const Operands operands = made_up(c);
  const AttentionRun run(c, dtype, operands.qkv, operands.d_out);
  run.expect_backward();
  const std::vector<std::byte> gradients = bytes_of(run.d_qkv);
  const AttentionChoiceScope ours(stream(), AttentionChoice::kOwn);
  kernel_test::run(run.backward_args());
  EXPECT_EQ(bytes_of(run.d_qkv), gradients);
}

INSTANTIATE_TEST_SUITE_P(OnAGpu, AttentionByCudnn,
                         ::testing::Combine(::testing::Values(DType::kBF16, DType::kF16), ::testing::Bool(),
                                            ::testing::Values(GemmSelection::kTimed, GemmSelection::kDeterministic)),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_causal" : "_unmasked") +
                                  (std::get<2>(info.param) == GemmSelection::kTimed ? "" : "_deterministic");
                         });

}  // namespace
}  // namespace mantissa::kernel_test
