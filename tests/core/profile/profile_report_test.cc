#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/profile/op_times.h"

namespace mantissa {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A step of 10 ms: a product of 2 GFLOP (4 ms), 3 MB moved (1 ms), a collective (2 ms) and waiting for it (1 ms), 2 ms
// idle; 5 ms on another stream.
OpTimes two_steps() {
  const KernelWork product{.flops = 2e9, .bytes = 1e6, .dtype = DType::kBF16};
  const KernelWork exchange{.bytes = 6e6, .bound = Bound::kOther};
  const StepSpans step{.spans = {
                           {"step", "step", SpanKind::kPhase, 0, {}, 0.0, 10e3, 0.0},
                           {"forward", "forward", SpanKind::kPhase, 0, {}, 0.0, 10e3, 2e3},
                           {"gemm", "forward", SpanKind::kOp, 0, product, 0.0, 4e3, 4e3},
                           {"add", "forward", SpanKind::kOp, 0, {.bytes = 3e6}, 4e3, 5e3, 1e3},
                           {"all_to_all", "forward", SpanKind::kOp, 0, exchange, 5e3, 7e3, 2e3},
                           {"all_to_all", "forward", SpanKind::kPoll, 0, {}, 7e3, 8e3, 1e3},
                           {"copy", "forward", SpanKind::kOp, 1, {.bytes = 5e6}, 2e3, 7e3, 5e3},
                       }};
  OpTimes times;
  times.add(step);
  times.add(step);
  return times;
}

TEST(ProfileTable, HasRatesAndPerCentOfTheCeiling) {
  const Ceilings ceilings{.gemm_flops = {{DType::kBF16, 1e12}}, .memory_bytes = 4e9};
  const std::string text = to_text(two_steps(), ceilings);
  // 2 GFLOP in 4 ms are 500 GFLOP/s, half of the peak. 3 MB in 1 ms are 3 GB/s, 75 % of the memory's.
  EXPECT_THAT(text, ContainsRegex("forward +gemm bf16 +1\\.0 +4\\.000 +40\\.0 +500\\.0 +0\\.25 +50\\.0\n"));
  EXPECT_THAT(text, ContainsRegex("forward +add +1\\.0 +1\\.000 +10\\.0 +3\\.00 +75\\.0\n"));
  // Neither has a ceiling. A collective's rate covers all of its time.
  EXPECT_THAT(text, ContainsRegex("forward +all_to_all +1\\.0 +3\\.000 +30\\.0\n"));
  EXPECT_THAT(text, HasSubstr("all_to_all in all phases: 3.000 ms a step, 6.000 MB sent, 2.000 GB/s\n"));
  EXPECT_THAT(text, ContainsRegex("forward +\\(no operation\\) +2\\.000 +20\\.0\n"));
  // Work beside the step takes no share of it.
  EXPECT_THAT(text, ContainsRegex("forward +beside: copy +1\\.0 +5\\.000 +1\\.00 +25\\.0\n"));
  EXPECT_THAT(text, ::testing::EndsWith("ceilings: GEMM bf16 1000.0 GFLOP/s, memory 4.00 GB/s"));
}

TEST(ProfileTable, SaysThatFiguresFarAboveACeilingMeanNothing) {
  const std::string text = to_text(two_steps(), {.gemm_flops = {{DType::kBF16, 1e12}}, .memory_bytes = 1e9});
  EXPECT_THAT(text, ContainsRegex("forward +add +1\\.0 +1\\.000 +10\\.0 +3\\.00 +300\\.0\n"));
  EXPECT_THAT(text, HasSubstr("memory 1.00 GB/s\n  Above 110 % of a ceiling the figure means nothing: "));
}

TEST(ProfileTable, WithoutCeilingsHasRatesAlone) {
  const std::string text = to_text(two_steps(), {});
  EXPECT_THAT(text, ContainsRegex("gemm bf16 +1\\.0 +4\\.000 +40\\.0 +500\\.0 +0\\.25\n"));
  EXPECT_THAT(text, HasSubstr("memory not measured"));
}

// The roofline: an operation is bound by memory if moving its bytes takes longer than its products.
TEST(ProfileTable, TheCeilingIsTheTighterOfTwo) {
  const Ceilings ceilings{.gemm_flops = {{DType::kBF16, 100.0}}, .memory_bytes = 10.0};
  EXPECT_EQ(ceilings.least_seconds({.flops = 200.0, .bytes = 5.0, .dtype = DType::kBF16}), 2.0);
  EXPECT_EQ(ceilings.least_seconds({.flops = 200.0, .bytes = 50.0, .dtype = DType::kBF16}), 5.0);
  EXPECT_EQ(ceilings.least_seconds({.flops = 200.0, .bytes = 50.0, .dtype = DType::kF32}), std::nullopt);
  EXPECT_EQ(ceilings.least_seconds({.bytes = 50.0}), 5.0);
  EXPECT_EQ(ceilings.least_seconds({.bytes = 50.0, .bound = Bound::kOther}), std::nullopt);
  EXPECT_EQ(ceilings.least_seconds({}), std::nullopt);
}

TEST(ProfileTable, AsksForThePeaksOfTheProductsThatThereWere) {
  EXPECT_THAT(product_dtypes(two_steps()), ElementsAre(DType::kBF16));
  EXPECT_TRUE(product_dtypes({}).empty());
}

// --- chrome trace

using nlohmann::json;

std::vector<StepSpans> traced_steps() {
  std::vector<StepSpans> steps;
  for (const double base : {0.0, 100.0}) {
    const KernelWork product{.flops = 64.0, .bytes = 32.0, .dtype = DType::kBF16};
    steps.push_back({.spans = {
                         {"step", "step", SpanKind::kPhase, 0, {}, base, base + 100.0, 10.0},
                         {"forward", "forward", SpanKind::kPhase, 0, {}, base + 5.0, base + 60.0, 15.0},
                         {"gemm", "forward", SpanKind::kOp, 0, product, base + 10.0, base + 50.0, 40.0},
                         {"say \"\\\n", "forward", SpanKind::kOp, 1, {}, base + 20.0, base + 90.0, 70.0},
                         {"all_to_all", "step", SpanKind::kPoll, 0, {}, base + 70.0, base + 75.0, 5.0},
                         {"all_to_all", "step", SpanKind::kPoll, 0, {}, base + 75.0, base + 95.0, 20.0},
                     }});
  }
  return steps;
}

TEST(ChromeTrace, IsJsonWithACompleteEventForEachSpan) {
  const json trace = json::parse(to_chrome_trace(traced_steps(), 3));
  std::map<std::string, int> events, names;
  for (const json& event : trace.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("ph") == "M") {
      names[event.at("args").at("name")] = event.at("tid");
      continue;
    }
    ASSERT_EQ(event.at("ph"), "X");
    ++events[event.at("name")];
    if (event.at("name") != "gemm") continue;
    EXPECT_EQ(event.at("args").at("flops"), 64.0);
    EXPECT_EQ(event.at("args").at("bytes"), 32.0);
    EXPECT_EQ(event.at("args").at("dtype"), "bf16");
    EXPECT_EQ(event.at("args").at("phase"), "forward");
    EXPECT_EQ(event.at("dur"), 40.0);
  }
  const std::map<std::string, int> expected = {
      {"step", 2}, {"forward", 2}, {"gemm", 2}, {"say \"\\\n", 2}, {"all_to_all", 2}};  // without the short looks
  EXPECT_EQ(events, expected);
  EXPECT_EQ(names,
            (std::map<std::string, int>{{"rank 3", 0}, {"phases", 0}, {"operations", 1}, {"beside, stream 1", 2}}));
}

TEST(ChromeTrace, OfNoStepIsAValidTrace) {
  EXPECT_TRUE(json::parse(to_chrome_trace({}, 0)).at("traceEvents").is_array());
}

}  // namespace
}  // namespace mantissa
