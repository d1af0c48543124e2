#include "tools/text/parquet_pages.h"

#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "core/base/check.h"
#include "tools/text/unpacker.h"

namespace mantissa::parquet {
namespace {

void require_sound(bool condition) { require<DataError>(condition, "it is damaged; copy the file again"); }

// A varint with the size, then literals and copies of earlier bytes, each after a tag.
void unpack_snappy(Bytes packed, std::span<std::byte> out) {
  require_sound(take_varint(packed) == out.size());
  size_t at = 0;
  while (!packed.empty()) {
    const auto tag = std::to_integer<uint32_t>(take_bytes(packed, 1)[0]);
    size_t length = (tag >> 2) + 1;
    const auto number = [&packed](size_t bytes) {  // little-endian
      size_t value = 0;
      for (const Bytes from = take_bytes(packed, bytes); bytes > 0; --bytes) {
        value = value << 8 | std::to_integer<size_t>(from[bytes - 1]);
      }
      return value;
    };
    if ((tag & 3) == 0) {
      if (length > 60) length = number(length - 60) + 1;
      require_sound(length <= out.size() - at);
      std::memcpy(out.data() + at, take_bytes(packed, length).data(), length);
      at += length;
      continue;
    }
    size_t offset = 0;
    if ((tag & 3) == 1) {
      length = (tag >> 2 & 7) + 4;
      offset = (tag >> 5) << 8 | number(1);
    } else {
      offset = number((tag & 3) == 2 ? 2 : 4);
    }
    require_sound(offset > 0 && offset <= at && length <= out.size() - at);
    for (size_t i = 0; i < length; ++i) out[at + i] = out[at + i - offset];  // the two may overlap
    at += length;
  }
  require_sound(at == out.size());
}

void unpack(Unpacker::Library library, Bytes packed, std::span<std::byte> out) {
  Unpacker unpacker("its content", packed, std::move(library));
  require_sound(unpacker.read({reinterpret_cast<char*>(out.data()), out.size()}) == out.size());
  char more = 0;
  require_sound(unpacker.read({&more, 1}) == 0);  // this also reads the checksum
}

std::string_view name_of(Codec codec) {
  constexpr std::string_view kNames[] = {"none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw"};
  const auto index = static_cast<size_t>(codec);
  return index < std::size(kNames) ? kNames[index] : "an unknown codec";
}

}  // namespace

uint64_t take_varint(Bytes& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = std::to_integer<uint64_t>(take_bytes(bytes, 1)[0]);
    value |= (byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  throw DataError("a number has more than 64 bits; copy the file again");
}

uint32_t take_u32(Bytes& bytes) {
  uint32_t value = 0;
  std::memcpy(&value, take_bytes(bytes, sizeof(value)).data(), sizeof(value));
  return value;
}

Bytes take_bytes(Bytes& bytes, uint64_t count) {
  require<DataError>(count <= bytes.size(), "expected {} more bytes, got {}", count, bytes.size());
  const Bytes taken = bytes.first(count);
  bytes = bytes.subspan(count);
  return taken;
}

PageBytes decompress(Codec codec, Bytes packed, size_t size) {
  if (codec == Codec::kNone) {
    require_sound(packed.size() == size);
    return {.bytes = packed};
  }
  const bool is_known = codec == Codec::kSnappy || codec == Codec::kGzip || codec == Codec::kZstd;
  require<DataError>(is_known,
                     "it is compressed by {}; expected none, snappy, gzip or zstd: write the file again by python3 -c "
                     "\"import pyarrow.parquet as p; p.write_table(p.read_table('OLD'), 'NEW')\"",
                     name_of(codec));
  PageBytes page{.bytes = {}, .owned = std::make_unique_for_overwrite<std::byte[]>(size)};
  const std::span<std::byte> out(page.owned.get(), size);
  if (codec == Codec::kSnappy) unpack_snappy(packed, out);
  if (codec == Codec::kGzip) unpack(Unpacker::gzip(), packed, out);
  if (codec == Codec::kZstd) unpack(Unpacker::zstd(), packed, out);
  page.bytes = out;
  return page;
}

void read_hybrid(Bytes bytes, int width, std::span<uint32_t> values) {
  require_sound(width >= 0 && width <= 32);
  uint64_t left = 0;  // of the run
  bool is_packed = false;
  uint32_t repeated = 0;  // the value of a run of one
  uint64_t buffer = 0;    // bits read from packed values
  int buffered = 0;
  const auto next_byte = [&bytes] { return std::to_integer<uint64_t>(take_bytes(bytes, 1)[0]); };
  for (uint32_t& value : values) {
    if (left == 0) {
      const uint64_t header = take_varint(bytes);
      is_packed = (header & 1) != 0;
      left = header >> 1;
      require_sound(left > 0 && left < uint64_t{1} << 32);
      if (is_packed) left *= 8;
      buffer = repeated = 0;
      buffered = 0;
      for (int bit = 0; !is_packed && bit < width; bit += 8) repeated |= static_cast<uint32_t>(next_byte()) << bit;
      require_sound(uint64_t{repeated} >> width == 0);  // whole bytes can hold more than `width` bits
    }
    --left;
    value = repeated;
    if (!is_packed) continue;
    for (; buffered < width; buffered += 8) buffer |= next_byte() << buffered;
    value = static_cast<uint32_t>(buffer & ((uint64_t{1} << width) - 1));
    buffer >>= width;
    buffered -= width;
  }
}

}  // namespace mantissa::parquet
