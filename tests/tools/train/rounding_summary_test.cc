// The log's lines about rounded operands: native or emulated, by recipe, and the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/backend/decorators.h"
#include "tests/tools/config/minimal.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/step/memory_prediction.h"
#include "tools/train/step/precision_table.h"

namespace mantissa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Settings = std::vector<std::string>;

std::string summary(Settings settings, Fp8GemmSupport support) {
  settings.insert(settings.begin(), {"model.layers=2", "precision.compute=bf16"});
  return rounding_summary(testing::minimal_config(settings), DryRunBackend(nullptr, support));
}

TEST(RoundingSummary, IsEmptyWhereNothingIsRounded) { EXPECT_EQ(summary({}, Fp8GemmSupport::kTensorScaled), ""); }

// 4 linear layers in each of 2 blocks, with 3 products each; the head is not rounded.
TEST(RoundingSummary, SaysWhatIsNative) {
  for (const auto& [recipe, support] :
       {std::pair<std::string, Fp8GemmSupport>{"delayed", Fp8GemmSupport::kTensorScaled},
        {"current", Fp8GemmSupport::kTensorScaled},
        {"current", Fp8GemmSupport::kBlockScaled},
        {"current", Fp8GemmSupport::kMicroScaled},
        {"block", Fp8GemmSupport::kBlockScaled},
        {"mxfp8", Fp8GemmSupport::kMicroScaled}}) {
    EXPECT_THAT(summary({"precision.recipe=" + recipe}, support),
                AllOf(HasSubstr("8 of 9 linear layers round operands of their products; " + recipe +
                                ": 24 of 24 products native ("),
                      Not(HasSubstr("emula"))));
  }
}

TEST(RoundingSummary, SaysWhyTheRestIsEmulated) {
  EXPECT_THAT(summary({"precision.recipe=delayed"}, Fp8GemmSupport::kNone),
              HasSubstr("; delayed: emulated (this device has no FP8 units); emulation is exact"));
  // The test's device describes itself by the reason that it has no FP8 units.
  const std::string no_units = "this device has no FP8 units does not take scales of blocks of ";
  for (const Fp8GemmSupport support : {Fp8GemmSupport::kTensorScaled, Fp8GemmSupport::kBlockScaled}) {
    EXPECT_THAT(summary({"precision.recipe=mxfp8"}, support),
                HasSubstr("; mxfp8: emulated (" + no_units +
                          "32; cuBLASLt 12.8 and newer does on compute capability 10.x); emulation is exact"));
  }
  for (const Fp8GemmSupport support : {Fp8GemmSupport::kTensorScaled, Fp8GemmSupport::kMicroScaled}) {
    EXPECT_THAT(summary({"precision.recipe=block"}, support),
                HasSubstr("; block: emulated (" + no_units +
                          "128; cuBLASLt 12.9 and newer does on compute capability 9.0); emulation is exact"));
  }
  EXPECT_THAT(summary({"precision.recipe=nvfp4"}, Fp8GemmSupport::kAll),
              HasSubstr("; nvfp4: emulated (this program has no native products for it); emulation is exact"));
  // One layer's weights stay as they are in the forward pass: a product of 24.
  EXPECT_THAT(summary({"precision.recipe=current",
                       "precision.rules=[{match: blocks.0.mlp.up, product: fprop, role: weight, format: low}]"},
                      Fp8GemmSupport::kTensorScaled),
              HasSubstr("; current: 23 of 24 products native"));
  // 3 rows of 36 tokens are no multiple of 16, and all products have rows.
  EXPECT_THAT(summary({"precision.recipe=current", "model.context=36", "train.micro_batch=3", "train.global_batch=3"},
                      Fp8GemmSupport::kTensorScaled),
              HasSubstr("; current: emulated (sizes, operands or a bias that"));
  // A bias in fp32 goes with no native product; gradients have none.
  EXPECT_THAT(summary({"precision.recipe=current", "precision.compute=fp32"}, Fp8GemmSupport::kTensorScaled),
              HasSubstr("; current: 16 of 24 products native"));
}

// Weights in blocks of 32 are rounded twice, into a layout of codes each where emulation has as many values; those in
// blocks of 128 once. Beside them lie scales.
TEST(RoundingSummary, NativeProductsOfBlocksKeepCodesOfWeights) {
  const auto memory_of = [](const std::string& recipe, Fp8GemmSupport support) {
    const Config config =
        testing::minimal_config({"model.layers=4", "precision.compute=bf16", "precision.recipe=" + recipe});
    return predict_memory_table(config, 1, ContributionPath::kExchanged, support);
  };
  const MemoryTable micro = memory_of("mxfp8", Fp8GemmSupport::kMicroScaled),
                    micro_emulated = memory_of("mxfp8", Fp8GemmSupport::kNone);
  EXPECT_GT(micro.casts, micro_emulated.casts / 2);
  EXPECT_LT(micro.casts, micro_emulated.casts * 6 / 10);
  EXPECT_LE(micro.activations, micro_emulated.activations);
  const MemoryTable block = memory_of("block", Fp8GemmSupport::kBlockScaled),
                    block_emulated = memory_of("block", Fp8GemmSupport::kNone);
  EXPECT_GT(block.casts, block_emulated.casts);
  EXPECT_LT(block.casts, block_emulated.casts * 101 / 100);
  EXPECT_LE(block.activations, block_emulated.activations);
}

// Codes of x are half of its values in bf16, and nothing else that is kept grows.
TEST(RoundingSummary, NativeProductsKeepLess) {
  for (const std::string recipe : {"delayed", "current"}) {
    const Config config =
        testing::minimal_config({"model.layers=4", "precision.compute=bf16", "precision.recipe=" + recipe});
    const MemoryTable emulated = predict_memory_table(config, 1),
                      native =
                          predict_memory_table(config, 1, ContributionPath::kExchanged, Fp8GemmSupport::kTensorScaled);
    EXPECT_LE(native.activations, emulated.activations);
    EXPECT_EQ(native.casts, emulated.casts) << recipe;
    if (recipe == "current") {
      EXPECT_LT(native.activations, emulated.activations);
    }
  }
}

}  // namespace
}  // namespace mantissa
