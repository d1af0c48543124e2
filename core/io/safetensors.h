// safetensors: u64le N, N bytes of JSON header, tensor data without gaps. Source: the format's README at
// github.com/huggingface/safetensors. The format has no checksum; checkpoints hash the whole file.
#pragma once

#include <map>

#include "core/io/files.h"
#include "core/tensor/dtype.h"

namespace mantissa {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", …
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data

  uint64_t size_bytes() const { return end - begin; }
};

using SafetensorsMetadata = std::map<std::string, std::string>;

std::string_view safetensors_name(DType dtype);                         // kBF16 -> "BF16"
std::optional<DType> parse_safetensors_dtype(std::string_view dtype);   // nothing for types that Tensor cannot hold
std::optional<int64_t> safetensors_item_bytes(std::string_view dtype);  // nothing for unknown types

// Writes the header at once and then each tensor, so that they need not be in memory together.
class SafetensorsWriter {
 public:
  // `tensors`: name, dtype and shape; computes begin and end. Adds the metadata "format": "pt".
  SafetensorsWriter(ByteSink& sink, std::vector<SafetensorsEntry> tensors, SafetensorsMetadata metadata = {});

  // The order in which append() expects the tensors: wide dtypes first, to align each tensor to its element.
  const std::vector<SafetensorsEntry>& order() const { return order_; }
  // `bytes`: all of the next tensor. ContractError if the name or the size differs.
  void append(std::string_view name, std::span<const std::byte> bytes);
  void finish();  // ContractError if tensors are missing

 private:
  ByteSink& sink_;
  std::vector<SafetensorsEntry> order_;
  size_t next_ = 0;
};

// Maps a file, or reads bytes in memory, and checks the whole header: CheckpointError naming file and wrong tensor.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);
  // `name` replaces the file name in errors; `bytes` must outlive the reader.
  SafetensorsReader(std::string name, std::span<const std::byte> bytes);

  const std::string& path() const { return path_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of the data
  const SafetensorsEntry* find(std::string_view name) const;                 // nullptr if there is none
  const SafetensorsEntry& at(std::string_view name) const;                   // CheckpointError if there is none
  // Valid as long as the reader. May be misaligned: copy, do not cast.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const {
    return bytes_.subspan(data_offset_ + entry.begin, entry.size_bytes());
  }
  // Copies the tensor to `out`; CheckpointError if its dtype or shape differs.
  void read(std::string_view name, DType dtype, std::span<const int64_t> shape, std::span<std::byte> out) const;

 private:
  void parse();
  void parse_header(std::string_view text);
  void check_layout() const;
  [[noreturn]] void fail(const std::string& why) const;

  std::string path_;
  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;  // of the whole file
  size_t data_offset_ = 0;
  SafetensorsMetadata metadata_;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace mantissa
