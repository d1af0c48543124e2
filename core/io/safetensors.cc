#include "core/io/safetensors.h"

#include <cstring>
#include <set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace mantissa {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian, written as memory holds them");

struct Type {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype{};  // nothing for types that Tensor cannot hold
};
constexpr Type kTypes[] = {{"F64", 8, DType::kF64},
                           {"F32", 4, DType::kF32},
                           {"F16", 2, DType::kF16},
                           {"BF16", 2, DType::kBF16},
                           {"I64", 8},
                           {"I32", 4, DType::kI32},
                           {"I16", 2},
                           {"I8", 1},
                           {"U64", 8},
                           {"U32", 4},
                           {"U16", 2},
                           {"U8", 1, DType::kU8},
                           {"F8_E4M3", 1},
                           {"F8_E5M2", 1},
                           {"F8_E8M0", 1},
                           {"C64", 8},
                           {"BOOL", 1}};

const Type* find_type(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return t.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kLengthBytes = sizeof(uint64_t);

// Refuses duplicate keys. nlohmann's parser alone silently takes the last one.
json parse_unique(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  return json::parse(text, [&keys](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw std::runtime_error(fmt::format("the key {} is given twice", parsed.dump()));
    }
    return true;
  });
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const Type& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  throw ContractError(fmt::format("[safetensors] no name for dtype {}", dtype));
}

std::optional<DType> parse_safetensors_dtype(std::string_view dtype) {
  const Type* const type = find_type(dtype);
  return type ? type->dtype : std::nullopt;
}

std::optional<int64_t> safetensors_item_bytes(std::string_view dtype) {
  const Type* const type = find_type(dtype);
  return type ? std::optional(type->bytes) : std::nullopt;
}

// --- writing

SafetensorsWriter::SafetensorsWriter(ByteSink& sink, std::vector<SafetensorsEntry> tensors,
                                     SafetensorsMetadata metadata)
    : sink_(sink), order_(std::move(tensors)) {
  const auto item_bytes = [](const SafetensorsEntry& entry) {
    const auto bytes = safetensors_item_bytes(entry.dtype);
    MANTISSA_CHECK(bytes.has_value(), "[safetensors] tensor {}: unknown dtype {}", entry.name, entry.dtype);
    return *bytes;
  };
  std::ranges::stable_sort(
      order_, [&](const SafetensorsEntry& a, const SafetensorsEntry& b) { return item_bytes(a) > item_bytes(b); });

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

// --- reading

SafetensorsReader::SafetensorsReader(const std::string& path)
    : path_(path), file_(map_file<CheckpointError>(path)), bytes_(file_->bytes()) {
  parse();
}

SafetensorsReader::SafetensorsReader(std::string name, std::span<const std::byte> bytes)
    : path_(std::move(name)), bytes_(bytes) {
  parse();
}

void SafetensorsReader::parse() {
  uint64_t length = 0;
  if (bytes_.size() < kLengthBytes)
    fail(fmt::format("truncated: the header length needs 8 bytes, the file has {}", bytes_.size()));
  std::memcpy(&length, bytes_.data(), kLengthBytes);
  if (length > kMaxHeaderBytes)
    fail(fmt::format("the header length {} is above the format's limit {}", length, kMaxHeaderBytes));
  if (length > bytes_.size() - kLengthBytes) {
    fail(fmt::format("truncated: the header needs {} bytes, the file has {}", kLengthBytes + length, bytes_.size()));
  }
  data_offset_ = kLengthBytes + length;
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) fail("the header does not start with '{'");
  try {
    parse_header(text);
  } catch (const CheckpointError&) {
    throw;
  } catch (const std::exception& error) {
    fail(fmt::format("the header is not valid: {}", error.what()));
  }
  check_layout();
}

void SafetensorsReader::parse_header(std::string_view text) {
  const json header = parse_unique(text);
  for (const auto& item : header.items()) {  // not [name, value]: clang before 16 lets no lambda capture them
    const std::string& name = item.key();
    const json& value = item.value();
    if (name == "__metadata__") {
      metadata_ = value.get<SafetensorsMetadata>();
      continue;
    }
    const auto check = [&](bool condition, const std::string& why) {
      if (!condition) fail(fmt::format("tensor {}: {}", name, why));
    };
    check(value.is_object() && value.size() == 3 && value.contains("dtype") && value.contains("shape") &&
              value.contains("data_offsets"),
          "expected the members dtype, shape and data_offsets");
    const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
    const auto unsigned_integer = [](const json& number) { return number.is_number_unsigned(); };
    check(dtype.is_string(), "dtype is not a string");
    check(shape.is_array() && std::ranges::all_of(shape, unsigned_integer), "shape is not an array of sizes");
    check(offsets.is_array() && offsets.size() == 2 && std::ranges::all_of(offsets, unsigned_integer),
          "data_offsets are not two positions");

    SafetensorsEntry entry{name, dtype.get<std::string>(), {}, offsets[0].get<uint64_t>(), offsets[1].get<uint64_t>()};
    const auto item_bytes = safetensors_item_bytes(entry.dtype);
    check(item_bytes.has_value(), fmt::format("unknown dtype {}", entry.dtype));
    uint64_t expected = static_cast<uint64_t>(*item_bytes);
    for (const json& extent : shape) {
      const uint64_t size = extent.get<uint64_t>();
      check(size <= INT64_MAX && !__builtin_mul_overflow(expected, size, &expected), "shape is too large");
      entry.shape.push_back(static_cast<int64_t>(size));
    }
    check(entry.begin <= entry.end && entry.size_bytes() == expected,
          fmt::format("{} of shape ({}) needs {} bytes, data_offsets [{}, {}) do not hold that", entry.dtype,
                      fmt::join(entry.shape, ", "), expected, entry.begin, entry.end));
    entries_.push_back(std::move(entry));
  }
  std::ranges::sort(entries_, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);  // an empty tensor before a tensor with its start
  });
}

void SafetensorsReader::check_layout() const {
  const uint64_t data_bytes = bytes_.size() - data_offset_;
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.begin != end) {
      fail(fmt::format("tensor {}: its data starts at {}, the previous tensor ends at {}", entry.name, entry.begin,
                       end));
    }
    end = entry.end;
    if (end > data_bytes) {
      fail(fmt::format("truncated: tensor {} ends at {}, the file has {} bytes of data", entry.name, end, data_bytes));
    }
  }
  if (end != data_bytes) fail(fmt::format("{} bytes follow the last tensor", data_bytes - end));
}

void SafetensorsReader::fail(const std::string& why) const { throw CheckpointError(fmt::format("{}: {}", path_, why)); }

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = std::ranges::find_if(entries_, [&](const auto& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

const SafetensorsEntry& SafetensorsReader::at(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) fail(fmt::format("there is no tensor {}", name));
  return *entry;
}

void SafetensorsReader::read(std::string_view name, DType dtype, std::span<const int64_t> shape,
                             std::span<std::byte> out) const {
  const SafetensorsEntry& entry = at(name);
  if (entry.dtype != safetensors_name(dtype) ||
      !std::equal(shape.begin(), shape.end(), entry.shape.begin(), entry.shape.end())) {
    fail(fmt::format("tensor {}: expected {} of shape ({}), got {} of shape ({})", name, safetensors_name(dtype),
                     fmt::join(shape, ", "), entry.dtype, fmt::join(entry.shape, ", ")));
  }
  MANTISSA_CHECK(out.size() == entry.size_bytes(), "[safetensors] tensor {} has {} bytes, room is for {}", name,
                 entry.size_bytes(), out.size());
  if (!out.empty()) std::memcpy(out.data(), bytes(entry).data(), out.size());
}

}  // namespace mantissa
