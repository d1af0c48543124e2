// Pages of Parquet files: their compression, and the runs of small integers in them. Source: the file format of
// apache/parquet-format (Compression.md, Encodings.md), and snappy's format_description.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace mantissa::parquet {

using Bytes = std::span<const std::byte>;

// As parquet.thrift numbers them. Others are not read.
enum class Codec : int32_t { kNone = 0, kSnappy = 1, kGzip = 2, kZstd = 6 };

// Bytes that hold a page, or belong to it.
struct PageBytes {
  Bytes bytes{};
  std::unique_ptr<std::byte[]> owned{};  // null: they are part of the file
};

// `size`: of the page when it is unpacked. DataError for another size, damaged bytes, or a codec that is not known.
PageBytes decompress(Codec codec, Bytes packed, size_t size);

// The first of integers in runs of one value, and in groups of 8 packed by bits (RLE/bit-packing hybrid). `width`: bits
// of a value, at most 32. DataError for more, or if there are fewer values.
void read_hybrid(Bytes bytes, int width, std::span<uint32_t> values);

// LEB128, which it takes off the front. DataError if it does not end, or has more than 64 bits.
uint64_t take_varint(Bytes& bytes);
// 4 bytes, little-endian, likewise.
uint32_t take_u32(Bytes& bytes);
// `count` bytes, likewise.
Bytes take_bytes(Bytes& bytes, uint64_t count);

}  // namespace mantissa::parquet
