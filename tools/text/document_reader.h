// Documents of text, JSONL and Parquet files, in batches that fit in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

struct RawDocument {
  std::string_view text;  // of a text file or of a row; or a line of JSON
  int64_t line = 0;       // from 1; 0: the text itself
};

// Calls f with the documents of a file, in order: of *.jsonl and *.jsonl.zst each line that is not blank, of *.parquet
// each row of the column `field`, of any other file the whole. `read_bytes`: how much of the file has been read, as far
// as that is known. The views hold during the call only. DataError that names the file if it cannot be read, is
// damaged, or is compressed in another way.
using DocumentSink = std::function<void(std::span<const RawDocument>, size_t read_bytes)>;
void read_documents(const std::string& path, const std::string& field, const DocumentSink& f);

}  // namespace mantissa
