#include "tools/model/exchange/model_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/progress_bar.h"
#include "core/base/wrapped_text.h"
#include "core/io/json_node.h"
#include "models/model.h"
#include "tools/config/data_paths.h"
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
  // transformers, too, leaves these aside: masks, rotation frequencies, and the head of a model that ties it.
  std::erase_if(tensors.tensors, [&model](const auto& tensor) {
    const std::string& name = tensor.first;
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name.ends_with(".rotary_emb.inv_freq") || (model.tie_head && name == "lm_head.weight");
  });
  return std::make_unique<ModelSource>(folder, model, std::move(tensors),
                                       [&](const Parameter& parameter) { return hf_parts(family, model, parameter); });
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

}  // namespace

ParameterParts own_part(const Parameter& parameter) { return {.parts = {{parameter.name, parameter.shape.extents()}}}; }

ModelSource::ModelSource(std::string path, ModelConfig model, StoredTensors tensors,
                         const std::function<ParameterParts(const Parameter&)>& parts_of)
    : path_(std::move(path)), model_(std::move(model)), tensors_(std::move(tensors)) {
  create_model(model_, parameters_);
  std::vector<std::string> problems;
  std::set<std::string> needed;
  for (int i = 0; i < parameters_.size(); ++i) {
    const ParameterParts& parts = parts_[parameters_[i].name] = parts_of(parameters_[i]);
    for (const auto& [name, shape] : parts.parts) {
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
  if (!is_llmc_model(path)) return open_hf_folder(path);
  const ModelConfig model = read_llmc_config(path);
  return std::make_unique<ModelSource>(path, model, open_llmc_model(path));
}

CheckpointFile write_weights_file(const ModelSource& source, const std::string& folder, const std::string& name) {
  std::vector<SafetensorsEntry> entries;
  const ParameterSet& parameters = source.parameters();
  for (int i = 0; i < parameters.size(); ++i) {
    entries.push_back({.name = parameters[i].name,
                       .dtype = std::string(safetensors_name(source.dtype(parameters[i].name))),
                       .shape = parameters[i].shape.extents()});
  }
  CheckpointFileWriter file(folder, name);
  SafetensorsWriter writer(file, std::move(entries));
  uint64_t total = 0, done = 0;
  for (const SafetensorsEntry& entry : writer.order()) total += entry.size_bytes();
  constexpr uint64_t kMegabyte = 1'000'000;
  ProgressBar progress("weights: MB", static_cast<int64_t>(total / kMegabyte));
  for (const SafetensorsEntry& entry : writer.order()) {
    std::vector<std::byte> bytes(entry.size_bytes());
    source.read(entry.name, source.dtype(entry.name), bytes);
    writer.append(entry.name, bytes);
    done += bytes.size();
    progress.reach(static_cast<int64_t>(done / kMegabyte));
  }
  writer.finish();
  return file.close();
}

std::unique_ptr<ModelSource> open_weights_file(const std::string& path, const ModelConfig& model) {
  StoredTensors tensors;
  tensors.add(std::make_shared<const SafetensorsReader>(path));
  return std::make_unique<ModelSource>(path, model, std::move(tensors));
}

}  // namespace mantissa
