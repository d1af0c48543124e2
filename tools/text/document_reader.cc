#include "tools/text/document_reader.h"

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/core.h>

#include "core/base/check.h"
#include "core/data/data_kind.h"
#include "core/io/files.h"
#include "tools/text/parquet_reader.h"

namespace mantissa {
namespace {

constexpr size_t kBatchBytes = size_t{1} << 24;

// Cuts text that comes in parts into lines.
class LineBatches {
 public:
  explicit LineBatches(const DocumentSink& f) : f_(f) {}

  // Hands out the lines that end in `text`; returns how many bytes they take. `read_bytes`: of the file, for a text
  // that was unpacked; else the file is the text.
  size_t add(std::string_view text, bool is_end, std::optional<size_t> read_bytes = std::nullopt) {
    size_t begin = 0, batch = 0;
    while (begin < text.size()) {
      size_t end = text.find('\n', begin);
      if (end == std::string_view::npos && !is_end) break;
      end = std::min(end, text.size());
      ++line_;
      const std::string_view line = text.substr(begin, end - begin);
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) documents_.push_back({line, line_});
      begin = std::min(end + 1, text.size());
      if (begin - batch < kBatchBytes) continue;
      flush(read_bytes.value_or(begin));
      batch = begin;
    }
    flush(read_bytes.value_or(begin));
    return begin;
  }

 private:
  void flush(size_t read_bytes) {
    if (!documents_.empty()) f_(documents_, read_bytes);
    documents_.clear();
  }

  const DocumentSink& f_;
  std::vector<RawDocument> documents_;
  int64_t line_ = 0;
};

void read_compressed_lines(const MappedFile& file, LineBatches& lines) {
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  if (stream == nullptr) throw std::bad_alloc();
  ZSTD_inBuffer in{file.bytes().data(), file.bytes().size(), 0};
  std::string text;  // with the start of a line that has not ended yet
  size_t kept = 0, rest = 0;
  bool is_full = false;  // there may be more, without more input
  do {
    text.resize(std::max(text.size(), kept + kBatchBytes));
    ZSTD_outBuffer out{text.data(), text.size(), kept};
    rest = ZSTD_decompressStream(stream.get(), &out, &in);
    require<DataError>(ZSTD_isError(rest) == 0, "{}: damaged: {} at byte {} of {}", file.path(),
                       ZSTD_getErrorName(rest), in.pos, in.size);
    is_full = out.pos == out.size;
    const size_t used = lines.add(std::string_view(text).substr(0, out.pos), false, in.pos);
    kept = out.pos - used;
    std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(used), kept, text.begin());
  } while (in.pos < in.size || (is_full && rest != 0));
  require<DataError>(rest == 0, "{}: truncated: the compressed data end within a block; copy the file again",
                     file.path());
  lines.add(std::string_view(text).substr(0, kept), true, in.pos);
}

void read_rows(const MappedFile& file, const std::string& column, const DocumentSink& f) {
  std::vector<RawDocument> documents;
  const auto hand_out = [&](std::span<const std::string_view> texts) {
    documents.clear();
    for (const std::string_view text : texts) documents.push_back({text, 0});
    f(documents, 0);
  };
  try {
    read_parquet_texts(file.bytes(), column, hand_out);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", file.path(), error.what()));
  }
}

}  // namespace

void read_documents(const std::string& path, const std::string& field, const DocumentSink& f) {
  const MappedFile file = map_file<DataError>(path);
  LineBatches lines(f);
  if (path.ends_with(".jsonl.zst")) return read_compressed_lines(file, lines);
  if (path.ends_with(".parquet")) return read_rows(file, field, f);
  const std::string packed = why_packed(file.bytes().first(std::min<size_t>(file.bytes().size(), 64)));
  require<DataError>(packed.empty(), "{}: {}; only *.jsonl.zst is unpacked here", path, packed);
  const std::string_view text = file.text();
  if (path.ends_with(".jsonl")) {
    lines.add(text, true);
  } else {
    const RawDocument whole{text, 0};
    f({&whole, 1}, text.size());
  }
}

}  // namespace mantissa
