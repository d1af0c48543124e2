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

// `text`: the first part.
void read_lines(Unpacker& unpacker, std::string text, const DocumentSink& f) {
  std::vector<RawDocument> documents;
  int64_t line = 0;
  for (bool is_more = true; is_more;) {
    is_more = unpacker.append_to(text);
    const std::string_view part = line == 0 ? without_byte_order_mark(text) : text;
    size_t begin = 0;
    for (size_t end = 0; begin < part.size(); begin = end + 1) {
      end = part.find('\n', begin);
      if (end == std::string_view::npos && is_more) break;
      end = std::min(end, part.size());
      const RawDocument document{part.substr(begin, end - begin), ++line};
      if (document.text.find_first_not_of(" \t\r") != std::string_view::npos) documents.push_back(document);
    }
    if (!documents.empty()) f(documents, unpacker.read_bytes());
    documents.clear();
    text.erase(0, text.size() - part.size() + std::min(begin, part.size()));
  }
}

void read_rows(const MappedFile& file, const std::string& column, const DocumentSink& f) {
  std::vector<RawDocument> documents;
  const auto hand_out = [&](std::span<const std::string_view> texts) {
    documents.clear();
    for (const std::string_view text : texts) documents.push_back({text, 0});
    f(documents, 0);
  };
  with_place<DataError>(file.path(), [&] { read_parquet_texts(file.bytes(), column, hand_out); });
}

// The first line that is not blank.
std::string_view first_line(std::string_view text) {
  text = without_byte_order_mark(text);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text.substr(0, text.find('\n'));
}

// Whether it is a JSON object with this key.
bool starts_with_object(std::string_view text, const std::string& key) {
  const std::string_view line = first_line(text);
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
  const std::string_view line = first_line(text);
  const bool is_json = line.starts_with('{') || line.starts_with('[');
  if (is_json && has_suffix(unpacked_name(path), {".json", ".jsonl", ".ndjson"})) {
    return fmt::format("its first line is no JSON object that has '{}'", key);
  }
  if (has_suffix(unpacked_name(path), {".csv", ".tsv"})) {
    return "it is named as a table, of which each row may be a text: write these as lines of JSON (*.jsonl)";
  }
  return why_no_text(std::as_bytes(std::span(text.substr(0, kSample))));
}

std::string read_documents(const std::string& path, const std::string& field, const DocumentSink& f) {
  const MappedFile file = map_file<DataError>(path);
  if (has_suffix(path, {".parquet"}) || file.text().starts_with("PAR1")) {
    read_rows(file, field, f);
    return "";
  }
  Unpacker unpacker = Unpacker::open(file);
  std::string start;
  const std::string_view name = unpacked_name(path);
  if (has_suffix(name, {".json"})) {  // it takes the whole first line to tell
    while (unpacker.append_to(start) && first_line(start).starts_with('{') && start.ends_with(first_line(start))) {
    }
  }
  if (has_suffix(name, {".jsonl", ".ndjson"}) || starts_with_object(start, field)) {
    read_lines(unpacker, std::move(start), f);
    return "";
  }
  const TextFile whole(path);
  const RawDocument document{whole.text(), 0};
  f({&document, 1}, file.bytes().size());
  return why_no_single_text(path, whole.text(), field);
}

}  // namespace mantissa
