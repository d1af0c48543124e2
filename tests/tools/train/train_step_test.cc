// A training step on ranks that are threads: the state of every single rank afterwards.
#include "tools/train/step/train_step.h"
#include "tools/train/session_observers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "comm/local/local_communicator.h"
#include "core/kernels/gemm/gemm_cpu.h"
#include "tests/core/profile/recorded_ranges.h"
#include "tests/program/program.h"
#include "tests/reference/adamw.h"
#include "tests/testing/weight_hash.h"
#include "tools/model/generate/generator.h"
#include "tools/train/checkpoint.h"
#include "tools/train/step/memory_prediction.h"
#include "tools/train/step/step_work.h"
#include "tools/train/trainer.h"

namespace mantissa::testing {
namespace {

struct RankView {
  std::vector<StepReport> reports;
  std::vector<float> scales;      // after each step
  std::vector<uint64_t> weights;  // hash after each step; [0] is before the first
  std::vector<int64_t> applied;   // optimizer steps after each step
};

// Runs `steps` steps on `ranks` ranks of one process.
std::vector<RankView> run_ranks(const SmallRun& run, int ranks, int steps, const std::vector<std::string>& settings) {
  const Config config = load_config(run.config_path(), settings);
  std::vector<RankView> views(static_cast<size_t>(ranks));
  mantissa::run_ranks(ranks, [&](Communicator& communicator) {
    RankView& view = views[static_cast<size_t>(communicator.rank())];
    Session session(config, communicator);
    TrainStep step(session);
    const auto hash = [&] {
      return hash_weights(session.runtime.parameters, *session.runtime.backend, *session.runtime.stream);
    };
    view.weights.push_back(hash());
    for (int index = 0; index < steps; ++index) {
      for (StepReport& report : step.run()) view.reports.push_back(std::move(report));
      view.scales.push_back(session.scaler.current_scale());
      view.weights.push_back(hash());
      view.applied.push_back(session.sharded.optimizer.applied_steps());
    }
  });
  return views;
}

TEST(TrainStep, OverflowOnOneRankIsSkippedAndHalvesTheScaleOnEveryRank) {
  SmallRun run("step_overflow");
  run.with_yaml(
      "test: {faults: [{step: 2, rank: 2, parameter: blocks.0.attention.qkv.weight, element: 5, kind: nan}]}\n");
  const auto views =
      run_ranks(run, 3, 4, {"precision.compute=fp16", "scaler.init_scale=256", "scaler.growth_interval=2"});
  for (const RankView& view : views) {
    EXPECT_EQ(view.scales, (std::vector<float>{256, 128, 128, 256}));
    EXPECT_EQ(view.applied, (std::vector<int64_t>{1, 1, 2, 3}));
    EXPECT_EQ(view.weights[1], view.weights[2]);  // untouched by the skipped step
    EXPECT_NE(view.weights[2], view.weights[3]);
    EXPECT_EQ(view.weights, views[0].weights);  // all ranks hold the same bits at all times
    ASSERT_TRUE(view.reports[1].offender.has_value());
    EXPECT_EQ(view.reports[1].offender->rank, 2);
    EXPECT_EQ(view.reports[1].offender->element, 5);
    EXPECT_TRUE(view.reports[1].verdict.found_nan);
  }
}

TEST(TrainStep, ReportsAreAlikeOnEveryRank) {
  const SmallRun run("step_reports");
  const auto views = run_ranks(run, 2, 3, {});
  for (size_t index = 0; index < 3; ++index) {
    EXPECT_EQ(views[0].reports[index].loss, views[1].reports[index].loss);
    EXPECT_EQ(views[0].reports[index].grad_norm, views[1].reports[index].grad_norm);
    EXPECT_EQ(views[0].reports[index].tokens, 12 * 32);
  }
}

// As where the file system of one node shows another file. All ranks must go on with the same checkpoint.
TEST(ResumeOnThreads, ACheckpointThatOneRankCannotUseIsDamagedForAll) {
  const SmallRun run("damaged_for_one");
  const Config config = load_config(run.config_path());
  mantissa::run_ranks(2, [&](Communicator& communicator) {
    Session session(config, communicator);
    TrainStep step(session);
    step.run();
    RunState state(config);
    EXPECT_TRUE(TrainingCheckpoints(session, config).save(state));
  });
  const std::string copy = run.folder() + "/copy";
  std::filesystem::copy(run.checkpoint_folder(1), copy, std::filesystem::copy_options::recursive);
  std::filesystem::resize_file(copy + "/optimizer-00002-of-00002.safetensors", 100);
  mantissa::run_ranks(2, [&](Communicator& communicator) {
    ResumePoint point = find_resume_point(config, communicator).value();
    EXPECT_EQ(point.step, 1);
    Session session(config, communicator);
    if (communicator.rank() == 1) point.folder = copy;
    try {
      resume(session, config, point);
      ADD_FAILURE() << "rank " << communicator.rank() << " goes on";
    } catch (const DamagedCheckpoint& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(copy + "/optimizer-00002-of-00002.safetensors: damaged: expected "), std::string::npos);
      EXPECT_TRUE(message.ends_with("bytes, found 100 (rank 1)")) << message;
    }
  });
}

// Ranks, micro-batches, dropout, and buckets so small that reductions run while gradients come.
TEST(TrainStep, RecomputationChangesNoWeight) {
  const SmallRun run("step_recompute");
  const auto with = [&](const char* recompute) {
    return run_ranks(run, 2, 3, {recompute, "model.dropout=0.1", "comm.bucket_mib=0.01", "precision.compute=bf16"});
  };
  const auto kept = with("train.recompute=none");
  for (const char* recompute : {"train.recompute=selective", "train.recompute=full"}) {
    const auto again = with(recompute);
    for (size_t rank = 0; rank < kept.size(); ++rank) {
      EXPECT_EQ(again[rank].weights, kept[rank].weights) << recompute;
      for (size_t step = 0; step < 3; ++step) {
        EXPECT_EQ(again[rank].reports[step].loss, kept[rank].reports[step].loss) << recompute;
      }
    }
  }
}

// Small in all but the context. A matrix of 4096 x 4096 scores would take 64 MiB, for one head.
TEST(TrainStep, LongContextTrainsInMemoryWithoutScores) {
  const SmallRun run("step_long");
  const std::vector<std::string> settings = {"model.context=4096", "train.global_batch=1", "train.micro_batch=1",
                                             "model.heads=2", "optimizer.warmup_steps=0"};
  const auto with = [&](const char* recompute) {
    std::vector<std::string> all = settings;
    all.push_back(recompute);
    return run_ranks(run, 1, 2, all)[0];
  };
  const RankView kept = with("train.recompute=none");
  EXPECT_LT(kept.reports[1].loss, kept.reports[0].loss);
  EXPECT_EQ(with("train.recompute=full").weights, kept.weights);
  EXPECT_LT(predict_memory_table(load_config(run.config_path(), settings), 1).activations, size_t{4} * 4096 * 4096);
}

// The fault is met once, in the first run of the block, and named as without recomputation.
TEST(TrainStep, FaultInARecomputedBlockIsFound) {
  SmallRun run("step_recompute_fault");
  run.with_yaml("test: {activations: [{step: 2, layer: blocks.1.mlp, op: gelu, value: nan}]}\n");
  const auto with = [&](const char* recompute) { return run_ranks(run, 1, 3, {recompute})[0]; };
  const RankView kept = with("train.recompute=none");
  EXPECT_NE(kept.reports[1].culprit.value_or("").find("op gelu of layer 'blocks.1.mlp'"), std::string::npos);
  for (const char* recompute : {"train.recompute=selective", "train.recompute=full"}) {
    const RankView again = with(recompute);
    EXPECT_EQ(again.reports[1].culprit, kept.reports[1].culprit) << recompute;
    EXPECT_EQ(again.weights, kept.weights) << recompute;
  }
}

// The loss is finite, but the backward pass of an op on a single rank is not. Ops before it get the NaN from there.
TEST(TrainStep, FaultInABackwardPassIsFound) {
  for (const int ranks : {1, 2}) {
    const int bad = ranks - 1;
    SmallRun run("step_backward_fault_" + std::to_string(ranks));
    run.with_yaml(fmt::format(
        "test: {{activations: [{{step: 2, rank: {}, layer: blocks.1.mlp, op: gelu, pass: backward, value: nan}}]}}\n",
        bad));
    const std::vector<std::vector<std::string>> all_settings = {
        {"train.recompute=none"},
        {"train.recompute=selective"},
        {"train.recompute=full"},
        {"precision.compute=fp16", "scaler.mode=static", "scaler.init_scale=64"},
        {"precision.recipe=delayed"}};
    for (const std::vector<std::string>& settings : all_settings) {
      const std::string& setting = settings.front();
      const auto views = run_ranks(run, ranks, 3, settings);
      for (const RankView& view : views) {
        EXPECT_TRUE(view.reports[1].verdict.loss_finite) << setting;
        EXPECT_FALSE(view.reports[1].applied) << setting;
        const std::string culprit = view.reports[1].culprit.value_or("");
        for (const std::string& part :
             {std::string("the backward pass of op gelu of layer 'blocks.1.mlp' made 1 NaN and 0 Inf in the gradient "
                          "of linear of 'blocks.1.mlp.up' (64, 128), first at element 0 (micro-batch 0); made of the "
                          "gradient of gelu of 'blocks.1.mlp' ("),
              std::string("; the op's inputs: linear of 'blocks.1.mlp.up' ("), fmt::format(" on rank {}", bad)}) {
          EXPECT_NE(culprit.find(part), std::string::npos) << setting << ": " << part << " in " << culprit;
        }
        EXPECT_EQ(culprit, views[0].reports[1].culprit) << setting;
      }
    }
  }
}

// Later steps do not depend on the pass in which a fault was searched.
TEST(TrainStep, HuntingInABackwardPassChangesNoStepBehindIt) {
  const auto with = [](const char* pass, const char* setting) {
    SmallRun run(std::string("step_hunt_") + pass);
    run.with_yaml(fmt::format(
        "test: {{activations: [{{step: 2, rank: 0, layer: blocks.1.mlp, op: gelu, pass: {}, value: nan}}]}}\n", pass));
    return run_ranks(run, 2, 4, {setting, "comm.bucket_mib=0.01"});
  };
  for (const char* setting : {"precision.recipe=delayed", "model.dropout=0.1", "train.recompute=full"}) {
    const auto forward = with("forward", setting), backward = with("backward", setting);
    for (size_t rank = 0; rank < backward.size(); ++rank) {
      EXPECT_FALSE(forward[rank].reports[1].verdict.loss_finite) << setting;
      EXPECT_TRUE(backward[rank].reports[1].verdict.loss_finite) << setting;
      EXPECT_EQ(backward[rank].applied, (std::vector<int64_t>{1, 1, 2, 3})) << setting;
      EXPECT_EQ(backward[rank].weights, forward[rank].weights) << setting;
    }
  }
}

// Micro-batches multiply by weights packed for the first of them, and steps by weights packed in the last update.
TEST(TrainStep, PackedWeightsChangeNoBit) {
  const SmallRun run("step_packed");
  for (const char* setting : {"precision.compute=bf16", "precision.compute=fp16", "precision.compute=fp32",
                              "precision.weights=fp32", "train.recompute=full"}) {
    const auto with = [&](const char* packed) {
      return run_ranks(run, 2, 3, {"train.global_batch=8", "train.micro_batch=1", packed, setting});
    };
    const auto kept = with("train.packed_weights=auto"), again = with("train.packed_weights=none");
    EXPECT_EQ(kept[0].weights, again[0].weights) << setting;
    EXPECT_NE(kept[0].weights[1], kept[0].weights[3]) << setting;
  }
}

TEST(TrainStep, PhasesAreRangesInOrder) {
  const SmallRun run("step_ranges");
  const RecordedRanges ranges;
  run_ranks(run, 1, 1, {"train.global_batch=4", "train.micro_batch=2"});
  std::vector<std::string> expected = {"begin phase step", "begin phase data", "end phase data", "begin phase data",
                                       "end phase data"};  // of the next steps
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (const char* event : {"begin phase forward", "end phase forward", "begin phase backward", "end phase backward"})
      expected.push_back(event);
  }
  for (const char* event :
       {"begin phase reduce", "end phase reduce", "begin phase decide", "end phase decide", "begin phase update",
        "end phase update", "end phase step", "begin phase wait", "end phase wait"})
    expected.push_back(event);
  EXPECT_EQ(ranges.phases(), expected);
}

// The table promises the arena's peak before anything is allocated; measured, it is the same to the byte.
TEST(TrainStep, ActivationsTakeWhatWasPredicted) {
  const SmallRun run("step_memory");
  for (const char* setting : {"precision.compute=fp64", "precision.compute=fp32", "precision.compute=bf16",
                              "precision.weights=fp32", "model.dropout=0.1", "model.activation=swiglu",
                              "train.recompute=selective", "train.recompute=full", "train.packed_weights=none"}) {
    const Config config = load_config(run.config_path(), {setting});
    LocalGroup group(1);
    Session session(config, group.rank(0));
    TrainStep(session).run();
    const MemoryTable predicted = predict_memory_table(config, 1), measured = measure_memory_table(session);
    EXPECT_EQ(predicted.activations, measured.activations) << setting;
    EXPECT_EQ(predicted.casts, measured.casts) << setting;
    EXPECT_EQ(predicted.packed, measured.packed) << setting;
    // A CPU with matrix units multiplies bf16 without packing.
    const bool has_own_kernel = cpu::own_kernel(config.precision.compute, cpu::preferred_bf16_gemm()) != nullptr;
    const bool packs =
        has_own_kernel && std::string_view(setting) != "train.packed_weights=none" && !config.precision.is_fp64();
    EXPECT_EQ(measured.packed > 0, packs) << setting;
    EXPECT_EQ(predicted.state, measured.state) << setting;
  }
}

// Contributions are exchanged here, not summed in place. fp32 takes half of the memory, and rounds.
TEST(TrainStep, Fp64IsExchangedAsItIsAndTakesTwiceTheMemoryOfFp32) {
  const SmallRun run("step_fp64");
  const std::vector<std::string> fp64 = {"precision.compute=fp64"},
                                 fp32 = {"precision.compute=fp32", "comm.wire_dtype=fp32"};
  const auto alone = run_ranks(run, 1, 3, fp64), shared = run_ranks(run, 2, 3, fp64),
             rounded = run_ranks(run, 2, 3, fp32);
  EXPECT_EQ(shared[0].weights, shared[1].weights);
  for (size_t index = 0; index < 3; ++index) {
    const StepReport &one = alone[0].reports[index], &two = shared[0].reports[index];
    EXPECT_NEAR(one.loss, two.loss, 1e-14 * one.loss) << "the order of sums";
    EXPECT_NEAR(one.grad_norm, two.grad_norm, 1e-13 * one.grad_norm);
    EXPECT_NEAR(rounded[0].reports[index].grad_norm, one.grad_norm, 1e-5 * one.grad_norm);
    EXPECT_GT(std::abs(rounded[0].reports[index].grad_norm - one.grad_norm), 1e-10 * one.grad_norm);
  }
  const MemoryTable wide = predict_memory_table(load_config(run.config_path(), fp64), 2),
                    narrow = predict_memory_table(load_config(run.config_path(), fp32), 2);
  EXPECT_EQ(wide.state.weights, 2 * narrow.state.weights);
  EXPECT_EQ(wide.state.total(), 2 * narrow.state.total());
  const Config config = load_config(run.config_path(), fp64);
  mantissa::run_ranks(2, [&](Communicator& communicator) {
    Session session(config, communicator);
    TrainStep(session).run();
    EXPECT_EQ(measure_memory_table(session).state, wide.state);
  });
}

std::vector<double> doubles_of(const Tensor& tensor, Session& session) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  session.runtime.backend->download(tensor, values.data(), *session.runtime.stream);
  return values;
}

// Scale of the loss, learning rate, bias corrections and clipping: the update is that of gradients of the summed loss,
// with factors in double. A factor rounded to fp32 would be off by 1e-8.
TEST(TrainStep, NoFactorOfAnUpdateInFp64IsRoundedToFp32) {
  const SmallRun run("step_fp64_factors");
  const Config config = load_config(run.config_path(), {"precision.compute=fp64", "optimizer.clip.max_norm=0.37",
                                                        "optimizer.lr=0.0037", "optimizer.warmup_steps=3"});
  LocalGroup group(1);
  Session session(config, group.rank(0));
  StepWork work(session);
  work.load(0);
  work.set_loss_gradient(1.0, 1);
  work.run();
  const auto tokens = static_cast<double>(work.count_global_tokens());
  std::map<const Parameter*, std::pair<std::vector<double>, std::vector<double>>> before;  // gradients and masters
  double squares = 0.0;
  for (const StatePiece& piece : session.sharded.optimizer.pieces()) {
    auto& [gradient, master] = before[piece.parameter];
    gradient = doubles_of(piece.parameter->gradient, session), master = doubles_of(piece.master, session);
    for (double& g : gradient) {
      g /= tokens;
      squares += g * g;
    }
  }
  const double norm = std::sqrt(squares), rate = 0.0037 / 3.0;
  ASSERT_GT(norm, 0.37);
  const StepReport report = TrainStep(session).run().at(0);
  EXPECT_NEAR(report.grad_norm, norm, 1e-13 * norm);
  struct Difference {
    double errors = 0.0, values = 0.0;  // sums of squares
    void add(double found, double expected) {
      errors += (found - expected) * (found - expected);
      values += expected * expected;
    }
    double relative() const { return std::sqrt(errors / values); }
  } update, first, second;
  const AdamWOptions& adamw = config.optimizer.adamw;
  const double beta1 = static_cast<double>(adamw.beta1), beta2 = static_cast<double>(adamw.beta2);
  for (const StatePiece& piece : session.sharded.optimizer.pieces()) {
    const auto& [gradient, master] = before[piece.parameter];
    const double decay = piece.parameter->decay == WeightDecay::kYes ? static_cast<double>(adamw.weight_decay) : 0.0;
    const reference::AdamWStep step{
        beta1, beta2, static_cast<double>(adamw.epsilon), decay, 0.37 / (norm + 1e-6), rate, 1.0 - beta1, 1.0 - beta2};
    const auto w = doubles_of(piece.master, session), m = doubles_of(piece.m, session),
               v = doubles_of(piece.v, session);
    for (size_t i = 0; i < w.size(); ++i) {
      const auto expected = reference::adamw({master[i], 0.0, 0.0}, gradient[i], step);
      update.add(w[i] - master[i], expected.w - master[i]);
      first.add(m[i], expected.m);
      second.add(v[i], expected.v);
    }
  }
  for (const Difference* difference : {&update, &first, &second}) EXPECT_LT(difference->relative(), 1e-11);
}

// A GPU gives the arena's memory at once: what no pass uses would be lost to the user.
TEST(TrainStep, TheArenaIsAsLargeAsTheLargestOfItsPasses) {
  const SmallRun run("step_arena");
  for (const char* setting : {"precision.compute=fp64", "precision.compute=bf16", "precision.compute=fp16",
                              "model.dropout=0.1", "model.layers=1", "train.micro_batch=1", "model.vocab=5000",
                              "train.recompute=selective", "train.recompute=full"}) {
    const Config config = load_config(run.config_path(), {"train.eval_interval=1", "train.sample_tokens=8", setting});
    LocalGroup group(1);
    Session session(config, group.rank(0));
    StepWork work(session);
    work.load(0);
    work.run();
    work.find_culprit(Pass::kBackward);
    Evaluation(config, session.runtime, *session.batches, session.communicator).run();
    Generator generator(session.runtime, config.model);
    generator.run({'a', 'b'}, {.tokens = config.model.context}, [](int32_t) { return Continue::kYes; });
    EXPECT_EQ(session.runtime.arena->peak_bytes(), session.runtime.arena->capacity_bytes()) << setting;
  }
}

// The gradient prescale is a power of two that unscaling takes out. Whatever the split, the reported norm belongs to
// the mean loss.
TEST(TrainStep, GradientNormDoesNotDependOnTheSplit) {
  const SmallRun run("step_norm");
  const std::vector<std::string> fp32 = {"precision.compute=fp32", "comm.wire_dtype=fp32"};
  const double one = run_ranks(run, 1, 1, fp32)[0].reports[0].grad_norm;
  for (const int ranks : {2, 3, 6})
    EXPECT_NEAR(run_ranks(run, ranks, 1, fp32)[0].reports[0].grad_norm, one, 1e-5 * one);
}

}  // namespace
}  // namespace mantissa::testing
