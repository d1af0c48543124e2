#include "tools/run/report/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/io/files.h"
#include "tools/config/config.h"
#include "tools/config/config_binding.h"
#include "tools/config/data_paths.h"

fmt::appender fmt::formatter<nlohmann::json>::format(const nlohmann::json& figure, format_context& context) const {
  const double number = mantissa::number_of(figure);
  if (figure.is_string()) return fmt::format_to(context.out(), "{}", figure.get<std::string>());
  if (figure.is_number_integer() && specification.empty()) return fmt::format_to(context.out(), "{}", figure.dump());
  if (std::isnan(number)) return fmt::format_to(context.out(), "-");
  return fmt::format_to(context.out(), fmt::runtime(fmt::format("{{:{}}}", specification)), number);
}

namespace mantissa {

extern const std::string_view kPageHtml, kPageStyle, kPageScript;  // written by embedded_text()

namespace {

using Cells = std::vector<std::string>;

Cells split(std::string_view text, char separator) {
  Cells parts;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
  }
  return parts;
}

const Json& at_key(const Json& row, const std::string& key) {
  static const Json kMissing;
  if (key.empty()) return row;
  const Json::json_pointer place("/" + key);
  return row.contains(place) ? row.at(place) : kMissing;
}

// The lines of one column from top to bottom, its heading first.
Cells cells_of(const Column& column, size_t heading_lines, const Json& rows) {
  Cells cells;
  if (heading_lines > 0) cells = split(column.heading, '\n');
  cells.insert(cells.begin(), heading_lines - cells.size(), "");
  for (const Json& row : rows) cells.push_back(column.text(at_key(row, column.key)));
  return cells;
}

void add_block(std::span<const Cells* const> columns, std::span<const size_t> widths, std::string& text) {
  for (size_t row = 0; row < columns.front()->size(); ++row) {
    std::string line;
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string& cell = (*columns[i])[row];
      const std::string padding(widths[i] - columns_of(cell), ' ');
      line += "  " + (i == 0 ? cell + padding : padding + cell);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
}

}  // namespace

double number_of(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

Json share_of(int64_t part, int64_t whole) {
  return whole <= 0 ? Json() : Json(static_cast<double>(part) / static_cast<double>(whole));
}

std::string describe_model(const ModelConfig& model) {
  return fmt::format("{}: {}, width {}, context {}", model.name, counted(model.layers, "layer"), model.width,
                     model.context);
}

Json training_settings(const Config& config) {
  constexpr std::string_view kOfPrecision[] = {"optimizer.first_moment", "optimizer.second_moment", "optimizer.master",
                                               "optimizer.weight_rounding", "optimizer.sharding"};
  Json settings = Json::object();
  for (const auto& [path, value] : flatten(config)) {
    const bool shapes_training = path.starts_with("model.") || path.starts_with("data.") ||
                                 path.starts_with("optimizer.") || path == "train.global_batch";
    if (shapes_training && std::ranges::count(kOfPrecision, path) == 0) settings[path] = value;
  }
  return settings;
}

std::map<std::string, std::string> loss_settings(const Config& config) {
  std::set<std::string> paths = {"model.vocab", "data.format", "data.validation", "data.tokenizer", "data.packing"};
  if (config.data.sets_tail_aside()) paths.insert({"data.train", "data.validation_fraction"});
  if (config.data.packs_documents()) paths.insert("data.end_of_text");
  if (config.model.name == "encoder") paths.insert({"model.name", "data.mask_fraction", "data.mask_token"});
  auto settings = flatten(config);
  std::erase_if(settings, [&](const auto& setting) { return !paths.contains(setting.first); });
  return settings;
}

CellText in_format(std::string format, double unit) {
  return [format = std::move(format), unit](const Json& value) {
    return fmt::format(fmt::runtime(format), unit == 1.0 ? value : Json(unit * number_of(value)));
  };
}

std::string per_cent(const Json& share) { return in_format("{:.3g}", 100.0)(share); }

CellText with_range(std::string format, double unit) {
  return [text = in_format(std::move(format), unit)](const Json& value) {
    if (value.is_null()) return std::string("-");
    return fmt::format("{} ({} to {})", text(value.at("mean")), text(value.at("low")), text(value.at("high")));
  };
}

CellText with_error(std::string sign) {
  static constexpr int kUsualDecimals = 4, kMostDecimals = 5;
  static constexpr double kNone = 1e-9, kSmall = 1e-4;  // smaller ones have no two digits in kMostDecimals
  return [sign = std::move(sign)](const Json& value) {
    if (value.is_null()) return std::string("-");
    const Json& interval = value.at("interval");
    const double half =
        interval.is_null() ? 0.0 : (number_of(interval.at("high")) - number_of(interval.at("low"))) / 2.0;
    const int decimals = half >= kNone
                             ? std::clamp(1 - static_cast<int>(std::floor(std::log10(half))), 0, kMostDecimals)
                             : kUsualDecimals;
    const bool is_small = half >= kNone && half < kSmall;
    const std::string fixed = fmt::format(".{}f", decimals), of_error = is_small ? ".1e" : fixed;
    const std::string of_mean = is_small && std::abs(number_of(value.at("mean"))) < kSmall ? ".1e" : fixed;
    const std::string text = in_format("{:" + sign + of_mean + "}")(value.at("mean"));
    return interval.is_null() ? text : text + " ±" + in_format("{:" + of_error + "}")(half);
  };
}

ReportText& ReportText::paragraph(std::string_view text) {
  text_ += wrapped(text) + "\n";
  return *this;
}

ReportText& ReportText::table(const Json& rows, const std::vector<Column>& columns) {
  size_t heading_lines = 0;
  for (const Column& column : columns) {
    if (!column.heading.empty()) heading_lines = std::max(heading_lines, split(column.heading, '\n').size());
  }
  std::vector<Cells> cells;
  std::vector<size_t> widths;
  for (const Column& column : columns) {
    cells.push_back(cells_of(column, heading_lines, rows));
    widths.push_back(0);
    for (const std::string& cell : cells.back()) widths.back() = std::max(widths.back(), columns_of(cell));
  }
  for (size_t begin = 1, end = begin; begin < std::max<size_t>(2, columns.size()); begin = end) {
    std::vector<const Cells*> block = {&cells.front()};
    std::vector<size_t> block_widths = {widths.front()};
    size_t width = 2 + widths.front();
    for (; end < columns.size() && (end == begin || width + 2 + widths[end] <= kWidth); ++end) {
      width += 2 + widths[end];
      block.push_back(&cells[end]);
      block_widths.push_back(widths[end]);
    }
    if (begin > 1) text_ += "\n";
    add_block(block, block_widths, text_);
    if (columns.size() == 1) break;
  }
  return *this;
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string page_document(std::string_view script, const Json& figures) {
  std::string data;  // without "<" nothing in it closes the script element or opens a comment
  for (const char c : figures.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    c == '<' ? data += "\\u003c" : data += c;
  }
  const std::string scripts = std::string(kPageScript).append(script);
  std::string page;
  std::string_view rest = kPageHtml;  // inserted text is not searched again
  for (const auto& [place, text] : {std::pair<std::string_view, std::string_view>{"{{style}}", kPageStyle},
                                    {"{{figures}}", data},
                                    {"{{script}}", scripts}}) {
    const size_t at = rest.find(place);
    MANTISSA_CHECK(at != std::string_view::npos, "[page_document] expected {} in page.html", place);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + place.size());
  }
  return page.append(rest);
}

// ---- Files

OutputFile::OutputFile(const char* option, const std::string& path)
    : option_(option), path_(path), temporary_path_(path) {
  if (path.empty()) return;
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  require<ConfigError>(!std::filesystem::is_directory(status),
                       "{}: {}: expected a file that can be written, got a folder: name a file in it", option, path);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) {
    temporary_path_ += ".partial";
    std::filesystem::remove(temporary_path_, ignored);  // perhaps a link
  }
  file_.open(temporary_path_);
  if (!file_) throw ConfigError("{}: {}: expected a file that can be written", option, path);
}

OutputFile::~OutputFile() {
  if (std::error_code ignored; replaces_older()) std::filesystem::remove(temporary_path_, ignored);
}

void OutputFile::write(const std::string& text) {
  if (!is_wanted()) return;
  file_ << text;
  file_.close();
  std::error_code failed;
  if (file_ && replaces_older()) std::filesystem::rename(temporary_path_, path_, failed);
  if (!file_ || failed) throw ConfigError("{}: {}: could not be written completely", option_, path_);
  log_info("written: {}", path_);
}

void OutputFile::write(const nlohmann::json& figures) {
  if (is_wanted()) write(figures.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

nlohmann::json read_figures(const std::string& path, const std::string& writer) {
  require<ConfigError>(!is_folder(path), "{}: expected a file that {} wrote with --json, got a folder", path, writer);
  std::ifstream file(path);
  if (!file) throw ConfigError("{}: cannot be opened", path);
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError("{}: expected a file that {} wrote with --json: {}", path, writer, error.what());
  }
}

std::vector<std::string> short_names(const std::vector<std::string>& folders) {
  std::vector<std::filesystem::path> rest;
  for (const std::string& folder : folders) {
    const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
    rest.push_back(path.has_filename() ? path : path.parent_path());
  }
  std::vector<std::string> names(folders.size());
  bool is_more = true;
  do {
    for (size_t i = 0; i < names.size(); ++i) {
      names[i] = (names[i].empty() ? rest[i].filename() : rest[i].filename() / names[i]).string();
      rest[i] = rest[i].parent_path();
    }
    is_more = std::ranges::any_of(rest, [](const auto& path) { return path.has_filename(); });
  } while (is_more && std::set(names.begin(), names.end()).size() < names.size());
  return names;
}

std::vector<NamedFile> files_read(const std::string& path, const Config& config) {
  std::vector<NamedFile> files;
  if (const std::string file = configuration_file(path); !is_folder(file)) {
    files.push_back({"the configuration", file});
  }
  const auto add = [&](const std::string& setting, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (is_folder(name)) files.push_back({setting, name});
    }
    for (const std::string& pattern : in_folders(names, config.data.format)) {
      for (const std::string& file : expand_glob(pattern)) files.push_back({setting, file});
    }
  };
  for (const auto& [setting, names] : DataConfig::file_lists(config.data)) add(setting, *names);
  return files;
}

void require_different_files(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read) {
  const auto require_different = [&](const NamedFile& one, const NamedFile& other) {
    if (other.path.empty()) return;
    require<ConfigError>(!is_folder(other.path) || real_path(one.path).parent_path() != real_path(other.path),
                         "{} {}: expected a file outside the folder {}, whose files are all {}", one.name, one.path,
                         other.path, other.name);
    require<ConfigError>(real_path(one.path) != real_path(other.path),
                         "{} {} and {} {}: expected two files, got one: choose another path for {}", one.name, one.path,
                         other.name, other.path, one.name);
  };
  for (size_t i = 0; i < written.size(); ++i) {
    std::error_code ignored;
    if (written[i].path.empty() || std::filesystem::is_other(written[i].path, ignored)) continue;
    for (size_t j = i + 1; j < written.size(); ++j) require_different(written[i], written[j]);
    for (const NamedFile& input : read) require_different(written[i], input);
  }
}

}  // namespace mantissa
