#include "tools/lab/advise/plan/plan_exchange.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

// Three decisions between slow and exact, and fast.
const OptionValues kDamages = {{0, 4}, {0, 3}, {0, 2}};
const OptionValues kSeconds = {{9, 1}, {6, 1}, {5, 1}};

TEST(PlanExchange, UsesWhatIsLeftOfALimit) {
  EXPECT_EQ(exchanged({1, 1, 1}, kDamages, {{kSeconds, 2.9}}), (Plan{1, 1, 1})) << "a limit that is exceeded already";
  EXPECT_EQ(exchanged({1, 1, 1}, kDamages, {{kSeconds, 11.0}}), (Plan{0, 1, 1})) << "4 for 8 s";
  EXPECT_EQ(exchanged({1, 1, 1}, kDamages, {{kSeconds, 100.0}}), (Plan{0, 0, 0}));
}

TEST(PlanExchange, ChangesTwoWhereOneDoesNotHelp) {
  EXPECT_EQ(exchanged({1, 1, 0}, kDamages, {{kSeconds, 9.0}}), (Plan{1, 0, 1})) << "3 in place of 2";
}

TEST(PlanExchange, KeepsEveryLimit) {
  const OptionValues bytes = {{1, 1}, {8, 1}, {1, 1}};
  EXPECT_EQ(exchanged({1, 1, 0}, kDamages, {{kSeconds, 9.0}, {bytes, 4.0}}), (Plan{1, 1, 0}));
}

TEST(PlanExchange, EndsWhereOptionsAreAlike) {
  const OptionValues same = {{1, 1}, {1, 1}};
  EXPECT_EQ(exchanged({0, 1}, same, {{same, 2.0}}), (Plan{0, 1}));
}

}  // namespace
}  // namespace mantissa
