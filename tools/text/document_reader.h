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

// Calls f with the documents of a file, in order: of *.jsonl and *.ndjson each line that is not blank, also of *.json
// whose first line is an object with the key `field`; of Parquet each row of the column `field`; of any other file the
// whole. Files of lines and texts may be compressed (unpacker.h). `read_bytes`: how much of the file has been read, as
// far as it is known. The views hold during the call only. DataError that names the file if it cannot be read or is
// damaged. Returns why_no_single_text() of a file that was taken as a whole.
using DocumentSink = std::function<void(std::span<const RawDocument>, size_t read_bytes)>;
std::string read_documents(const std::string& path, const std::string& field, const DocumentSink& f);

// Why a file whose text is taken as a whole rather holds lines of JSON with the key `field`, or no text; else empty.
std::string why_no_single_text(const std::string& path, std::string_view text, const std::string& field);

}  // namespace mantissa
