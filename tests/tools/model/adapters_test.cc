// Trainings with adapters (model.lora), as a user runs them: what is trained, saved, resumed and exported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/program/program.h"
#include "tests/tools/model/hf_reference.h"

namespace mantissa::testing {
namespace adapters_test {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

namespace {

std::string run_well(const std::vector<std::string>& arguments, int ranks = 0) {
  const Outcome outcome = run_program(ranks, arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return outcome.output;
}

// A training on token files of the fixtures' vocabulary.
class AdapterRun {
 public:
  explicit AdapterRun(const std::string& name, const std::string& model = "llama3") : folder_(fresh_folder(name)) {
    std::string bytes;
    for (uint32_t i = 0; i < 4000; ++i) {
      bytes += static_cast<char>((i * i / 3 + 5 * i) % 40);
      bytes += '\0';
    }
    write_file(folder_ + "/tokens.bin", bytes);
    write_file(folder_ + "/config.yaml",
               "model: {context: 64, lora: {rank: 3, alpha: 6.0, targets: [q_proj, v_proj, 'mlp.*'], dropout: 0.1}}\n"
               "data: {format: tokens, layout: u16, train: " +
                   folder_ +
                   "/tokens.bin}\n"
                   "train: {init_from: " +
                   hf_folder(model) + ", run_dir: " + run() +
                   ", steps: 6, global_batch: 6, "
                   "micro_batch: 1, eval_interval: 0, sample_tokens: 0, log_interval: 1}\n"
                   "optimizer: {warmup_steps: 0, lr: 0.01}\nprecision: {compute: fp32}\n"
                   "checkpoint: {keep_last: 0, interval: 3}\n");
  }
  std::string folder() const { return folder_; }
  std::string run() const { return folder_ + "/run"; }
  std::string train(int ranks, const std::vector<std::string>& settings = {}) const {
    return run_well(with({"train", folder_ + "/config.yaml"}, settings), ranks);
  }
  Checkpoint checkpoint(int64_t step) const {
    return read_manifest(fmt::format("{}/checkpoints/step-{:08}", run(), step));
  }
  std::vector<double> losses() const {
    std::map<int64_t, double> by_step;
    std::istringstream lines(read_file(run() + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      if (record.value("event", "") == "step") by_step[record.at("step")] = record.at("loss");
    }
    std::vector<double> losses;
    for (const auto& [step, loss] : by_step) losses.push_back(loss);
    return losses;
  }

 private:
  std::string folder_;
};

std::map<std::string, std::string> hashes_of(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> hashes;
  for (const CheckpointFile& file : checkpoint.files) hashes[file.name] = file.xxh3_128;
  return hashes;
}

TEST(AdapterRun, ResumesBitForBitWithoutTheModelThatItBeganWith) {
  const AdapterRun whole("adapters_whole"), halved("adapters_halved");
  whole.train(2);
  const std::string base = halved.folder() + "/base";
  fs::copy(hf_folder("llama3"), base);
  halved.train(2, {"train.stop_at_step=3", "train.init_from=" + base});
  fs::remove_all(base);
  fs::rename(halved.run(), halved.folder() + "/moved");  // to another machine
  const std::string resumed = run_well(
      {"train", halved.folder() + "/moved", "train.stop_at_step=6", "train.run_dir=" + halved.folder() + "/moved"}, 2);
  EXPECT_THAT(resumed, HasSubstr("resumed from"));
  fs::rename(halved.folder() + "/moved", halved.run());
  EXPECT_EQ(hashes_of(halved.checkpoint(6)), hashes_of(whole.checkpoint(6)));
  EXPECT_EQ(halved.losses(), whole.losses());
  EXPECT_LT(whole.losses().back(), whole.losses().front());
  // Checkpoints hold what is trained.
  const StoredTensors saved = open_safetensors_folder(whole.run() + "/checkpoints/step-00000006");
  EXPECT_FALSE(saved.tensors.contains("token_embedding.weight"));
  EXPECT_TRUE(saved.tensors.contains("blocks.0.attention.qkv.q_proj.lora_a.weight"));
  EXPECT_FALSE(saved.tensors.contains("blocks.0.attention.qkv.k_proj.lora_a.weight"));
}

TEST(AdapterRun, RanksChangeOnlyTheOrderOfSums) {
  std::vector<std::vector<double>> losses;
  for (const int ranks : {1, 2, 3}) {
    const AdapterRun run("adapters_ranks" + std::to_string(ranks));
    run.train(ranks, {"comm.wire_dtype=fp32"});
    losses.push_back(run.losses());
  }
  for (const auto& other : {losses[1], losses[2]}) {
    ASSERT_EQ(other.size(), losses[0].size());
    EXPECT_EQ(other[0], losses[0][0]);  // no sum of gradients has come before
    // 6 steps of Adam with rate 0.01 amplify the 2^-24 of a sum by less than 1000.
    for (size_t i = 1; i < other.size(); ++i) EXPECT_NEAR(other[i], losses[0][i], 1000 * 0x1p-24 * losses[0][i]);
  }
}

TEST(AdapterRun, NeedsTheBaseThatItWasTrainedOn) {
  const AdapterRun run("adapters_base");
  run.train(1, {"train.stop_at_step=3"});
  const std::string base = run.run() + "/base.safetensors";
  std::string bytes = read_file(base);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(base, bytes);
  const Outcome damaged = run_program(1, {"train", run.folder() + "/config.yaml"});
  EXPECT_EQ(damaged.exit_code, 4) << damaged.output;
  EXPECT_THAT(damaged.output, HasSubstr("base.safetensors"));
  fs::remove(base);
  const Outcome gone = run_program(1, {"export", run.run(), "--out", run.folder() + "/hf"});
  EXPECT_EQ(gone.exit_code, 4) << gone.output;
  EXPECT_THAT(gone.output, HasSubstr("the weights that they adapt are missing"));
}

TEST(AdapterRun, RefusesWhatCannotBe) {
  const AdapterRun run("adapters_refused");
  const auto refused = [&](const std::vector<std::string>& settings) {
    const Outcome outcome = run_program(1, with({"train", run.folder() + "/config.yaml"}, settings));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_FALSE(fs::exists(run.run()));
    return outcome.output;
  };
  EXPECT_THAT(refused({"model.lora.targets=[w_proj]"}), HasSubstr("'w_proj' selects no linear layer"));
  EXPECT_THAT(refused({"train.init_from="}), HasSubstr("name it by train.init_from"));
  run.train(1, {"train.stop_at_step=3"});
  const Outcome again = run_program(1, {"train", run.folder() + "/config.yaml", "train.init_from=" + run.run(),
                                        "train.run_dir=" + run.folder() + "/next"});
  EXPECT_EQ(again.exit_code, 2) << again.output;
  EXPECT_THAT(again.output, HasSubstr("has adapters"));
}

TEST(AdapterRun, AnotherRunContinuesItsCheckpoint) {
  const AdapterRun run("adapters_continued");
  run.train(1, {"train.stop_at_step=3"});
  const std::string next = run.folder() + "/next";
  run.train(1, {"checkpoint.resume=" + run.run() + "/checkpoints/step-00000003", "train.run_dir=" + next});
  EXPECT_EQ(read_file(next + "/base.safetensors"), read_file(run.run() + "/base.safetensors"));
}

std::string continuation(const std::string& model, const std::string& text) {
  return run_well(
      {"generate", model, "precision.compute=fp32", "--prompt", text, "--tokens", "8", "--temperature", "0"});
}

class Exports : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, Exports, ::testing::Values("llama3", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Exports, MergedAndForPeft) {
  const AdapterRun run(std::string("adapters_exports_") + GetParam(), GetParam());
  run.train(1);
  run_well({"export", run.run(), "--out", run.folder() + "/merged"});
  const StoredTensors merged = open_safetensors_folder(run.folder() + "/merged"),
                      original = open_safetensors_folder(hf_folder(GetParam()));
  EXPECT_EQ(merged.tensors.size(), original.tensors.size());
  int changed = 0;
  for (const auto& [name, tensor] : original.tensors) {
    const StoredTensor& now = merged.tensors.at(name);
    EXPECT_EQ(now.shape, tensor.shape);
    const bool is_same = std::ranges::equal(now.bytes, tensor.bytes);
    changed += !is_same;
    if (name.find("norm") != name.npos || name.find("embed") != name.npos || name.find("o_proj") != name.npos) {
      EXPECT_TRUE(is_same) << name;
    }
  }
  EXPECT_GT(changed, 0);
  EXPECT_EQ(continuation(run.run(), "1 2 3"), continuation(run.folder() + "/merged", "1 2 3"));
  run_well({"export", run.run(), "--format", "peft", "--out", run.folder() + "/peft"});
  const auto config = nlohmann::json::parse(read_file(run.folder() + "/peft/adapter_config.json"));
  EXPECT_EQ(config.at("r"), 3);
  EXPECT_EQ(config.at("lora_alpha"), 6);
  EXPECT_EQ(config.at("base_model_name_or_path"), hf_folder(GetParam()));
  const SafetensorsReader adapters(run.folder() + "/peft/adapter_model.safetensors");
  const bool is_gpt2 = std::string(GetParam()) == "gpt2";
  const std::string layer = is_gpt2 ? "transformer.h.0.attn.c_attn" : "model.layers.0.self_attn.q_proj";
  EXPECT_EQ(adapters.at("base_model.model." + layer + ".lora_A.weight").shape[0], is_gpt2 ? 6 : 3);
  if (is_gpt2) {
    EXPECT_EQ(config.at("rank_pattern").at(layer), 6);  // q and v share a matrix there
  }
  const Outcome none =
      run_program(0, {"export", hf_folder(GetParam()), "--format", "peft", "--out", run.folder() + "/x"});
  EXPECT_EQ(none.exit_code, 2) << none.output;
  EXPECT_THAT(none.output, HasSubstr("has no adapters"));
}

TEST(AdapterRun, TakesTheMemoryThatWasPredicted) {
  const AdapterRun run("adapters_memory");
  run.train(2);
  std::istringstream lines(read_file(run.run() + "/metrics.jsonl"));
  nlohmann::json memory;
  for (std::string line; std::getline(lines, line);) {
    if (nlohmann::json record = nlohmann::json::parse(line); record.value("event", "") == "memory") memory = record;
  }
  ASSERT_FALSE(memory.empty());
  EXPECT_EQ(memory.at("predicted"), memory.at("measured"));
  // Frozen weights have neither gradient nor state.
  EXPECT_LT(memory.at("measured").at("gradients").get<double>(), memory.at("measured").at("weights").get<double>());
}

}  // namespace
}  // namespace adapters_test
}  // namespace mantissa::testing
