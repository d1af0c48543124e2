// Reports: figures as JSON, and a text and a page that are views of them.
//
// A verb describes its findings once, in a to_json(). Its text and its HTML page are views of that JSON: a table of the
// text names the figures to print by their keys, so no view shows a figure that programs cannot get.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "core/base/wrapped_text.h"
#include "tools/run/state/optional_json.h"

// "{}" and "{:.3g}" for a figure: a text as it is, a number by its format, "-" if it is missing or NaN.
template <>
struct fmt::formatter<nlohmann::json> {
  std::string_view specification{};

  constexpr auto parse(format_parse_context& context) {
    auto end = context.begin();
    while (end != context.end() && *end != '}') ++end;
    specification = {context.begin(), static_cast<size_t>(end - context.begin())};
    return end;
  }
  fmt::appender format(const nlohmann::json& figure, format_context& context) const;
};

namespace mantissa {

struct Config;
struct ModelConfig;

using Json = nlohmann::json;

// The number as a double; NaN if there is none.
double number_of(const Json& value);
// A share of a count; null where the count is 0.
Json share_of(int64_t part, int64_t whole);

// "gpt: 4 layers, width 320, context 256".
std::string describe_model(const ModelConfig& model);

// The settings that identify a training, whatever its precision and length: "model.width": "128". Figures of verbs
// carry them as "training", so that different trainings are not mixed.
Json training_settings(const Config& config);

// The settings of the tokens in a validation loss. Losses of runs with other values cannot be ranked.
std::map<std::string, std::string> loss_settings(const Config& config);

// How a table's column prints a value.
using CellText = std::function<std::string(const Json&)>;
// By a format as above, after multiplication by `unit`.
CellText in_format(std::string format, double unit = 1.0);
// A share in per cent, with three significant digits.
std::string per_cent(const Json& share);
// The mean of {mean, low, high} with its range: "1.25 (1.20 to 1.30)".
CellText with_range(std::string format, double unit = 1.0);
// The mean of {mean, interval: {low, high} or null} and half of the interval in two digits: "0.0003 ±0.0017", "0.33259
// ±2.7e-07", "1.3e-08 ±6.4e-08". `sign` as in formats: "+" also shows that of positive means.
CellText with_error(std::string sign = "");

struct Column {
  std::string heading;  // each '\n' begins another line of it
  std::string key;      // of the figure in a row: "amax", "range/max"; empty: the row itself
  CellText text = in_format("{}");
};

// Prints to standard output at once.
void print(const std::string& text);

// Text of at most kWidth columns, unless a single name is longer.
class ReportText {
 public:
  static constexpr size_t kWidth = kTextColumns;

  // Lines, wrapped between words; what follows a break is indented.
  ReportText& paragraph(std::string_view text);
  template <typename... Args>
  ReportText& line(fmt::format_string<Args...> format, Args&&... args) {
    return paragraph(fmt::format(format, std::forward<Args>(args)...));
  }
  ReportText& blank_line() { return paragraph(""); }
  // One row for each element of an array. The first column is aligned to the left, the others to the right. Columns
  // that do not fit follow below, with the first column repeated. Without any heading the table has no line for them.
  ReportText& table(const Json& rows, const std::vector<Column>& columns);

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// A page: an HTML file with style, script and figures in it, which loads nothing. `script` follows the shared scripts
// of all pages (page/*.js). Text in the figures stays text; bytes outside UTF-8 become U+FFFD.
std::string page_document(std::string_view script, const Json& figures);

// ---- Files

// A file that a verb writes a report to.
//
// Opened before anything is computed, so a path that cannot be written fails at once. It replaces an older file only
// when it is complete. Anything but a regular file (/dev/stdout, a pipe) is written in place.
class OutputFile {
 public:
  // `option` has static storage and names the file in errors: "--json". An empty path means no file: write() does
  // nothing. ConfigError for a folder and for a path that cannot be written.
  OutputFile(const char* option, const std::string& path);
  ~OutputFile();

  bool is_wanted() const { return !path_.empty(); }
  // At most once. ConfigError if the file cannot be written completely.
  void write(const std::string& text);
  // Indented, with a final line feed. NaN and Inf become null; bytes that are not UTF-8, as of paths, become U+FFFD.
  void write(const nlohmann::json& figures);

 private:
  bool replaces_older() const { return temporary_path_ != path_; }

  const char* option_;
  const std::string path_;
  std::string temporary_path_;
  std::ofstream file_;
};

// Figures that `writer`, named in errors, wrote with --json. ConfigError if the file cannot be read or is no JSON.
nlohmann::json read_figures(const std::string& path, const std::string& writer = "a verb");

// Names of folders: the last parts of their paths, as many as distinguish them.
std::vector<std::string> short_names(const std::vector<std::string>& folders);

struct NamedFile {
  std::string name;  // in errors: "--json"
  std::string path;  // empty: none
};

// The files that a verb reads: the configuration, in a run folder if `path` is a folder, and the data named in it.
// Folders stand for their files. DataError as in_folders().
std::vector<NamedFile> files_read(const std::string& path, const Config& config);

// ConfigError if an output file is also another output or an input, or would lie in a folder of inputs, however the
// paths are written. Several outputs may share something that is not a regular file (/dev/stdout).
void require_different_files(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);

}  // namespace mantissa
