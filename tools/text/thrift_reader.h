// Thrift's compact protocol, in which the footer and the page headers of Parquet are written. Source:
// thrift-compact-protocol.md of apache/thrift.
#pragma once

#include <string_view>

#include "core/base/check.h"
#include "tools/text/parquet_pages.h"

namespace mantissa::parquet {

enum class Wire : uint8_t {
  kStop = 0,
  kTrue = 1,
  kFalse = 2,
  kByte = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kDouble = 7,
  kBinary = 8,
  kList = 9,
  kSet = 10,
  kMap = 11,
  kStruct = 12
};

class ThriftReader {
 public:
  explicit ThriftReader(Bytes bytes) : rest_(bytes) {}
  Bytes rest() const { return rest_; }

  // Calls on_field(id, type) for each field of a struct. It returns false for a field that it has not read.
  template <typename OnField>
  void read_struct(OnField on_field) {
    int64_t id = 0;
    while (true) {
      const auto head = std::to_integer<uint32_t>(take_bytes(rest_, 1)[0]);
      const auto type = static_cast<Wire>(head & 15);
      if (type == Wire::kStop) return;
      id = head >> 4 != 0 ? id + (head >> 4) : integer();
      if (!on_field(id, type)) skip(type);
    }
  }

  // Calls on_item() for each item of a list of this type, which must read it.
  template <typename OnItem>
  void read_list(Wire item, OnItem on_item) {
    const auto head = std::to_integer<uint32_t>(take_bytes(rest_, 1)[0]);
    const uint64_t count = head >> 4 == 15 ? take_varint(rest_) : head >> 4;
    require<DataError>(count == 0 || static_cast<Wire>(head & 15) == item, "{}", kBadFooter);
    for (uint64_t i = 0; i < count; ++i) on_item();
  }

  int64_t integer() {
    const uint64_t value = take_varint(rest_);
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  std::string_view text() {
    const Bytes bytes = take_bytes(rest_, take_varint(rest_));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  static constexpr const char* kBadFooter = "the metadata are damaged; copy the file again";

 private:
  void skip(Wire type, int depth = 0) {
    constexpr int kDeepest = 32;
    require<DataError>(depth < kDeepest, "{}", kBadFooter);
    switch (type) {
      case Wire::kTrue:
      case Wire::kFalse:
        return;
      case Wire::kByte:
        take_bytes(rest_, 1);
        return;
      case Wire::kI16:
      case Wire::kI32:
      case Wire::kI64:
        take_varint(rest_);
        return;
      case Wire::kDouble:
        take_bytes(rest_, 8);
        return;
      case Wire::kBinary:
        text();
        return;
      case Wire::kList:
      case Wire::kSet:
        return skip_items(depth);
      case Wire::kStruct:
        return skip_fields(depth);
      case Wire::kMap:
      case Wire::kStop:
        break;
    }
    throw DataError(kBadFooter);
  }
  void skip_items(int depth) {
    const auto head = std::to_integer<uint32_t>(take_bytes(rest_, 1)[0]);
    const uint64_t count = head >> 4 == 15 ? take_varint(rest_) : head >> 4;
    const auto type = static_cast<Wire>(head & 15);
    for (uint64_t i = 0; i < count; ++i) {
      if (type == Wire::kTrue || type == Wire::kFalse) {
        take_bytes(rest_, 1);  // in a list, each has a byte
      } else {
        skip(type, depth + 1);
      }
    }
  }
  void skip_fields(int depth) {
    while (true) {
      const auto head = std::to_integer<uint32_t>(take_bytes(rest_, 1)[0]);
      const auto type = static_cast<Wire>(head & 15);
      if (type == Wire::kStop) return;
      if (head >> 4 == 0) take_varint(rest_);
      skip(type, depth + 1);
    }
  }

  Bytes rest_;
};

}  // namespace mantissa::parquet
