// `mantissa import` and `mantissa export`, and trainings from imported weights, as a user runs them.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/program/program.h"
#include "tests/tools/model/hf_reference.h"
#include "tools/model/exchange/families.h"

namespace mantissa::testing {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;

std::string run_well(const std::vector<std::string>& arguments) {
  const Outcome outcome = run_program(0, arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return outcome.output;
}

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path().string());
  }
  return files;
}

struct Bytes {
  std::string dtype, bytes;
  bool operator==(const Bytes&) const = default;
};

std::map<std::string, Bytes> tensors_of(const std::string& folder) {
  std::map<std::string, Bytes> result;
  for (const auto& [name, tensor] : open_safetensors_folder(folder).tensors) {
    result[name] = {tensor.dtype, {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()}};
  }
  return result;
}

class RoundTrip : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, RoundTrip, ::testing::ValuesIn(kHfModels),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(RoundTrip, KeepsEveryBit) {
  const std::string folder = fresh_folder(std::string("round_trip_") + GetParam()), original = hf_folder(GetParam());
  run_well({"import", original, "--out", folder + "/run"});
  run_well({"export", folder + "/run", "--out", folder + "/once"});
  run_well({"import", folder + "/once", "--out", folder + "/again"});
  run_well({"export", folder + "/again", "--out", folder + "/twice"});
  EXPECT_EQ(tensors_of(folder + "/once"), tensors_of(original));
  EXPECT_EQ(files_of(folder + "/once"), files_of(folder + "/twice"));
  EXPECT_TRUE(files_of(folder + "/once").contains("generation_config.json"));
  EXPECT_EQ(read_foreign_config(folder + "/once"), read_foreign_config(original));
  // Several files, each of one tensor.
  run_well({"export", folder + "/run", "--out", folder + "/sharded", "--max-shard-gb", "0"});
  EXPECT_EQ(tensors_of(folder + "/sharded"), tensors_of(original));
}

TEST(Import, WritesTheFolderWholeOrNotAtAll) {
  const std::string folder = fresh_folder("import_refused");
  const auto refused = [&](const std::vector<std::string>& arguments, int code) {
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    return outcome.output;
  };
  fs::copy(hf_folder("gpt2"), folder + "/damaged");
  fs::resize_file(folder + "/damaged/model.safetensors", 9000);
  EXPECT_THAT(refused({"import", folder + "/damaged", "--out", folder + "/run"}, 4), HasSubstr("model.safetensors"));
  EXPECT_THAT(refused({"import", folder, "--out", folder + "/run"}, 2), HasSubstr("is not a model of another program"));
  EXPECT_FALSE(fs::exists(folder + "/run"));
  EXPECT_FALSE(fs::exists(folder + "/run.mantissa-partial"));
  run_well({"import", hf_folder("gpt2"), "--out", folder + "/run"});
  EXPECT_THAT(refused({"import", hf_folder("gpt2"), "--out", folder + "/run"}, 2), HasSubstr("already exists"));
  EXPECT_THAT(refused({"export", folder + "/run", "--out", folder + "/run"}, 2), HasSubstr("already exists"));
  EXPECT_THAT(refused({"export", folder + "/run", "--out", folder + "/x", "--family", "llama"}, 2),
              HasSubstr("--family llama: the model does not fit: model.norm = layer_norm, "));
  EXPECT_THAT(refused({"export", folder + "/run", "--out", folder + "/x", "--family", "llama9"}, 2),
              HasSubstr("expected one of gpt2, llama, mistral, qwen2, qwen3, smollm3, arcee, got 'llama9'"));
  EXPECT_FALSE(fs::exists(folder + "/x"));
}

// A copy of the fixture llama2, which is in BF16, with an F32 tensor of these values in front.
void write_mixed(const std::string& folder, const std::string& changed, const std::vector<float>& values) {
  fs::copy(hf_folder("llama2"), folder);
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : open_safetensors_folder(hf_folder("llama2")).tensors) {
    const bool is_it = name == changed;
    const size_t begin = data.size();
    is_it ? data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))
          : data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    header[name] = {
        {"dtype", is_it ? "F32" : tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  const std::string length(reinterpret_cast<const char*>(&size), sizeof size);
  fs::remove(folder + "/model.safetensors");
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << length << text << data;
}

TEST(Export, KeepsTheDtypeOfEachTensorOfAnImportedModel) {
  const std::string folder = fresh_folder("mixed_dtypes"), mixed = folder + "/mixed";
  std::vector<float> norm(16, 1.0f);
  norm[3] = 1.0f + 0x1p-20f;
  norm[5] = 1e6f;
  write_mixed(mixed, "model.norm.weight", norm);
  run_well({"import", mixed, "--out", folder + "/run"});
  run_well({"export", folder + "/run", "--out", folder + "/again"});
  EXPECT_EQ(tensors_of(folder + "/again"), tensors_of(mixed));
  run_well({"export", folder + "/run", "--out", folder + "/bf16", "--dtype", "bf16"});
  EXPECT_EQ(tensors_of(folder + "/bf16").at("model.norm.weight").dtype, "BF16");
  const Outcome fp16 = run_program(0, {"export", folder + "/run", "--out", folder + "/fp16", "--dtype", "fp16"});
  EXPECT_EQ(fp16.exit_code, 2);
  EXPECT_THAT(fp16.output, HasSubstr("--dtype fp16: 1 value of 'final_norm.weight' would become infinite"));
  EXPECT_FALSE(fs::exists(folder + "/fp16"));
}

TEST(NotFinite, LogitsEndScoresAndTexts) {
  const std::string folder = fresh_folder("not_finite"), model = folder + "/model";
  write_mixed(model, "model.norm.weight", std::vector<float>(16, std::numeric_limits<float>::quiet_NaN()));
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& says) {
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(says));
  };
  write_file(folder + "/ids.txt", "3 2 5 7");
  //                                    bytes, index, label, choices, context, then two completions
  std::vector<uint16_t> task(512, 0);  // a header of 256 int32
  const std::vector<int32_t> header = {20240522, 1, 1};
  std::memcpy(task.data(), header.data(), header.size() * sizeof(int32_t));
  const std::vector<uint16_t> words = {65535, 28, 0, 1, 2, 2, 3, 5, 2, 1, 4, 2, 6, 7};
  task.insert(task.end(), words.begin(), words.end());
  write_file(folder + "/hellaswag_val.bin", {reinterpret_cast<const char*>(task.data()), task.size() * 2});
  refused({"evaluate", model, "--text", folder + "/ids.txt"}, folder + "/ids.txt: the loss of token 1 is not finite");
  refused({"score", model, folder + "/ids.txt"}, folder + "/ids.txt: the loss of token 1 is not finite");
  refused({"evaluate", model, "--tasks", folder + "/hellaswag_val.bin"},
          "hellaswag: the loss of question 1 is not finite");
  for (const char* const temperature : {"0", "0.8"}) {
    refused({"generate", model, "--prompt", "3 2 5", "--temperature", temperature},
            "prompt 1: after 3 tokens, the logits are not finite");
  }
}

// nlohmann::json has no such numbers. Python, which reads and writes them, knows defaults for the keys.
TEST(Export, LeavesOutNumbersThatJsonHasNot) {
  const std::string folder = fresh_folder("unusual_numbers"), model = folder + "/model", run = folder + "/run";
  fs::copy(hf_folder("llama3"), model);
  const std::string config = read_file(model + "/config.json");
  write_file(model + "/config.json",
             "{\"max_length\": 1e999, \"temperature\": NaN, \"top_k\": 7," + config.substr(config.find('{') + 1));
  run_well({"import", model, "--out", run});
  run_well({"export", run, "--out", folder + "/out"});
  const auto written = nlohmann::json::parse(read_file(folder + "/out/config.json"));
  EXPECT_FALSE(written.contains("max_length") || written.contains("temperature")) << written;
  EXPECT_EQ(written.at("top_k"), 7);
}

// A trained model, as llm.c reads it, and back.
TEST(Export, ModelsOfLlmC) {
  const SmallRun run("llmc");
  run.train(1, {"train.stop_at_step=2", "precision.compute=bf16"});
  const std::string folder = fresh_folder("llmc_models");
  for (const std::string dtype : {"fp32", "bf16"}) {
    const std::string file = folder + "/" + dtype + ".bin", back = folder + "/" + dtype;
    run_well({"export", run.run_dir(), "--out", file, "--format", "llmc", "--dtype", dtype});
    run_well({"export", run.run_dir(), "--out", back, "--dtype", dtype});
    run_well({"export", file, "--out", back + "_back"});
    EXPECT_EQ(tensors_of(back + "_back"), tensors_of(back));
    // The padding of the vocabulary, and the whole.
    const ModelSource source = std::move(*open_foreign_model(file));
    EXPECT_EQ(source.model().vocab, 256);
    const auto item = static_cast<uintmax_t>(dtype == "fp32" ? 4 : 2);
    EXPECT_EQ(fs::file_size(file), 1024 + item * static_cast<uintmax_t>(source.parameters().numel()));
  }
  // 40 tokens are padded to 128 rows.
  run_well({"import", hf_folder("gpt2"), "--out", folder + "/gpt2"});
  const Outcome other = run_program(0, {"export", folder + "/gpt2", "--out", folder + "/x.bin", "--format", "llmc"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.output, HasSubstr("model.mlp_width is in the way"));
  EXPECT_FALSE(fs::exists(folder + "/x.bin"));
}

// Token files for the fixtures' vocabulary.
std::string token_file(const std::string& folder) {
  std::string bytes;
  for (uint32_t i = 0; i < 4000; ++i) {
    bytes += static_cast<char>((i * i / 3 + 5 * i) % 40);
    bytes += '\0';
  }
  write_file(folder + "/tokens.bin", bytes);
  return folder + "/tokens.bin";
}

class FromWeights : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, FromWeights, ::testing::Values(1, 2, 3));

// The first loss is the loss of the weights, on any number of ranks. `export` writes the masters, from a shard file of
// each rank, and copies transformers' files.
TEST_P(FromWeights, TrainsAndExports) {
  const int ranks = GetParam();
  const std::string folder = fresh_folder("from_weights" + std::to_string(ranks));
  const std::string run = folder + "/run", data = "data.train=" + token_file(folder), base = folder + "/base";
  fs::copy(hf_folder("llama3"), base);
  write_file(folder + "/config.yaml", "model: {context: 16}\ndata: {format: tokens, layout: u16}\n");
  const std::vector<std::string> settings = {data,
                                             "train.init_from=" + base,
                                             "train.run_dir=" + run,
                                             "train.steps=4",
                                             "train.global_batch=6",
                                             "train.micro_batch=1",
                                             "train.eval_interval=0",
                                             "train.sample_tokens=0",
                                             "precision.compute=fp32",
                                             "optimizer.warmup_steps=0",
                                             "train.log_interval=1"};
  const Outcome trained =
      run_program(ranks, with({"train", folder + "/config.yaml"}, with(settings, {"train.stop_at_step=2"})));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("weights: those of " + base));
  EXPECT_THAT(read_file(run + "/metrics.jsonl"), HasSubstr("\"loss\":4."));
  run_well({"export", run, "--out", folder + "/hf"});
  const auto exported = tensors_of(folder + "/hf");
  const StoredTensors working = open_safetensors_folder(run + "/checkpoints/step-00000002");
  const StoredTensor& embedding = working.tensors.at("token_embedding.weight");
  EXPECT_EQ(exported.at("model.embed_tokens.weight"),
            (Bytes{"F32", {reinterpret_cast<const char*>(embedding.bytes.data()), embedding.bytes.size()}}));
  EXPECT_EQ(exported.size(), tensors_of(hf_folder("llama3")).size());
  EXPECT_NE(exported, tensors_of(hf_folder("llama3")));
  EXPECT_EQ(files_of(folder + "/hf").at("generation_config.json"),
            read_file(hf_folder("llama3") + "/generation_config.json"));
  // Short sequences take no positions away: 16 tokens in training, 64 of the model.
  EXPECT_EQ(nlohmann::json::parse(files_of(folder + "/hf").at("config.json")).at("max_position_embeddings"), 64);
  std::string ids;
  for (int i = 0; i < 130; ++i) ids += std::to_string(i % 40) + " ";
  write_file(folder + "/ids.txt", ids);
  for (const std::string& model : {run, folder + "/hf"}) {
    EXPECT_THAT(run_well({"evaluate", model, "--text", folder + "/ids.txt"}), HasSubstr("windows of 64)"));
  }
  EXPECT_THAT(run_well({"evaluate", run, "model.context=8", "--text", folder + "/ids.txt"}),
              HasSubstr("windows of 8)"));
  // It resumes from its checkpoint, without the model that it started from.
  fs::remove_all(base);
  const Outcome resumed = run_program(ranks, {"train", run, "train.stop_at_step=4"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("resumed from"));
  // Other weights would not be read, and a PEFT export would name them.
  const std::string kept = read_file(run + "/config.yaml");
  for (const char* const steps : {"train.steps=4", "train.steps=5"}) {  // without a step left, and with one
    const Outcome other =
        run_program(ranks, {"train", run, steps, "train.stop_at_step=0", "checkpoint.allow_changes=true",
                            "train.init_from=" + hf_folder("llama3")});
    EXPECT_EQ(other.exit_code, 2) << other.output;
    EXPECT_THAT(other.output, HasSubstr("train.init_from = '" + hf_folder("llama3") + "' has no effect: "));
    EXPECT_THAT(other.output, HasSubstr("weights that began with '" + base + "'"));
  }
  EXPECT_EQ(read_file(run + "/config.yaml"), kept);
}

TEST(FromWeights, OfARunEqualThatRun) {
  const SmallRun run("weights_of_a_run");
  run.train(2, {"train.steps=5", "precision.compute=bf16"});
  const SmallRun next("weights_of_a_run_next");
  next.train(1, {"train.init_from=" + run.run_dir(), "train.stop_at_step=1", "optimizer.lr=1e-30"});
  const std::string folder = fresh_folder("weights_of_a_run_exports");
  for (const auto& [name, path] : {std::pair("a", run.run_dir()), {"b", next.run_dir()}}) {
    run_well({"export", path, "--out", folder + "/" + name, "--dtype", "fp32"});
  }
  EXPECT_EQ(tensors_of(folder + "/a"), tensors_of(folder + "/b"));
  next.train(1, {"train.init_from=" + run.folder() + "/./" + fs::path(run.run_dir()).filename().string(),
                 "train.stop_at_step=2", "optimizer.lr=1e-30"});  // spelled differently
}

TEST(FromWeights, ShorterSequencesThanThoseOfTheFirstRunKeepItsPositions) {
  const std::vector<std::string> llama = {"model.norm=rms_norm", "model.activation=swiglu", "model.position=rope",
                                          "model.bias=false", "train.stop_at_step=1"};
  const SmallRun run("positions"), next("positions_next"), last("positions_last");
  run.train(1, llama);
  next.train(1, with(llama, {"train.init_from=" + run.run_dir(), "model.context=16"}));
  last.train(1, with(llama, {"train.init_from=" + next.run_dir(), "model.context=8"}));
  const std::string folder = fresh_folder("positions_exports");
  const auto positions = [&](const std::string& name, const std::vector<std::string>& options) {
    run_well(with({"export", last.run_dir(), "--out", folder + "/" + name}, options));
    return nlohmann::json::parse(read_file(folder + "/" + name + "/config.json")).at("max_position_embeddings");
  };
  EXPECT_EQ(positions("own", {}), 32);
  EXPECT_EQ(positions("given", {"--max-positions", "20"}), 20);
  const Outcome refused =
      run_program(0, {"export", hf_folder("gpt2"), "--out", folder + "/x", "--max-positions", "20"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("--max-positions: expected a model with RoPE"));
}

// RoPE computes any position.
TEST(FromWeights, MorePositionsThanTheModelHasLearnedAreAWarning) {
  const std::string folder = fresh_folder("beyond"), model = hf_folder("llama3"), text = folder + "/ids.txt";
  write_file(text, "3 2 5 7 1");
  run_well({"import", model, "--out", folder + "/run"});
  for (const std::string& path : {model, folder + "/run"}) {
    const auto evaluated = [&](const std::vector<std::string>& more) {
      return run_well(with({"evaluate", path, "--text", text}, more));
    };
    const auto generated = [&](const std::string& setting) {
      return run_well({"generate", path, setting, "--prompt", "3 2", "--tokens", "1"});
    };
    EXPECT_THAT(evaluated({"--context", "65"}), HasSubstr("--context = 65: the model has learned 64 positions"));
    EXPECT_THAT(evaluated({"--context", "64"}), Not(HasSubstr("positions")));
    EXPECT_THAT(evaluated({"model.context=8", "--context", "20"}), Not(HasSubstr("positions")));
    EXPECT_THAT(generated("model.context=65"), HasSubstr("model.context = 65: the model has learned 64 positions"));
    EXPECT_THAT(generated("model.context=8"), Not(HasSubstr("positions")));
  }
}

TEST(FromWeights, ACheckpointWithoutItsRunIsAWarning) {
  const SmallRun run("copied_checkpoint"), next("from_copied_checkpoint");
  run.train(1, {"train.steps=6"});
  const std::string folder = fresh_folder("lone_checkpoints"), lone = folder + "/alone/step";
  fs::create_directories(folder + "/alone");
  fs::copy(run.checkpoint_folder(6), lone);
  const std::string warning = lone + ": the folder of its run, with tokenizer";
  EXPECT_THAT(run_well({"export", lone, "--out", folder + "/a"}), HasSubstr(warning));
  EXPECT_THAT(run_well({"generate", lone, "--prompt", "a", "--tokens", "1"}), HasSubstr(warning));
  EXPECT_THAT(next.train(1, {"train.init_from=" + lone, "train.steps=6"}).output, HasSubstr(warning));
  for (const std::string& whole : {run.run_dir(), run.checkpoint_folder(6), run.checkpoint_folder(6) + "/"}) {
    EXPECT_THAT(run_well({"generate", whole, "--prompt", "a", "--tokens", "1"}), Not(HasSubstr("warning"))) << whole;
  }
}

TEST(FromWeights, RefusesAnotherModelAndWhatHoldsNone) {
  const SmallRun run("weights_refused");
  const Outcome other = run.try_train(1, {"train.init_from=" + hf_folder("gpt2")});
  EXPECT_EQ(other.exit_code, 2) << other.output;
  EXPECT_THAT(other.output, HasSubstr("model.width: 32, and there 16"));
  const Outcome none = run.try_train(1, {"train.init_from=" + run.folder()});
  EXPECT_EQ(none.exit_code, 4) << none.output;
  EXPECT_THAT(none.output, HasSubstr("holds no checkpoint"));
  const Outcome nothing = run.try_train(1, {"train.init_from=nowhere"});
  EXPECT_EQ(nothing.exit_code, 2) << nothing.output;
  EXPECT_THAT(nothing.output, HasSubstr("'nowhere' holds no weights"));
  EXPECT_FALSE(fs::exists(run.run_dir()));
  // Nor is the folder of another program's model, for which `generate` would answer.
  const std::string model = fresh_folder("model_trained_into");
  fs::copy(hf_folder("llama3"), model);
  const auto before = files_of(model);
  const Outcome into = run.try_train(1, {"train.run_dir=" + model});
  EXPECT_EQ(into.exit_code, 2) << into.output;
  EXPECT_THAT(into.output, HasSubstr("train.run_dir: '" + model + "' holds another program's model"));
  EXPECT_EQ(files_of(model), before);
  // A run folder of weights alone is no place to train in.
  const std::string folder = fresh_folder("weights_alone");
  run_well({"import", hf_folder("llama3"), "--out", folder + "/run"});
  const Outcome inside = run_program(1, {"train", folder + "/run", "data.train=" + token_file(folder),
                                         "data.layout=u16", "train.run_dir=" + folder + "/run"});
  EXPECT_EQ(inside.exit_code, 4) << inside.output;
  EXPECT_THAT(inside.output, HasSubstr("holds weights and no state of a training"));
}

}  // namespace
}  // namespace mantissa::testing
