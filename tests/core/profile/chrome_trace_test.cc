#include "core/profile/chrome_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace mantissa {
namespace {

using nlohmann::json;

std::vector<StepSpans> two_steps() {
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
  const json trace = json::parse(to_chrome_trace(two_steps(), 3));
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
