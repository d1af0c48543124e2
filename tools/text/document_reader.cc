#include "tools/text/document_reader.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/data/data_kind.h"
#include "core/io/files.h"
#include "core/io/json_node.h"
#include "tools/text/parquet_reader.h"
#include "tools/text/unpacker.h"

namespace mantissa {
namespace {

constexpr size_t kBatchBytes = size_t{1} << 24;

// `text`: the first part, without a byte-order mark.
void read_lines(Unpacker& unpacker, std::string text, const DocumentSink& f) {
  std::vector<RawDocument> documents;
  size_t kept = text.size();  // bytes that have not been handed out
  int64_t line = 0;
  for (bool is_end = false; !is_end;) {
    text.resize(std::max(text.size(), kept + kBatchBytes));
    const size_t made = unpacker.read(std::span(text).subspan(kept));
    const std::string_view part = std::string_view(text).substr(0, kept + made);
    is_end = part.size() < text.size();
    size_t begin = 0;
    for (size_t end = 0; begin < part.size(); begin = end + 1) {
      end = part.find('\n', begin);
      if (end == std::string_view::npos && !is_end) break;
      end = std::min(end, part.size());
      const RawDocument document{part.substr(begin, end - begin), ++line};
      if (document.text.find_first_not_of(" \t\r") != std::string_view::npos) documents.push_back(document);
    }
    if (!documents.empty()) f(documents, unpacker.read_bytes());
    documents.clear();
    kept = part.size() - std::min(begin, part.size());
    std::copy(part.end() - static_cast<std::ptrdiff_t>(kept), part.end(), text.begin());
  }
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

// Whether the first line that is not blank is a JSON object with this key.
bool starts_with_object(std::string_view text, const std::string& key) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const std::string_view line = text.substr(begin, std::min(text.find('\n', begin), begin + kBatchBytes) - begin);
  if (!line.starts_with('{')) return false;
  try {
    return JsonNode::parse(line).contains(key);
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace

std::string why_no_single_text(const std::string& path, std::string_view text, const std::string& key) {
  constexpr size_t kSample = size_t{1} << 16;
  if (starts_with_object(text, key)) return fmt::format("it starts with a JSON object that has '{}'", key);
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const bool is_json = text.substr(begin, 1) == "{" || text.substr(begin, 1) == "[";
  const std::string_view name = unpacked_name(path);
  if (is_json && (name.ends_with(".json") || name.ends_with(".jsonl") || name.ends_with(".ndjson"))) {
    return fmt::format("its first line is no JSON object that has '{}'", key);
  }
  return why_no_text(std::as_bytes(std::span(text.substr(0, kSample))));
}

std::string read_documents(const std::string& path, const std::string& field, const DocumentSink& f) {
  const MappedFile file = map_file<DataError>(path);
  if (path.ends_with(".parquet") || file.text().starts_with("PAR1")) {
    read_rows(file, field, f);
    return "";
  }
  Unpacker unpacker = Unpacker::open(file);
  std::string start(kBatchBytes, '\0');
  start.resize(unpacker.read(start));
  start.erase(0, start.size() - without_byte_order_mark(start).size());
  const std::string_view name = unpacked_name(path);
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson") ||
      (name.ends_with(".json") && starts_with_object(start, field))) {
    read_lines(unpacker, std::move(start), f);
    return "";
  }
  const TextFile whole(path);
  const RawDocument document{whole.text(), 0};
  f({&document, 1}, file.bytes().size());
  return why_no_single_text(path, whole.text(), field);
}

}  // namespace mantissa
