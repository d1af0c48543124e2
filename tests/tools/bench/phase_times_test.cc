#include "tools/bench/phase_times.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

// The k-th mark is set at k * k ms.
class CountedTimer final : public StreamTimer {
 public:
  size_t mark() override { return marks_++; }
  double milliseconds(size_t from, size_t to) override { return static_cast<double>(to * to) - from * from; }

 private:
  size_t marks_ = 0;
};

TEST(PhaseTimes, SumsEachPhaseAndLooksAtNoOp) {
  PhaseTimes phases(std::make_unique<CountedTimer>());
  {
    const Range step(RangeKind::kPhase, "step");  // 0
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const Range forward(RangeKind::kPhase, "forward");  // 1 to 2, 3 to 4
      const Range op(RangeKind::kOp, "gemm");
    }
    const Range update(RangeKind::kPhase, "update");  // 5 to 6
  }                                                   // 7
  const std::vector<std::pair<std::string, double>> expected = {
      {"forward", 4.0 - 1.0 + 16.0 - 9.0}, {"update", 36.0 - 25.0}, {"step", 49.0}};
  EXPECT_EQ(phases.milliseconds(), expected);
}

TEST(PhaseTimes, GivesRangesBackToTheSinkBefore) {
  PhaseTimes outer(std::make_unique<CountedTimer>());
  {
    PhaseTimes inner(std::make_unique<CountedTimer>());
    const Range range(RangeKind::kPhase, "data");
  }
  EXPECT_TRUE(outer.milliseconds().empty());
  { const Range range(RangeKind::kPhase, "data"); }
  EXPECT_EQ(outer.milliseconds().size(), 1u);
}

}  // namespace
}  // namespace mantissa
