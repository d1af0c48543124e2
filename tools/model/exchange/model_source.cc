#include "tools/model/exchange/model_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/io/json_node.h"
#include "models/model.h"
#include "tools/config/data_paths.h"
#include "tools/model/exchange/hf_config.h"
#include "tools/model/exchange/hf_names.h"
#include "tools/model/exchange/llmc_file.h"

namespace mantissa {
namespace {

constexpr const char* kConfigFile = "config.json";

// Files of base models lack the prefix of the tensors.
void add_prefix(StoredTensors& tensors, const ModelFamily& family) {
  const std::string prefix = family.style == FamilyStyle::kGpt2 ? "transformer." : "model.";
  const bool has_prefix =
      std::ranges::any_of(tensors.tensors, [&prefix](const auto& tensor) { return tensor.first.starts_with(prefix); });
  if (has_prefix) return;
  std::map<std::string, StoredTensor> renamed;
  for (auto& [name, tensor] : tensors.tensors) {
    renamed.emplace(name.starts_with("lm_head.") ? name : prefix + name, std::move(tensor));
  }
  tensors.tensors = std::move(renamed);
}

// A file may hold the tied head as well. transformers unties a head that differs.
void require_tied_head(const StoredTensors& tensors, const ModelFamily& family, const std::string& folder) {
  const std::string embedding =
      family.style == FamilyStyle::kGpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
  const auto head = tensors.tensors.find("lm_head.weight"), table = tensors.tensors.find(embedding);
  if (head == tensors.tensors.end() || table == tensors.tensors.end()) return;
  if (head->second.dtype == table->second.dtype && std::ranges::equal(head->second.bytes, table->second.bytes)) return;
  throw CheckpointError(
      fmt::format("{}: lm_head.weight is not equal to {}, but config.json ties the two; expected equal tensors, or "
                  "\"tie_word_embeddings\": false",
                  folder, embedding));
}

std::unique_ptr<ModelSource> open_hf_folder(const std::string& folder) {
  const std::string file = folder + "/" + kConfigFile;
  const nlohmann::json config = read_json_object<ConfigError>(file);
  const ModelFamily& family = family_of(config, file);
  std::vector<std::string> ignored;
  const ModelConfig model = read_hf_config(config, file, &ignored);
  if (!ignored.empty()) {
    log_warn("{}", wrapped(fmt::format("{}: not understood, and so without effect: {}", file, fmt::join(ignored, ", ")),
                           std::string_view("warning: ").size(), Paths::kPassOver));
  }
  StoredTensors tensors = open_safetensors_folder(folder);
  add_prefix(tensors, family);
  if (model.tie_head) require_tied_head(tensors, family, folder);
  std::erase_if(tensors.tensors, [&model](const auto& tensor) { return is_without_use(model, tensor.first); });
  ParameterSet parameters;
  create_model(model, parameters);
  std::map<std::string, ParameterParts> parts;
  for (int i = 0; i < parameters.size(); ++i) {
    parts.emplace(parameters[i].name, hf_parts(family, model, parameters[i]));
  }
  return std::make_unique<ModelSource>(folder, model, std::move(tensors), std::move(parts));
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

}  // namespace

ModelSource::ModelSource(std::string path, ModelConfig model, StoredTensors tensors,
                         std::map<std::string, ParameterParts> parts)
    : path_(std::move(path)), model_(std::move(model)), tensors_(std::move(tensors)), parts_(std::move(parts)) {
  create_model(model_, parameters_);
  std::vector<std::string> problems;
  std::set<std::string> needed;
  for (int i = 0; i < parameters_.size(); ++i) {
    for (const auto& [name, shape, interleaved] : parts_.at(parameters_[i].name).parts) {
      needed.insert(name);
      const auto found = tensors_.tensors.find(name);
      if (found == tensors_.tensors.end()) {
        problems.push_back(fmt::format("missing: {} {}", name, shape_text(shape)));
        continue;
      }
      const StoredTensor& tensor = found->second;
      if (tensor.shape != shape) {
        problems.push_back(
            fmt::format("{}: expected the shape {}, got {}", name, shape_text(shape), shape_text(tensor.shape)));
      }
      const auto dtype = parse_safetensors_dtype(tensor.dtype);
      if (!dtype || !is_floating(*dtype)) {
        problems.push_back(fmt::format("{}: expected F32, BF16, F16 or F64, got {}", name, tensor.dtype));
      }
    }
  }
  for (const auto& [name, tensor] : tensors_.tensors) {
    if (!needed.contains(name))
      problems.push_back(fmt::format("not of this model: {} {}", name, shape_text(tensor.shape)));
  }
  if (problems.empty()) return;
  constexpr size_t kMost = 40;
  const size_t more = problems.size() > kMost ? problems.size() - kMost : 0;
  problems.resize(problems.size() - more);
  throw CheckpointError(fmt::format("{}: its tensors are not those of the model that it describes:\n  {}{}", path_,
                                    fmt::join(problems, "\n  "), more > 0 ? fmt::format("\n  and {} more", more) : ""));
}

DType ModelSource::dtype(const std::string& parameter) const { return dtype_of_parts(tensors_, parts_.at(parameter)); }

void ModelSource::read(const std::string& parameter, DType dtype, std::span<std::byte> out) const {
  read_parts(tensors_, parts_.at(parameter), dtype, out);
}

std::vector<float> ModelSource::values(const std::string& parameter) const {
  std::vector<float> values(static_cast<size_t>(parameters_.find(parameter)->numel()));
  read(parameter, DType::kF32, std::as_writable_bytes(std::span(values)));
  return values;
}

bool is_foreign_model(const std::string& path) {
  std::error_code error;  // then it is none
  return std::filesystem::exists(path + "/" + kConfigFile, error) || is_llmc_model(path);
}

ModelConfig read_foreign_config(const std::string& path) {
  if (is_llmc_model(path)) return read_llmc_config(path);
  const std::string file = path + "/" + kConfigFile;
  return read_hf_config(read_json_object<ConfigError>(file), file);
}

namespace {

[[maybe_unused]] const bool kRegistered = [] {
  read_foreign_settings = [](const std::string& path) {
    return is_foreign_model(path) ? std::optional(read_foreign_config(path)) : std::nullopt;
  };
  return true;
}();

}  // namespace

std::unique_ptr<ModelSource> open_foreign_model(const std::string& path) {
  if (is_llmc_model(path)) {
    LlmcModel file = open_llmc_model(path);
    return std::make_unique<ModelSource>(path, std::move(file.model), std::move(file.tensors), std::move(file.parts));
  }
  return open_hf_folder(path);
}

std::map<std::string, ParameterParts> own_parts(const ModelConfig& model) {
  ParameterSet parameters;
  create_model(model, parameters);
  std::map<std::string, ParameterParts> parts;
  for (int i = 0; i < parameters.size(); ++i) {
    parts[parameters[i].name].parts.push_back({parameters[i].name, parameters[i].shape.extents()});
  }
  return parts;
}

}  // namespace mantissa
