// The texts of one column of a Parquet file, without a library: the part of the format in which data sets come.
// Source: apache/parquet-format (README.md, parquet.thrift, Encodings.md).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace mantissa {

// Calls f with the texts of a column, page by page, in the order of the rows. A null is an empty text. The views hold
// during the call only. Reads columns of strings or bytes at the top of the schema, in plain or dictionary encoding,
// with pages of both versions, uncompressed or by snappy, gzip or zstd. DataError names the unsupported feature, the
// columns of texts, or the damage, but not the file.
void read_parquet_texts(std::span<const std::byte> file, const std::string& column,
                        const std::function<void(std::span<const std::string_view>)>& f);

}  // namespace mantissa
