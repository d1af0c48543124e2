#include "tools/model/exchange/stored_tensors.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "core/base/round_up.h"
#include "core/base/thread_team.h"
#include "core/io/json_node.h"

namespace mantissa {
namespace {

using nlohmann::json;

constexpr const char *kSingleFile = "model.safetensors", *kIndexFile = "model.safetensors.index.json";

// File by tensor.
std::map<std::string, std::string> read_index(const std::string& path) {
  const json index = read_json_object<CheckpointError>(path);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    throw CheckpointError(fmt::format("{}: expected an object 'weight_map'", path));
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    const bool is_name = file.is_string() && !file.get<std::string>().empty() &&
                         file.get<std::string>().find('/') == std::string::npos && file != "..";
    if (!is_name) {
      throw CheckpointError(
          fmt::format("{}: '{}': expected the name of a file in this folder, got {}", path, name, file.dump()));
    }
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

void StoredTensors::add(const std::shared_ptr<const SafetensorsReader>& reader) {
  readers.push_back(reader);
  for (const SafetensorsEntry& entry : reader->entries()) {
    const bool is_new =
        tensors.emplace(entry.name, StoredTensor{entry.dtype, entry.shape, reader->bytes(entry)}).second;
    if (!is_new) {
      throw CheckpointError(fmt::format("{}: '{}' is in another file of the model, too", reader->path(), entry.name));
    }
  }
}

StoredTensors open_safetensors_folder(const std::string& folder) {
  StoredTensors result;
  const std::string index = folder + "/" + kIndexFile;
  std::error_code error;  // then it is not there
  if (!std::filesystem::exists(index, error)) {
    if (!std::filesystem::exists(folder + "/" + kSingleFile, error)) {
      const bool is_pickled = !expand_glob(folder + "/pytorch_model*.bin").empty();
      throw CheckpointError(fmt::format("{}: expected {} or {}{}", folder, kSingleFile, kIndexFile,
                                        is_pickled ? "; pickled weights (pytorch_model.bin) are not read: save them as "
                                                     "safetensors by transformers' save_pretrained()"
                                                   : ""));
    }
    result.add(std::make_shared<const SafetensorsReader>(folder + "/" + kSingleFile));
    return result;
  }
  const std::map<std::string, std::string> placed = read_index(index);
  std::set<std::string> files;
  for (const auto& [name, file] : placed) files.insert(file);
  std::vector<std::string> absent, problems;
  for (const std::string& file : files) {
    if (!std::filesystem::exists(folder + "/" + file, error)) absent.push_back(file);
  }
  if (!absent.empty()) {
    throw CheckpointError(fmt::format("{}: it names files that are not there: {}", index, fmt::join(absent, ", ")));
  }
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
  if (!problems.empty()) throw CheckpointError(fmt::format("{}:\n  {}", index, fmt::join(problems, "\n  ")));
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
