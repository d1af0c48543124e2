#include "tools/lab/advise/plan/budget.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"

namespace mantissa::testing {
namespace {

constexpr BudgetReference kReference{.seconds = 0.2, .bytes = 1000.0};

TEST(BudgetText, TakesUnits) {
  EXPECT_DOUBLE_EQ(parse_budget("time=12ms").limit(kReference), 0.012);
  EXPECT_DOUBLE_EQ(parse_budget("time=0.5").limit(kReference), 0.5);
  EXPECT_DOUBLE_EQ(parse_budget("time=3us").limit(kReference), 3e-6);
  EXPECT_DOUBLE_EQ(parse_budget("memory=1.5GiB").limit(kReference), 1.5 * 1024 * 1024 * 1024);
  EXPECT_DOUBLE_EQ(parse_budget("memory=2e6").limit(kReference), 2e6);
  EXPECT_DOUBLE_EQ(parse_budget("loss=0.01").limit(kReference), 0.01);
  EXPECT_EQ(parse_budget("loss=0.01nats").kind, Budget::kLoss);
}

TEST(BudgetText, TakesPerCentOfThe16BitStep) {
  EXPECT_DOUBLE_EQ(parse_budget("time=90%").limit(kReference), 0.18);
  EXPECT_DOUBLE_EQ(parse_budget("memory=150%").limit(kReference), 1500.0);
}

TEST(BudgetText, RefusesOtherTexts) {
  for (const std::string text : {"", "time", "time=", "time=fast", "time=-1ms", "time=0", "time=1GiB", "time=nan",
                                 "time=inf", "memory=1GB", "loss=5%", "speed=1", "time=1ms2", "memory=1e300GiB"}) {
    try {
      parse_budget(text);
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("got '" + text + "'"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace mantissa::testing
