// Damaged or unfit models are refused with all their errors, and never end the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/tensor/philox.h"
#include "tests/core/data/shard_file.h"
#include "tests/core/io/temp_folder.h"
#include "tests/testing/error_of.h"
#include "tests/tools/model/hf_reference.h"
#include "tools/model/exchange/families.h"
#include "tools/model/exchange/llmc_file.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

using testing::error_of;
using ::testing::HasSubstr;
using testing::hf_folder;
using testing::read_file;
using testing::TempFolder;

// A copy of a fixture.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    for (const auto& entry : fs::directory_iterator(hf_folder(name))) {
      if (entry.path().filename() != "reference.safetensors") {
        folder_.write(entry.path().filename().string(), read_file(entry.path().string()));
      }
    }
  }
  const std::string& path() const { return folder_.path(); }
  std::string file(const std::string& name) const { return folder_.file(name); }
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }
  // Changes members of config.json; null removes one.
  void set(const nlohmann::json& changes) const {
    nlohmann::json config = nlohmann::json::parse(read_file(file("config.json")));
    for (const auto& [key, value] : changes.items()) {
      config[key] = value;
      if (value.is_null()) config.erase(key);
    }
    write("config.json", config.dump());
  }
  // Replaces a text in the header of model.safetensors by one of the same length.
  void replace_in_header(const std::string& from, const std::string& to) const {
    std::string bytes = read_file(file("model.safetensors"));
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    ASSERT_EQ(from.size(), to.size());
    write("model.safetensors", bytes.replace(at, from.size(), to));
  }
  std::string error() const {
    return error_of([this] { open_foreign_model(path()); });
  }

 private:
  TempFolder folder_;
};

TEST(BadModel, NamesEveryTensorThatIsMissingSurplusOrOfAnotherShape) {
  const Copy copy("qwen3");
  copy.replace_in_header("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.upproj2.weight");
  copy.set({{"vocab_size", 41}});
  const std::string error = copy.error();
  EXPECT_THAT(error, HasSubstr("missing: model.layers.0.mlp.up_proj.weight (24, 16)"));
  EXPECT_THAT(error, HasSubstr("not of this model: model.layers.0.mlp.upproj2.weight (24, 16)"));
  EXPECT_THAT(error, HasSubstr("model.embed_tokens.weight: expected the shape (41, 16), got (40, 16)"));
}

TEST(BadModel, NamesEveryKeyThatDoesNotFit) {
  const Copy copy("llama2");
  copy.set({{"hidden_act", "gelu"},
            {"num_attention_heads", nullptr},
            {"intermediate_size", "24"},
            {"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}, {"attention_factor", 2.0}}},
            {"quantization_config", {{"quant_method", "gptq"}}}});
  const std::string error = copy.error();
  EXPECT_THAT(error, HasSubstr("hidden_act = \"gelu\": expected silu"));
  EXPECT_THAT(error, HasSubstr("num_attention_heads is missing"));
  EXPECT_THAT(error, HasSubstr("intermediate_size = \"24\": expected a whole number"));
  EXPECT_THAT(error, HasSubstr("rope_parameters.rope_type = \"yarn\": supported are default, linear and llama3"));
  EXPECT_THAT(error, HasSubstr("rope_parameters.attention_factor = 2.0: not known"));
  EXPECT_THAT(error, HasSubstr("weights in '\"gptq\"' are not read"));
}

TEST(BadModel, SaysWhichOfTwoKeysContradict) {
  const Copy llama("llama2"), mistral("mistral");
  llama.set({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
             {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}});
  EXPECT_THAT(llama.error(), HasSubstr("rope_scaling = {\"factor\":2.0,\"type\":\"linear\"}: rope_parameters says"));
  llama.set({{"rope_parameters", nullptr}, {"rope_scaling", {{"type", "yarn"}}}});
  EXPECT_THAT(llama.error(), HasSubstr("rope_scaling.type = \"yarn\": supported are"));
  mistral.set({{"layer_types", {"full_attention", "sliding_attention"}}});
  EXPECT_THAT(mistral.error(), HasSubstr("layer_types = [\"full_attention\",\"sliding_attention\"]: with them"));
}

TEST(BadModel, NumbersThatNoModelCanHave) {
  const Copy copy("llama3");
  copy.set({{"rms_norm_eps", -1.0},
            {"initializer_range", -0.02},
            {"rope_theta", 0.0},
            {"rope_scaling", {{"type", "llama3"}, {"factor", 0.0}, {"low_freq_factor", 4.0}}}});
  const std::string error = copy.error();
  EXPECT_THAT(error, HasSubstr("rms_norm_eps = -1.0: expected a number above 0"));
  EXPECT_THAT(error, HasSubstr("initializer_range = -0.02: expected a number above 0"));
  EXPECT_THAT(error, HasSubstr("rope_theta = 0.0: expected a number above 0"));
  EXPECT_THAT(error, HasSubstr("rope_scaling.factor = 0.0: expected a number above 0"));
  EXPECT_THAT(error, HasSubstr("rope_scaling.low_freq_factor = 4.0: expected less than high_freq_factor"));
}

// nlohmann::json has none of these.
TEST(BadModel, NumbersThatJsonHasNot) {
  const Copy copy("llama3");
  copy.set({{"rms_norm_eps", "?"}});
  const std::string config = read_file(copy.file("config.json"));
  const size_t at = config.find("\"?\"");
  copy.write("config.json", config.substr(0, at) + "NaN" + config.substr(at + 3));
  EXPECT_THAT(copy.error(),
              HasSubstr("rms_norm_eps = {} or a number that JSON has not (NaN, Infinity, 1e999): expected a number"));
}

// As transformers reads them.
TEST(BadModel, KeysThatAnotherFamilyWouldRead) {
  const Copy mistral("mistral"), llama("llama3");
  const ModelConfig before = read_foreign_config(mistral.path());
  mistral.set({{"use_sliding_window", false}});
  EXPECT_GT(before.window, 0);
  EXPECT_EQ(read_foreign_config(mistral.path()).window, before.window);
  llama.set({{"original_max_position_embeddings", 5}});
  EXPECT_EQ(read_foreign_config(llama.path()).rope.original_context, 5);
}

TEST(BadModel, ATiedHeadThatDiffers) {
  const Copy copy("llama2");
  copy.set({{"tie_word_embeddings", true}});
  EXPECT_THAT(copy.error(),
              HasSubstr("lm_head.weight is not equal to model.embed_tokens.weight, but config.json ties"));
  std::string bytes = read_file(copy.file("model.safetensors"));
  const auto header_size = static_cast<size_t>(bytes[0]) % 256 + static_cast<size_t>(bytes[1]) % 256 * 256;
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, header_size));
  const auto place = [&](const char* tensor) {
    const std::vector<size_t> offsets = header[tensor]["data_offsets"];
    return std::pair(8 + header_size + offsets[0], offsets[1] - offsets[0]);
  };
  const auto [table, size] = place("model.embed_tokens.weight");
  bytes.replace(place("lm_head.weight").first, size, bytes.substr(table, size));
  copy.write("model.safetensors", bytes);
  EXPECT_EQ(copy.error(), "");
}

TEST(BadModel, NamesTheArchitecturesThatAreSupported) {
  const Copy copy("llama2");
  copy.set({{"model_type", "mamba2"}});
  EXPECT_THAT(copy.error(),
              HasSubstr("expected one of gpt2, llama, mistral, qwen2, qwen3, smollm3, arcee, got 'mamba2'"));
  copy.write("config.json", "{\"model_type\": ");
  EXPECT_THAT(copy.error(), HasSubstr("config.json: not valid JSON"));
}

TEST(BadModel, WeightsThatAreAbsentPickledOrOfNoNumbers) {
  const Copy copy("llama2");
  copy.replace_in_header("\"BF16\",\"shape\":[16]", "\"I16\", \"shape\":[16]");
  EXPECT_THAT(copy.error(), HasSubstr("expected F32, BF16, F16 or F64, got I16"));
  fs::remove(copy.file("model.safetensors"));
  EXPECT_THAT(copy.error(), HasSubstr("expected model.safetensors or model.safetensors.index.json"));
  copy.write("pytorch_model.bin", "");
  EXPECT_THAT(copy.error(), HasSubstr("pickled weights (pytorch_model.bin) are not read"));
}

TEST(BadModel, IndexOfSeveralFiles) {
  const Copy copy("mistral");
  EXPECT_EQ(copy.error(), "");
  const std::string index = read_file(copy.file("model.safetensors.index.json"));
  nlohmann::json changed = nlohmann::json::parse(index);
  const std::string place = changed["weight_map"]["model.norm.weight"];
  changed["weight_map"]["model.norm.weight"] = "model-00001-of-00004.safetensors";
  changed["weight_map"]["model.more"] = "model-00002-of-00004.safetensors";
  copy.write("model.safetensors.index.json", changed.dump());
  EXPECT_THAT(copy.error(), HasSubstr(place + " holds 'model.norm.weight', which the index does not place there"));
  EXPECT_THAT(copy.error(), HasSubstr("model-00002-of-00004.safetensors lacks 'model.more'"));
  changed["weight_map"]["model.more"] = "../model.safetensors";
  copy.write("model.safetensors.index.json", changed.dump());
  EXPECT_THAT(copy.error(), HasSubstr("expected the name of a file in this folder"));
  copy.write("model.safetensors.index.json", "[]");
  EXPECT_THAT(copy.error(), HasSubstr("expected an object, got an array"));
  copy.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(copy.error(), HasSubstr("expected an object 'weight_map'"));
  copy.write("model.safetensors.index.json", index);
  fs::remove(copy.file("model-00002-of-00004.safetensors"));
  fs::remove(copy.file("model-00003-of-00004.safetensors"));
  EXPECT_THAT(copy.error(), HasSubstr("not there: model-00002-of-00004.safetensors, model-00003-of-00004.safetensors"));
}

// transformers looks for model.safetensors first.
TEST(BadModel, ShardsBesideASingleFileAreComparedAndNotRead) {
  const Copy copy("llama2");
  const auto warning_of_opening = [&copy] {
    ::testing::internal::CaptureStdout();
    const auto source = open_foreign_model(copy.path());
    EXPECT_EQ(source->values("final_norm.weight"),
              open_foreign_model(hf_folder("llama2"))->values("final_norm.weight"));
    return ::testing::internal::GetCapturedStdout();
  };
  std::string bytes = read_file(copy.file("model.safetensors"));
  nlohmann::json index;
  for (const auto& [name, tensor] : open_safetensors_folder(copy.path()).tensors) {
    index["weight_map"][name] = "model-00001-of-00001.safetensors";
  }
  copy.write("model-00001-of-00001.safetensors", bytes);
  copy.write("model.safetensors.index.json", index.dump());
  EXPECT_EQ(warning_of_opening(), "");
  bytes.back() ^= 1;
  copy.write("model-00001-of-00001.safetensors", bytes);
  const std::string warning = warning_of_opening();
  EXPECT_THAT(warning, HasSubstr("model.safetensors is read, as in transformers"));
  EXPECT_THAT(warning, HasSubstr("differs;"));
  fs::remove(copy.file("model-00001-of-00001.safetensors"));
  EXPECT_THAT(warning_of_opening(), HasSubstr("model-00001-of-00001.safetensors;"));
}

// transformers adds it to the model.
TEST(BadModel, AnAdapterBesideTheWeightsIsAWarning) {
  const Copy copy("llama2");
  const auto warning_of_opening = [&copy] {
    ::testing::internal::CaptureStdout();
    open_foreign_model(copy.path());
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(warning_of_opening(), "");
  copy.write("adapter_config.json", "{}");
  EXPECT_THAT(warning_of_opening(), HasSubstr(copy.path() + ": its adapter, which transformers adds, is not read"));
}

TEST(BadModel, ModelsOfLlmC) {
  const TempFolder folder;
  std::vector<int32_t> header(256);
  const auto error_with = [&](std::vector<int32_t> first, size_t bytes) {
    std::copy(first.begin(), first.end(), header.begin());
    std::string text(reinterpret_cast<const char*>(header.data()), 1024);
    text.resize(bytes);
    return error_of([&] { open_foreign_model(folder.write("model.bin", text)); });
  };
  EXPECT_THAT(error_with({20240326, 4}, 1024), HasSubstr("version 3 (fp32) or 5 (bf16), got version 4"));
  EXPECT_THAT(error_with({20240326, 3, 8, 40, 0, 2, 16, 128}, 1024), HasSubstr("entry 4 of its header is damaged"));
  EXPECT_THAT(error_with({20240326, 3, 8, 40, 1, 3, 16, 128}, 1024), HasSubstr("describes no model"));
  EXPECT_THAT(error_with({20240326, 3, 8, 40, 1, 2, 16, 128}, 5000), HasSubstr("bytes by its header, got 5000"));
  error_with({20240803, 3, 64, 40, 2, 4, 2, 16}, 5000);  // its Llama 3
  EXPECT_FALSE(is_foreign_model(folder.file("model.bin")));
}

// Whatever a byte of a file says, the model is read or refused.
TEST(BadModel, FlippedBytes) {
  const Copy copy("llama3"), sharded("mistral");
  int refused = 0;
  const auto damage = [&refused](const Copy& model, const std::string& name, size_t most, uint32_t stream) {
    const std::string good = read_file(model.file(name));
    for (uint32_t trial = 0; trial < 1000; ++trial) {
      std::string bytes = good;
      const PhiloxCounter draw = philox(11, {trial, stream, 0, 0});
      const size_t at = draw[0] % std::min(most, bytes.size());
      if (draw[1] % 4 == 0) {
        bytes.resize(at);
      } else {
        bytes[at] = static_cast<char>(draw[1] % 4 == 1 ? draw[2] % 128 : bytes[at] ^ (1 << draw[2] % 8));
      }
      model.write(name, bytes);
      refused += !model.error().empty();
    }
    model.write(name, good);
    EXPECT_EQ(model.error(), "");
  };
  damage(copy, "config.json", 1 << 20, 1);
  damage(copy, "model.safetensors", 3000, 2);
  damage(sharded, "model.safetensors.index.json", 1 << 20, 3);
  EXPECT_GT(refused, 1500);
}

// Bytes of the header. Weights may be any numbers.
TEST(BadModel, FlippedBytesOfLlmC) {
  const TempFolder folder;
  ModelConfig model;
  model.vocab = 40;
  model.context = 16;
  model.width = 16;
  model.heads = 2;
  model.layers = 2;
  testing::TextSink sink;
  write_llmc_model(
      model, DType::kF32,
      [](const Parameter& parameter) { return std::vector<std::byte>(static_cast<size_t>(parameter.numel()) * 4); },
      sink);
  int refused = 0;
  for (uint32_t trial = 0; trial < 1000; ++trial) {
    std::string bytes = sink.text;
    const PhiloxCounter draw = philox(12, {trial, 0, 0, 0});
    if (draw[1] % 8 == 0) {
      bytes.resize(draw[2] % bytes.size());
    } else {
      bytes[draw[0] % 32] ^= static_cast<char>(1 << draw[2] % 8);
    }
    const std::string path = folder.write("model.bin", bytes);
    refused += error_of([&] { open_foreign_model(path); }).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 300);
  EXPECT_EQ(error_of([&] { open_foreign_model(folder.write("model.bin", sink.text)); }), "");
}

}  // namespace
}  // namespace mantissa
