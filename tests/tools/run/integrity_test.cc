// Silent data corruption during a training: a run survives it, or ends.
#include "tools/run/guard/integrity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <functional>
#include <map>

#include "comm/local/local_communicator.h"
#include "tests/comm/watched_rank.h"
#include "tests/program/program.h"
#include "tests/testing/weight_hash.h"
#include "tools/train/training.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;

// Flips a bit of what the all-to-alls of some reductions deliver.
class NoisyWire final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  int flips = 0;  // still to come

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    auto work = ForwardingCommunicator::all_to_all(send, recv, stream);
    if (flips == 0) return work;
    work->wait();
    flip_bit(recv, 0, 3);
    --flips;
    return std::make_unique<NoWork>();
  }
};

struct Faults {
  std::map<int64_t, std::function<void(Session&)>> before_step{};  // steps from 0
  int wire_flips = 0;                                              // on rank 0
  int rank = -1;                                                   // of before_step; -1: the last one
};

// Injects the faults of one rank, and hears how the run ends.
class Injector final : public TrainObserver {
 public:
  Injector(const Faults& faults, std::vector<Ending>& endings) : faults_(faults), endings_(endings) {}
  void before_step(Trainer& trainer, int64_t step) override {
    const auto fault = faults_.before_step.find(step);
    if (fault != faults_.before_step.end()) fault->second(trainer.session());
  }
  bool pauses_after(int64_t steps) const override { return pause == steps; }
  void at_end(Trainer&, Ending ending) override { endings_.push_back(ending); }
  int64_t pause = -1;

 private:
  const Faults& faults_;
  std::vector<Ending>& endings_;
};

struct Trained {
  std::vector<Ending> endings;
  std::string error;
  std::vector<uint64_t> weights;  // by rank, at the end
};

// Trains on ranks that are threads; a single rank has faults.
Trained train_with(const SmallRun& run, int ranks, const std::vector<std::string>& settings, const Faults& faults = {},
                   int64_t pause = -1) {
  const Config config = load_config(run.config_path(), with({"train.steps=8", "train.eval_interval=0"}, settings));
  Trained trained;
  trained.weights.resize(static_cast<size_t>(ranks));
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::vector<Ending>> endings(static_cast<size_t>(ranks));
  const Faults none;
  run_ranks(ranks, [&](Communicator& communicator) {
    const auto rank = static_cast<size_t>(communicator.rank());
    NoisyWire wire(communicator);
    if (rank == 0) wire.flips = faults.wire_flips;
    const auto begin = [&](Session&, RunState&, const Start&, TrainObservers& observers) {
      const int faulty = faults.rank < 0 ? ranks - 1 : faults.rank;
      const auto injector = std::make_shared<Injector>(communicator.rank() == faulty ? faults : none, endings[rank]);
      injector->pause = pause;
      observers.push_back(injector);
      struct Hasher final : TrainObserver {
        explicit Hasher(uint64_t& target) : to(target) {}
        void before_leave(Trainer& trainer) override {
          const ModelRuntime& runtime = trainer.session().runtime;
          to = hash_weights(runtime.parameters, *runtime.backend, *runtime.stream);
        }
        uint64_t& to;
      };
      observers.push_back(std::make_shared<Hasher>(trained.weights[rank]));
    };
    try {
      train_run(config, std::nullopt, {.begin = begin}, wire);
    } catch (const CorruptionError& error) {
      errors[rank] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]) << "ranks decide alike";
  trained.error = errors[0];
  trained.endings = endings[0];
  return trained;
}

std::function<void(Session&)> flip_weight(const std::string& name, int64_t element, int bit) {
  return [=](Session& session) {
    const Parameter& parameter = *session.runtime.parameters.find(name);
    flip_bit(parameter.weight.view({parameter.numel()}), element, bit);
  };
}

// In the rank's first piece of state.
std::function<void(Session&)> flip_state(StateDigests::Part part, int bit) {
  return [=](Session& session) {
    flip_bit(session.sharded.optimizer.digested_pieces()[0].parts()[static_cast<size_t>(part)], 1, bit);
  };
}

TEST(IntegrityGuard, ChecksChangeNoBit) {
  const SmallRun run("integrity_bits");
  for (const int ranks : {1, 2}) {
    for (const auto& [format, compute] : {std::pair("fp32", "bf16"), {"8bit", "bf16"}, {"fp32", "fp64"}}) {
      const std::vector<std::string> settings = {fmt::format("optimizer.first_moment={}", format),
                                                 fmt::format("precision.compute={}", compute), "model.dropout=0.1"};
      const Trained off = train_with(run, ranks, with(settings, {"integrity.interval=0"}));
      const Trained on = train_with(
          run, ranks, with(settings, {"integrity.interval=1", "integrity.wire=true", "integrity.replay_interval=3"}));
      EXPECT_EQ(on.error, "");
      EXPECT_EQ(on.weights, off.weights);
      EXPECT_EQ(on.endings, std::vector<Ending>{Ending::kDone});
    }
  }
}

// The flip is found before an update has seen anything that was computed with it.
TEST(IntegrityGuard, AFlippedWorkingWeightLeavesNoTrace) {
  const SmallRun run("integrity_weight");
  for (const int ranks : {1, 2, 3}) {
    const std::vector<std::string> settings = {"precision.compute=bf16", "integrity.interval=2"};
    const Trained clean = train_with(run, ranks, settings);
    const Trained flipped =
        train_with(run, ranks, settings, {.before_step = {{3, flip_weight("blocks.0.mlp.up.weight", 40, 14)}}});
    EXPECT_EQ(flipped.error, "");
    EXPECT_EQ(flipped.weights, clean.weights);
    // Step 3 (from 1) is not checked: the next update writes over the flip, and its effect on gradients stays.
    const Trained missed =
        train_with(run, ranks, settings, {.before_step = {{2, flip_weight("blocks.0.mlp.up.weight", 40, 14)}}});
    EXPECT_EQ(missed.error, "");
    EXPECT_NE(missed.weights, clean.weights);
  }
}

TEST(IntegrityGuard, CorruptStateEndsTheRunAndIsNotSaved) {
  const SmallRun run("integrity_state");
  for (const int ranks : {1, 2}) {
    for (const auto part : {StateDigests::kMaster, StateDigests::kM, StateDigests::kV}) {
      const Trained trained = train_with(run, ranks, {"precision.compute=bf16", "integrity.interval=4"},
                                         {.before_step = {{2, flip_state(part, 20)}}});
      EXPECT_THAT(trained.error, HasSubstr("silent data corruption after step 4: rank " + std::to_string(ranks - 1)));
      EXPECT_THAT(trained.error, HasSubstr("(bit 20), read by update 3. The state is not saved"));
      EXPECT_EQ(trained.endings, std::vector<Ending>{Ending::kCorrupt});
    }
  }
}

// The lowest and the highest bit, and those around the middle.
TEST(IntegrityGuard, CorruptStateInFp64EndsTheRun) {
  const SmallRun run("integrity_fp64");
  for (const int bit : {0, 31, 32, 63}) {
    const Trained trained = train_with(run, 2, {"precision.compute=fp64", "integrity.interval=4"},
                                       {.before_step = {{2, flip_state(StateDigests::kM, bit)}}});
    EXPECT_THAT(trained.error, HasSubstr("silent data corruption after step 4: rank 1")) << bit;
    EXPECT_EQ(trained.endings, std::vector<Ending>{Ending::kCorrupt});
  }
}

TEST(IntegrityGuard, StateIsExaminedBeforeItIsSavedAndAtTheEnd) {
  const SmallRun run("integrity_rest");
  const Faults faults{.before_step = {{6, flip_state(StateDigests::kV, 3)}}};
  const std::vector<std::string> settings = {"precision.compute=bf16", "integrity.interval=100"};
  EXPECT_THAT(train_with(run, 2, settings, faults, 7).error, HasSubstr("silent data corruption after step 7: rank 1"));
  EXPECT_THAT(train_with(run, 2, settings, faults).error, HasSubstr("silent data corruption after step 8: rank 1"));
  // An evaluation keeps nothing.
  const std::vector<std::string> evaluates = with(settings, {"train.eval_interval=7"});
  EXPECT_THAT(train_with(run, 2, evaluates, faults).error, HasSubstr("silent data corruption after step 8: rank 1"));
}

TEST(IntegrityGuard, AWarningGoesOn) {
  const SmallRun run("integrity_warn");
  const Trained trained =
      train_with(run, 2, {"precision.compute=bf16", "integrity.interval=2", "integrity.action=warn"},
                 {.before_step = {{2, flip_state(StateDigests::kM, 3)}}});
  EXPECT_EQ(trained.error, "");
  EXPECT_EQ(trained.endings, std::vector<Ending>{Ending::kDone});
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The update that reads the flipped moment is checked at once: no gradient has seen what it made.
TEST(IntegrityGuard, AWarningAboutReplicasComesOnceAndTheyAreOneAgain) {
  const SmallRun run("integrity_replicas");
  const std::vector<std::string> settings = {"precision.compute=bf16", "integrity.interval=2", "integrity.action=warn",
                                             "optimizer.sharding=replicated"};
  struct Case {
    int ranks, faulty;
    const char* message;
  };
  for (const Case& one : {Case{3, 0, "rank 0 takes the optimizer state of rank 1"},
                          Case{2, 0, "rank 0 takes the optimizer state of rank 1"},
                          Case{2, 1, "rank 1 takes the optimizer state of rank 0"}}) {
    const Trained clean = train_with(run, one.ranks, settings);
    for (const auto part : {StateDigests::kM, StateDigests::kMaster}) {
      ::testing::internal::CaptureStdout();
      const Trained united =
          train_with(run, one.ranks, settings, {.before_step = {{3, flip_state(part, 20)}}, .rank = one.faulty});
      const std::string log = ::testing::internal::GetCapturedStdout();
      EXPECT_EQ(united.error, "");
      EXPECT_EQ(united.weights, clean.weights);
      EXPECT_EQ(count_of(log, "silent data corruption"), 1) << log;
      EXPECT_EQ(count_of(log, one.message), 1) << log;
    }
  }
}

TEST(IntegrityGuard, OneFaultOnTheWireIsSurvivedAndTwoInARowAreNot) {
  const SmallRun run("integrity_wire");
  const std::vector<std::string> settings = {"precision.compute=bf16", "integrity.wire=true"};
  const Trained clean = train_with(run, 2, settings);
  const Trained once = train_with(run, 2, settings, {.wire_flips = 1});
  EXPECT_EQ(once.error, "");
  EXPECT_EQ(once.weights, clean.weights);
  const Trained often = train_with(run, 2, settings, {.wire_flips = 1000});
  EXPECT_THAT(often.error, HasSubstr("again after the passes of the step ran once more: rank "));
  EXPECT_THAT(often.error, HasSubstr("gradient on the wire of '"));
  EXPECT_EQ(often.endings, std::vector<Ending>{Ending::kCorrupt});
}

// A pass that gives other gradients in some of its runs.
std::string replay_error(const std::function<bool(int run)>& is_wrong) {
  const SmallRun run("integrity_replay");
  const Config config = load_config(run.config_path(), {"integrity.replay_interval=1"});
  std::string error;
  LocalGroup group(1);
  Session session(config, group.rank(0));
  StepWork work(session);
  work.load(0);
  work.set_loss_gradient(1.0, 1);
  int runs = 0;
  const auto pass = [&] {
    work.run();
    ++runs;
    const Tensor& gradient = session.runtime.parameters[0].gradient;
    if (is_wrong(runs)) flip_bit(gradient.view({gradient.numel()}), runs, 7);
  };
  IntegrityGuard guard(config.integrity, session.sharded);
  EXPECT_TRUE(guard.is_due(0));
  try {
    pass();
    guard.after_passes(0, pass);
  } catch (const CorruptionError& thrown) {
    error = thrown.what();
  }
  EXPECT_EQ(runs, is_wrong(1) || is_wrong(2) ? 3 : 2);
  return error;
}

TEST(IntegrityGuard, AThirdRunTellsTransientFromPersistentFaults) {
  EXPECT_EQ(replay_error([](int) { return false; }), "");
  EXPECT_EQ(replay_error([](int run) { return run == 1; }), "");
  EXPECT_EQ(replay_error([](int run) { return run == 2; }), "");
  const std::string error = replay_error([](int) { return true; });
  EXPECT_THAT(error, HasSubstr("three runs of the same passes differ"));
  EXPECT_THAT(error, HasSubstr("rank 0"));
  EXPECT_THAT(error, HasSubstr("gradient of '"));
}

}  // namespace
}  // namespace mantissa::testing
