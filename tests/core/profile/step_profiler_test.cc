#include "core/profile/step_profiler.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "tests/core/profile/recorded_ranges.h"
#include "tests/core/profile/scripted_streams.h"

namespace mantissa {
namespace {

using testing::run_op;
using testing::scripted_timer;
using testing::ScriptedStream;

const KernelWork kProduct{.flops = 100.0, .bytes = 10.0, .dtype = DType::kBF16};

ProfilerOptions without_warm_up() { return {.create_timer = scripted_timer, .warm_up_steps = 0}; }

// 1 ms idle; in forward, 2 ms of a product and 3 ms idle; 4 ms idle.
void run_step(StepProfiler& profiler, ScriptedStream& stream) {
  const Range step(RangeKind::kPhase, "step");
  stream.advance(1.0);
  {
    const Range forward(RangeKind::kPhase, "forward");
    run_op(profiler, "gemm", kProduct, stream, 2.0);
    stream.advance(3.0);
  }
  stream.advance(4.0);
}

const OpTime* find(const std::vector<OpTime>& rows, std::string_view phase, std::string_view op) {
  for (const OpTime& row : rows) {
    if (row.phase == phase && row.op == op) return &row;
  }
  return nullptr;
}

TEST(StepProfiler, AddsUpOperationsAndTheTimeInNone) {
  ScriptedStream stream;
  StepProfiler profiler(without_warm_up());
  profiler.attach(stream, StreamOrder::kInline);
  for (int step = 0; step < 5; ++step) {
    run_step(profiler, stream);
    stream.advance(1000.0);  // time between steps belongs to none
  }
  const OpTimes& times = profiler.finish();
  EXPECT_EQ(times.steps(), 5);
  EXPECT_DOUBLE_EQ(times.step_ms(), 5 * 10.0);
  const auto rows = times.rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_DOUBLE_EQ(find(rows, "step", "")->ms, 5 * 5.0);
  EXPECT_DOUBLE_EQ(find(rows, "forward", "")->ms, 5 * 3.0);
  const OpTime* gemm = find(rows, "forward", "gemm");
  ASSERT_NE(gemm, nullptr);
  EXPECT_DOUBLE_EQ(gemm->ms, 5 * 2.0);
  EXPECT_EQ(gemm->calls, 5);
  EXPECT_EQ(gemm->work.flops, 500.0);
  EXPECT_EQ(gemm->work.bytes, 50.0);
  ASSERT_EQ(times.phases().size(), 2u);
  EXPECT_EQ(times.phases()[1].first, "forward");
  EXPECT_DOUBLE_EQ(times.phases()[1].second, 5 * 5.0);
}

TEST(StepProfiler, LeavesTheFirstStepsOut) {
  ScriptedStream stream;
  StepProfiler profiler({.create_timer = scripted_timer, .warm_up_steps = 2});
  profiler.attach(stream, StreamOrder::kInline);
  run_step(profiler, stream);
  run_step(profiler, stream);
  EXPECT_EQ(profiler.finish().steps(), 0);
  EXPECT_TRUE(profiler.finish().rows().empty());
  run_step(profiler, stream);
  EXPECT_EQ(profiler.finish().steps(), 1);
}

TEST(StepProfiler, RecordsNothingBeforeItKnowsTheStreamOrOutsideOfSteps) {
  ScriptedStream stream;
  StepProfiler profiler(without_warm_up());
  run_step(profiler, stream);
  profiler.attach(stream, StreamOrder::kInline);
  {
    const Range evaluate(RangeKind::kPhase, "evaluate");
    EXPECT_FALSE(profiler.recording());
  }
  EXPECT_EQ(profiler.finish().steps(), 0);
}

// An operation within another, for example a copy within a collective, keeps its own time.
TEST(StepProfiler, NestedOperationsAreNotCountedTwice) {
  ScriptedStream stream;
  StepProfiler profiler(without_warm_up());
  profiler.attach(stream, StreamOrder::kInline);
  {
    const Range step(RangeKind::kPhase, "step");
    const StepProfiler::Op outer(profiler, "all_to_all", {}, &stream);
    stream.advance(1.0);
    run_op(profiler, "copy", {}, stream, 2.0);
    stream.advance(4.0);
  }
  const auto rows = profiler.finish().rows();
  EXPECT_DOUBLE_EQ(find(rows, "step", "all_to_all")->ms, 5.0);
  EXPECT_DOUBLE_EQ(find(rows, "step", "copy")->ms, 2.0);
  EXPECT_DOUBLE_EQ(find(rows, "step", "")->ms, 0.0);
}

TEST(StepProfiler, ProductsOfDifferentDtypesStandApartAndPollsAddTimeWithoutCalls) {
  ScriptedStream stream;
  StepProfiler profiler(without_warm_up());
  profiler.attach(stream, StreamOrder::kInline);
  {
    const Range step(RangeKind::kPhase, "step");
    run_op(profiler, "gemm", kProduct, stream, 1.0);
    run_op(profiler, "gemm", {.flops = 1.0, .dtype = DType::kF32}, stream, 2.0);
    run_op(profiler, "all_to_all", {.bytes = 7.0}, stream, 1.0);
    const Range reduce(RangeKind::kPhase, "reduce");
    run_op(profiler, "all_to_all", {}, stream, 5.0, SpanKind::kPoll);
  }
  const OpTimes& times = profiler.finish();
  const auto rows = times.rows();
  EXPECT_EQ(rows.size(), 6u);  // two products, the collective in two phases, and the rest of two phases
  EXPECT_EQ(find(rows, "reduce", "all_to_all")->calls, 0);
  EXPECT_TRUE(find(rows, "step", "all_to_all")->polled);
  EXPECT_FALSE(find(rows, "step", "gemm")->polled);
  const auto polled = times.polled();
  ASSERT_EQ(polled.size(), 1u);
  EXPECT_DOUBLE_EQ(polled[0].ms, 6.0);
  EXPECT_EQ(polled[0].calls, 1);
  EXPECT_EQ(polled[0].work.bytes, 7.0);
}

// Concurrent streams have their own clocks. A step's time is that of its own stream.
TEST(StepProfiler, OperationsOfOtherStreamsStandBesideTheStep) {
  ScriptedStream compute, other;
  StepProfiler profiler(without_warm_up());
  profiler.attach(compute, StreamOrder::kBeside);
  compute.advance(7.0);
  for (int step = 0; step < 2; ++step) {
    const Range range(RangeKind::kPhase, "step");
    compute.advance(1.0);
    other.wait(*compute.record());
    run_op(profiler, "all_gather", {.bytes = 8.0}, other, 20.0);
    run_op(profiler, "adamw", {.bytes = 4.0}, compute, 5.0);
    compute.wait(*other.record());
  }
  const OpTimes& times = profiler.finish();
  EXPECT_DOUBLE_EQ(times.step_ms(), 2 * 21.0);
  const auto rows = times.rows();
  EXPECT_TRUE(find(rows, "step", "all_gather")->beside);
  EXPECT_DOUBLE_EQ(find(rows, "step", "all_gather")->ms, 2 * 20.0);
  EXPECT_DOUBLE_EQ(find(rows, "step", "adamw")->ms, 2 * 5.0);
  EXPECT_DOUBLE_EQ(find(rows, "step", "")->ms, 2 * 16.0);
  // Both streams are on one time axis: their ops start 1 ms into their steps. The steps follow each other.
  ASSERT_EQ(profiler.traced().size(), 2u);
  for (int step = 0; step < 2; ++step) {
    for (const Span& span : profiler.traced()[static_cast<size_t>(step)].spans) {
      if (span.kind == SpanKind::kPhase) continue;
      EXPECT_NEAR(span.begin_us, 1e3 * (step * 21.0 + 1.0), 1e-6) << span.name;
    }
  }
}

TEST(StepProfiler, TracesAFewStepsOnly) {
  ScriptedStream stream;
  ProfilerOptions options = without_warm_up();
  options.traced_steps = 2;
  StepProfiler profiler(options);
  profiler.attach(stream, StreamOrder::kInline);
  for (int step = 0; step < 6; ++step) {
    EXPECT_EQ(profiler.trace_complete(), step >= 4);  // results are read two steps later
    run_step(profiler, stream);
  }
  EXPECT_EQ(profiler.finish().steps(), 6);
  ASSERT_EQ(profiler.traced().size(), 2u);
  EXPECT_NEAR(profiler.traced()[1].spans[0].begin_us, 1e4, 1e-6);
}

TEST(StepProfiler, ATraceEndsBeforeItGrowsTooLarge) {
  ScriptedStream stream;
  ProfilerOptions options = without_warm_up();
  options.traced_spans = 7;  // a step has 3
  StepProfiler profiler(options);
  profiler.attach(stream, StreamOrder::kInline);
  for (int step = 0; step < 5; ++step) run_step(profiler, stream);
  EXPECT_EQ(profiler.finish().steps(), 5);
  EXPECT_EQ(profiler.traced().size(), 2u);
}

TEST(StepProfiler, AStepThatFailsIsForgotten) {
  ScriptedStream stream;
  StepProfiler profiler(without_warm_up());
  profiler.attach(stream, StreamOrder::kInline);
  run_step(profiler, stream);
  try {
    const Range step(RangeKind::kPhase, "step");
    const Range forward(RangeKind::kPhase, "forward");
    const StepProfiler::Op op(profiler, "gemm", kProduct, &stream);
    throw std::runtime_error("a kernel fails");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(profiler.recording());
  run_step(profiler, stream);
  const OpTimes& times = profiler.finish();
  EXPECT_EQ(times.steps(), 2);
  EXPECT_DOUBLE_EQ(times.step_ms(), 20.0);
}

// A failed device makes marks throw, even in destructors.
TEST(StepProfiler, ATimerThatFailsCostsNoMoreThanTheStep) {
  class FailingTimer final : public StreamTimer {
   public:
    explicit FailingTimer(const bool& fails) : fails_(fails) {}
    size_t mark() override {
      if (fails_) throw std::runtime_error("the device has failed");
      return 0;
    }
    double milliseconds(size_t, size_t) override { return 0.0; }

   private:
    const bool& fails_;
  };
  ScriptedStream stream;
  bool fails = false;
  StepProfiler profiler(
      {.create_timer = [&fails](Stream&) { return std::make_unique<FailingTimer>(fails); }, .warm_up_steps = 0});
  profiler.attach(stream, StreamOrder::kInline);
  {
    const Range step(RangeKind::kPhase, "step");
    const Range forward(RangeKind::kPhase, "forward");
    const StepProfiler::Op op(profiler, "gemm", kProduct, &stream);
    fails = true;
  }
  EXPECT_FALSE(profiler.recording());
  EXPECT_THROW(Range(RangeKind::kPhase, "step"), std::runtime_error);
  fails = false;
  {
    const Range step(RangeKind::kPhase, "step");
    fails = true;
    EXPECT_THROW(StepProfiler::Op(profiler, "gemm", kProduct, &stream), std::runtime_error);
    EXPECT_FALSE(profiler.recording());
  }
  EXPECT_EQ(profiler.finish().steps(), 0);
}

// A step may catch an operation's exception and go on.
TEST(StepProfiler, AnOperationThatFailsIsOver) {
  ScriptedStream stream;
  StepProfiler profiler(without_warm_up());
  profiler.attach(stream, StreamOrder::kInline);
  {
    const Range step(RangeKind::kPhase, "step");
    try {
      const StepProfiler::Op op(profiler, "gemm", kProduct, &stream);
      stream.advance(1.0);
      throw std::runtime_error("a kernel fails");
    } catch (const std::runtime_error&) {
    }
    stream.advance(2.0);
  }
  const auto rows = profiler.finish().rows();
  EXPECT_DOUBLE_EQ(find(rows, "step", "gemm")->ms, 1.0);
  EXPECT_DOUBLE_EQ(find(rows, "step", "")->ms, 2.0);
}

// A backend under NVIDIA's profilers adds such a sink when it is created, after our profiler.
TEST(StepProfiler, LetsASinkBesideItThatCameBeforeTheStream) {
  ScriptedStream stream;
  auto profiler = std::make_unique<StepProfiler>(without_warm_up());
  const testing::RecordedRanges other;
  profiler->attach(stream, StreamOrder::kInline);
  run_step(*profiler, stream);
  EXPECT_EQ(profiler->finish().steps(), 1);
  EXPECT_EQ(other.events().size(), 4u);
  profiler.reset();
  { const Range data(RangeKind::kPhase, "data"); }
  EXPECT_EQ(other.events().size(), 6u);
}

TEST(StepProfiler, PassesRangesOnAndIgnoresOtherThreads) {
  const testing::RecordedRanges outer;
  ScriptedStream stream;
  {
    StepProfiler profiler(without_warm_up());
    profiler.attach(stream, StreamOrder::kInline);
    std::thread([] { const Range step(RangeKind::kPhase, "step"); }).join();
    run_step(profiler, stream);
    EXPECT_EQ(profiler.finish().steps(), 1);
  }
  EXPECT_EQ(outer.events(), (std::vector<std::string>{"begin phase step", "end phase step", "begin phase step",
                                                      "begin phase forward", "end phase forward", "end phase step"}));
}

}  // namespace
}  // namespace mantissa
