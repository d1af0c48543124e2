#include "tools/model/exchange/model_source.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/progress_bar.h"
#include "core/base/round_up.h"
#include "core/base/thread_team.h"
#include "core/io/files.h"
#include "core/io/json_node.h"
#include "models/model.h"
#include "tools/config/data_paths.h"
#include "tools/model/exchange/families.h"
#include "tools/model/exchange/llmc_file.h"
#include "tools/run/state/run_folder.h"

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
      "{}: lm_head.weight is not equal to {}, but config.json ties the two; expected equal tensors, or "
      "\"tie_word_embeddings\": false",
      folder, embedding);
}

std::unique_ptr<ModelSource> open_hf_folder(const std::string& folder) {
  const std::string file = folder + "/" + kConfigFile;
  const nlohmann::json config = read_json_object<ConfigError>(file);
  const ModelFamily& family = family_of(config, file);
  std::vector<std::string> ignored;
  const ModelConfig model = read_hf_config(config, file, &ignored);
  if (!ignored.empty()) {
    warn_in_lines(fmt::format("{}: not understood, and so without effect: {}", file, fmt::join(ignored, ", ")));
  }
  if (file_exists(folder + "/adapter_config.json")) {
    log_common_warning("{}: its adapter, which transformers adds, is not read; merge it by PEFT's merge_and_unload()",
                       folder);
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

using nlohmann::json;

constexpr const char *kSingleFile = "model.safetensors", *kIndexFile = "model.safetensors.index.json";

// File by tensor.
std::map<std::string, std::string> read_index(const std::string& path) {
  const json index = read_json_object<CheckpointError>(path);
  const auto map = index.find("weight_map");
  require<CheckpointError>(map != index.end() && map->is_object(), "{}: expected an object 'weight_map'", path);
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    const bool is_name = file.is_string() && !file.get<std::string>().empty() &&
                         file.get<std::string>().find('/') == std::string::npos && file != "..";
    require<CheckpointError>(is_name, "{}: '{}': expected the name of a file in this folder, got {}", path, name,
                             file.dump());
    files.emplace(name, file.get<std::string>());
  }
  return files;
}

// Elements [first, first + count) of `from`, in the dtype To.
template <typename To>
void convert(const StoredTensor& from, int64_t first, int64_t count, To* to) {
  const DType dtype = *parse_safetensors_dtype(from.dtype);
  dispatch_with_fp64(dtype, [&]<typename From>() {
    const std::byte* const source = from.bytes.data() + static_cast<size_t>(first) * sizeof(From);
    if constexpr (std::is_same_v<From, To>) {
      std::memcpy(to, source, static_cast<size_t>(count) * sizeof(To));
    } else {
      for (int64_t i = 0; i < count; ++i) {
        From value;
        std::memcpy(&value, source + static_cast<size_t>(i) * sizeof(From), sizeof(From));
        to[i] = from_float<To>(to_float(value));
      }
    }
  });
}

// (columns, rows) to (rows, columns), in blocks that fit into a core's cache.
template <typename To>
void transpose(const StoredTensor& from, int64_t rows, int64_t columns, To* to) {
  constexpr int64_t kBlock = 64;
  parallel_for(divide_up(columns, kBlock), [&](int64_t task) {
    const int64_t begin = task * kBlock, end = std::min(columns, begin + kBlock);
    std::vector<To> line(static_cast<size_t>(kBlock));
    for (int64_t first = 0; first < rows; first += kBlock) {
      const int64_t count = std::min(kBlock, rows - first);
      for (int64_t column = begin; column < end; ++column) {
        convert(from, column * rows + first, count, line.data());
        for (int64_t i = 0; i < count; ++i) to[(first + i) * columns + column] = line[static_cast<size_t>(i)];
      }
    }
  });
}

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
  throw CheckpointError("{}: its tensors are not those of the model that it describes:\n  {}{}", path_,
                        fmt::join(problems, "\n  "), more > 0 ? fmt::format("\n  and {} more", more) : "");
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

bool is_foreign_model(const std::string& path) { return file_exists(path + "/" + kConfigFile) || is_llmc_model(path); }

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

void StoredTensors::add(const std::shared_ptr<const SafetensorsReader>& reader) {
  readers.push_back(reader);
  for (const SafetensorsEntry& entry : reader->entries()) {
    const bool is_new =
        tensors.emplace(entry.name, StoredTensor{entry.dtype, entry.shape, reader->bytes(entry)}).second;
    require<CheckpointError>(is_new, "{}: '{}' is in another file of the model, too", reader->path(), entry.name);
  }
}

namespace {

// The tensors of the files that the index names.
StoredTensors open_shards(const std::string& folder) {
  StoredTensors result;
  const std::string index = folder + "/" + kIndexFile;
  const std::map<std::string, std::string> placed = read_index(index);
  std::set<std::string> files;
  for (const auto& [name, file] : placed) files.insert(file);
  std::vector<std::string> absent, problems;
  for (const std::string& file : files) {
    if (!file_exists(folder + "/" + file)) absent.push_back(file);
  }
  require<CheckpointError>(absent.empty(), "{}: it names files that are not there: {}", index, fmt::join(absent, ", "));
  for (const std::string& file : files) {
    result.add(std::make_shared<const SafetensorsReader>(folder + "/" + file));
    for (const SafetensorsEntry& entry : result.readers.back()->entries()) {
      const auto place = placed.find(entry.name);
      if (place == placed.end() || place->second != file) {
        problems.push_back(fmt::format("{} holds '{}', which the index does not place there", file, entry.name));
      }
    }
  }
  for (const auto& [name, file] : placed) {
    if (!result.tensors.contains(name)) problems.push_back(fmt::format("{} lacks '{}'", file, name));
  }
  if (!problems.empty()) throw CheckpointError("{}:\n  {}", index, fmt::join(problems, "\n  "));
  return result;
}

// Warns if the shards beside model.safetensors hold other weights.
void compare_with_shards(const StoredTensors& single, const std::string& folder) {
  std::string difference;
  try {
    const StoredTensors shards = open_shards(folder);
    const auto is_same = [](const auto& left, const auto& right) {
      const StoredTensor &a = left.second, &b = right.second;
      return left.first == right.first && a.dtype == b.dtype && a.shape == b.shape &&
             std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
    };
    const auto [here, there] = std::ranges::mismatch(single.tensors, shards.tensors, is_same);
    if (here == single.tensors.end() && there == shards.tensors.end()) return;
    difference = fmt::format("'{}' differs", here == single.tensors.end() ? there->first : here->first);
  } catch (const CheckpointError& error) {
    difference = error.what();
  }
  warn_in_lines(
      fmt::format("{}: {} is read, as in transformers, and not the shards of {}: {}; remove the files that are out of "
                  "date",
                  folder, kSingleFile, kIndexFile, difference));
}

}  // namespace

StoredTensors open_safetensors_folder(const std::string& folder) {
  const bool has_index = file_exists(folder + "/" + kIndexFile);
  if (!file_exists(folder + "/" + kSingleFile)) {
    if (has_index) return open_shards(folder);
    const bool is_pickled = !expand_glob(folder + "/pytorch_model*.bin").empty();
    throw CheckpointError("{}: expected {} or {}{}", folder, kSingleFile, kIndexFile,
                          is_pickled ? "; pickled weights (pytorch_model.bin) are not read: save them as "
                                       "safetensors by transformers' save_pretrained()"
                                     : "");
  }
  StoredTensors result;
  result.add(std::make_shared<const SafetensorsReader>(folder + "/" + kSingleFile));
  if (has_index) compare_with_shards(result, folder);
  return result;
}

int64_t numel_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

DType dtype_of_parts(const StoredTensors& source, const ParameterParts& parts) {
  std::optional<DType> result;
  for (const auto& [name, shape] : parts.parts) {
    const DType dtype = *parse_safetensors_dtype(source.tensors.at(name).dtype);
    result = result ? widest(*result, dtype) : dtype;
  }
  return result.value();
}

void read_parts(const StoredTensors& source, const ParameterParts& parts, DType dtype, std::span<std::byte> out) {
  dispatch_with_fp64(dtype, [&]<typename To>() {
    To* to = reinterpret_cast<To*>(out.data());
    for (const auto& [name, shape] : parts.parts) {
      const StoredTensor& part = source.tensors.at(name);
      const int64_t count = numel_of(shape);
      if (parts.is_transposed) {
        transpose(part, shape.at(1), shape.at(0), to);
      } else {
        constexpr int64_t kBlock = int64_t{1} << 20;
        parallel_for(divide_up(count, kBlock), [&](int64_t block) {
          const int64_t first = block * kBlock;
          convert(part, first, std::min(kBlock, count - first), to + first);
        });
      }
      to += count;
    }
  });
}

std::vector<std::byte> converted(const StoredTensor& tensor, DType dtype, bool is_transposed) {
  std::vector<std::byte> bytes(static_cast<size_t>(numel_of(tensor.shape) * size_bytes(dtype)));
  read_parts({.tensors = {{"", tensor}}}, {.parts = {{"", tensor.shape}}, .is_transposed = is_transposed}, dtype,
             bytes);
  return bytes;
}

}  // namespace mantissa
