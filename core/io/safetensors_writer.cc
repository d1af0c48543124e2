#include <algorithm>
#include <bit>
#include <cstring>

#include <nlohmann/json.hpp>

#include "core/io/safetensors.h"

namespace mantissa {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian, and written as memory lies");

SafetensorsWriter::SafetensorsWriter(ByteSink& sink, std::vector<SafetensorsEntry> tensors,
                                     SafetensorsMetadata metadata)
    : sink_(sink), order_(std::move(tensors)) {
  const auto item_bytes = [](const SafetensorsEntry& entry) {
    const auto bytes = safetensors_item_bytes(entry.dtype);
    MANTISSA_CHECK(bytes.has_value(), "[safetensors] tensor {}: unknown dtype {}", entry.name, entry.dtype);
    return *bytes;
  };
  std::stable_sort(order_.begin(), order_.end(),
                   [&](const SafetensorsEntry& a, const SafetensorsEntry& b) { return item_bytes(a) > item_bytes(b); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  metadata.try_emplace("format", "pt");
  header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (SafetensorsEntry& entry : order_) {
    MANTISSA_CHECK(!header.contains(entry.name), "[safetensors] the tensor name {} is given twice or reserved",
                   entry.name);
    uint64_t bytes = static_cast<uint64_t>(item_bytes(entry));
    for (const int64_t extent : entry.shape) {
      MANTISSA_CHECK(extent >= 0, "[safetensors] tensor {}: extents must be >= 0, got {}", entry.name, extent);
      bytes *= static_cast<uint64_t>(extent);
    }
    entry.begin = offset;
    entry.end = offset += bytes;
    header[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }

  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  sink_.write(std::as_bytes(std::span(&length, 1)));
  sink_.write(std::as_bytes(std::span(text)));
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  MANTISSA_CHECK(next_ < order_.size(), "[safetensors] tensor {} comes after the last of {}", name, order_.size());
  const SafetensorsEntry& entry = order_[next_];
  MANTISSA_CHECK(entry.name == name && entry.size_bytes() == bytes.size(),
                 "[safetensors] expected tensor {} of {} bytes, got {} of {} bytes", entry.name, entry.size_bytes(),
                 name, bytes.size());
  sink_.write(bytes);
  ++next_;
}

void SafetensorsWriter::finish() {
  MANTISSA_CHECK(next_ == order_.size(), "[safetensors] {} of {} tensors were written, {} is missing", next_,
                 order_.size(), order_[next_].name);
}

}  // namespace mantissa
