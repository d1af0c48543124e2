// Memory of a step, byte for byte, from dry runs: with recomputation, long contexts and large vocabularies.
#include "tools/train/step/memory_prediction.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "comm/local/local_communicator.h"
#include "core/base/host_memory.h"
#include "tests/program/program.h"
#include "tests/tools/config/minimal.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

using testing::minimal_config;

using Settings = std::vector<std::string>;

// Peak of the arena with the defaults of a configuration but for `settings` and `more`.
int64_t peak_bytes(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return static_cast<int64_t>(predict_memory_table(minimal_config(settings), 1).activations);
}

// All activations of a block go but its input: 4 bytes (fp32) a token and channel, here of 4 sequences of 256 tokens
// and a width of 384. The rest of the peak belongs to a block and the head, however many blocks there are.
TEST(StepMemory, ARecomputedBlockAddsItsInputToThePeak) {
  for (const char* compute : {"precision.compute=bf16", "precision.compute=fp32"}) {
    const auto peak = [&](const char* recompute, const char* layers) {
      return peak_bytes({compute, recompute}, {layers});
    };
    constexpr int64_t kInputBytes = 4 * 4 * 256 * 384;
    EXPECT_EQ(peak("train.recompute=full", "model.layers=12"),
              peak("train.recompute=full", "model.layers=6") + 6 * kInputBytes);
    const int64_t one_block = peak("train.recompute=none", "model.layers=1");
    EXPECT_LE(peak("train.recompute=full", "model.layers=12"), one_block + 12 * kInputBytes) << compute;
    EXPECT_LT(peak("train.recompute=selective", "model.layers=12"), peak("train.recompute=none", "model.layers=12"));
  }
}

// A configuration for a GPU is examined on machines without one.
TEST(StepMemory, IsPredictedForADeviceThatIsNotHere) {
  // fp32: a CPU with matrix units multiplies bf16 without packing.
  const Settings several_micro_batches = {"train.global_batch=8", "train.micro_batch=2", "precision.compute=fp32"};
  EXPECT_GT(predict_memory_table(minimal_config(several_micro_batches), 1).packed, 0u);
  Settings on_gpu = several_micro_batches;
  on_gpu.emplace_back("device=cuda");
  EXPECT_EQ(predict_memory_table(minimal_config(on_gpu), 1).packed, 0u);
}

// By the data sheet of the device, which multiplies 8-bit codes itself and keeps less than an emulation.
TEST(StepMemory, OfAnAbsentDeviceIsThatOfItsProducts) {
  const Config config =
      minimal_config({"precision.recipe=current", "model.width=64", "model.heads=2", "model.context=64"});
  const Hardware& h100 = find_hardware("h100");
  const auto tables = predict_memory_tables(config, {.absent = &h100});
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].total(), predict_memory_table(config, {.support = h100.fp8_gemm_support}).total());
  EXPECT_LE(tables[0].total(), predict_memory_table(config, DryRunOptions{}).total());
}

// To the byte. They are no part of the total, but the host of a run with probes must have them, too.
TEST(StepMemory, OfProbesIsPredicted) {
  const testing::SmallRun run("step_probe_memory");
  for (const char* setting : {"precision.compute=fp32", "precision.compute=bf16", "precision.recipe=mxfp8"}) {
    const Config config = load_config(run.config_path(), {"probe.enabled=true", setting});
    run_ranks(2, [&](Communicator& communicator) {
      Session session(config, communicator);
      RunProbe probe = make_probe(config, session.sharded);
      ProbeExaminer examiner(probe);
      TrainStep(session, {&examiner}).run();
      if (communicator.rank() != 0) return;
      const MemoryTable predicted = predict_memory_table(config, 2);
      EXPECT_EQ(predicted.probes, probe.size_bytes()) << setting;
      EXPECT_GT(predicted.probes, 0u) << setting;
      EXPECT_EQ(predicted.activations, measure_memory_table(session).activations) << setting;
      EXPECT_NE(to_text(predicted).find("and probes"), std::string::npos);
    });
  }
  EXPECT_EQ(predict_memory_table(load_config(run.config_path(), {}), 1).probes, 0u);
  // Its logits exceed 2^26, so that they are made in chunks.
  const Config large = load_config(run.config_path(), {"probe.enabled=true", "model.vocab=70000", "model.width=8",
                                                       "train.micro_batch=32", "train.global_batch=32"});
  ASSERT_GT(int64_t{32} * large.model.context * large.model.vocab, int64_t{1} << 26);
  EXPECT_GT(predict_memory_table(large, 1).probes, 0u);
  EXPECT_EQ(std::ranges::count_if(ops_of(large),
                                  [](const PlacedOp& op) { return op.layer == "head" && op.op == Op::kLinear; }),
            1);
}

TEST(StepMemory, OfAProcessAndANodeIsMoreThanItsTensors) {
  const Config config = minimal_config({"device=cpu"});
  std::vector<MemoryTable> tables(1);
  tables[0].parameters = 1;
  tables[0].activations = size_t{500} << 20;
  const auto process = [&](const MemoryRequest& request) { return memory_comments(config, tables, request); };
  const auto mib = [](const std::string& text, const std::string& row) {
    const size_t at = text.find("\n#   " + row + " ");
    return at == std::string::npos ? 0.0 : std::stod(text.substr(at + 5 + row.size()));
  };
  const std::string alone = process({});
  EXPECT_GT(mib(alone, "process"), 500.0 + 96.0) << alone;
  EXPECT_EQ(mib(alone, "GPU"), 0.0);
  const std::string four = process({.ranks = 4});
  EXPECT_NEAR(mib(four, "process"), mib(alone, "process") + 64.0, 32.0) << "MPI: " << four;
  const double node = mib(four, "node");
  EXPECT_NEAR(node, 4.0 * mib(four, "process"), 0.5);
  EXPECT_NE(four.find(fmt::format("4 ranks; for Slurm --mem={:.0f}G", std::ceil(1.05 * node / 1024.0))),
            std::string::npos)
      << four;
  EXPECT_NEAR(mib(process({.ranks = 4, .ranks_per_node = 2}), "node"), node / 2.0, 32.0);
  const std::string gpu = process({.absent = &find_hardware("t4")});
  EXPECT_EQ(mib(gpu, "GPU"), 1300.0) << gpu;
  EXPECT_NE(gpu.find("of 15258.8 in NVIDIA T4"), std::string::npos) << gpu;
  EXPECT_EQ(gpu.find("too much"), std::string::npos) << gpu;
  EXPECT_GT(mib(gpu, "process"), 2048.0) << gpu;
  tables[0].activations = size_t{15} << 30;
  EXPECT_NE(process({.absent = &find_hardware("t4")}).find("in NVIDIA T4: too much"), std::string::npos);
}

class SharingRank final : public ForwardingCommunicator, private NodeMemory {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  NodeMemory* node_memory() override { return this; }
  std::shared_ptr<Storage> allocate(size_t, const char*) override { return nullptr; }
  SharedRows rows_of_all(const Tensor&) const override { return {}; }
};

// Weights in common are in the table by the rank's part: there is nothing to take off the sum.
TEST(StepMemory, OfANodeIsThatOfAllItsRanks) {
  LocalGroup group(2);
  SharingRank rank(group.rank(0));
  ASSERT_EQ(rank.local_size(), 2);
  std::vector<MemoryTable> tables(1);
  tables[0].parameters = 1;
  const auto warning = [&](size_t weights) {
    tables[0].state.weights = weights;
    ::testing::internal::CaptureStdout();
    require_memory(minimal_config({"device=cpu"}), tables, rank);
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(warning(host_memory().total_bytes / 4), "");
  EXPECT_NE(warning(host_memory().total_bytes / 4 * 3).find("the 2 ranks of this node need "), std::string::npos);
}

TEST(StepMemory, GrowsLinearlyWithTheContext) {
  for (const char* recompute : {"train.recompute=none", "train.recompute=selective", "train.recompute=full"}) {
    for (const char* compute : {"precision.compute=bf16", "precision.compute=fp32"}) {
      const auto at = [&](const char* context) {
        return peak_bytes({"train.micro_batch=1", "train.global_batch=1", recompute, compute}, {context});
      };
      const int64_t first = at("model.context=2048"), second = at("model.context=4096"),
                    third = at("model.context=8192");
      EXPECT_EQ(third - second, 2 * (second - first)) << recompute << ' ' << compute;
    }
  }
}

// The logits of 4096 positions would be 1 GiB in bf16 and 2 GiB in fp32. Beyond the memory of a small vocabulary
// there is room for the logits of a chunk.
TEST(StepMemory, LargeVocabularyTakesTheLogitsOfAChunk) {
  constexpr int64_t kRows = 4096, kVocab = 131072, kChunkLogits = int64_t{1} << 26;
  for (const auto& [compute, bytes] : {std::pair("precision.compute=bf16", 2), {"precision.compute=fp32", 4}}) {
    const auto with = [&](const char* vocab) {
      return peak_bytes({"model.context=4096", "train.micro_batch=1", "train.global_batch=1", compute}, {vocab});
    };
    const int64_t large = with("model.vocab=131072"), small = with("model.vocab=256");
    EXPECT_LT(large, kRows * kVocab * bytes) << compute;
    EXPECT_LE(large - small, kChunkLogits * bytes) << compute;
    EXPECT_GT(large - small, 0) << compute;
  }
}

}  // namespace
}  // namespace mantissa
