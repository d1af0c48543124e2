#include "tools/lab/analyze/analyze_verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>

#include "core/autograd/precision.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "core/quant/exponent_histogram.h"

namespace mantissa {
namespace {

std::string file_of(const std::string& run) {
  std::string path = std::filesystem::is_directory(run) ? run + "/probes.mtp" : run;
  if (std::filesystem::is_regular_file(path)) return path;
  throw DataError(fmt::format("{}: expected a probe file, which a run with probe.enabled=true writes: {}", path,
                              std::filesystem::exists(path) ? "this is no file" : "it does not exist"));
}

std::optional<Format> parse_format(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::vector<std::string_view> known;
  for (const Format format : kAllFormats) {
    if (info(format).name == text) return format;
    known.push_back(info(format).name);
  }
  throw ConfigError(fmt::format("--format: expected one of {}, got '{}'", fmt::join(known, ", "), text));
}

// As in comma-separated values. Numbers get as few digits as they need: most were stored from fp32.
std::string to_text(const DatabaseValue& value) {
  if (const auto* const integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* const real = std::get_if<double>(&value)) {
    const auto single = static_cast<float>(*real);
    return static_cast<double>(single) == *real ? fmt::format("{}", single) : fmt::format("{}", *real);
  }
  if (const auto* const bytes = std::get_if<std::vector<std::byte>>(&value)) {
    std::string text;
    for (const std::byte byte : *bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
    return text;
  }
  const auto* const stored = std::get_if<std::string>(&value);
  if (stored == nullptr) return "";
  if (stored->find_first_of(",\"\n") == std::string::npos) return *stored;
  std::string quoted = "\"";
  for (const char c : *stored) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

void print_line(const std::vector<std::string>& values) {
  const std::string line = fmt::format("{}\n", fmt::join(values, ","));
  std::fwrite(line.data(), 1, line.size(), stdout);
}

void print_query(const Database& probes, const std::string& sql) {
  std::optional<Database::Statement> query;
  try {
    query.emplace(probes.prepare(sql));
  } catch (const DataError& error) {
    std::vector<const char*> columns;
    for (const ProbeColumn& column : kProbeColumns) columns.push_back(column.name);
    throw ConfigError(
        fmt::format("--sql: {}; the table is probes, its columns are {}", error.what(), fmt::join(columns, ", ")));
  }
  require<ConfigError>(query->is_query(), "--sql: expected a query, which changes nothing, got '{}'", sql);
  const std::vector<std::string> names = query->columns();
  print_line(names);
  while (query->step()) {
    std::vector<std::string> line;
    for (size_t i = 0; i < names.size(); ++i) line.push_back(to_text(query->at(static_cast<int>(i))));
    print_line(line);
  }
}

// Prints rows with all columns except the histogram, which the losses of `format` replace.
void print_rows(const Database& probes, const ProbesRequest& request) {
  const auto format = parse_format(request.format);
  std::vector<std::string> names, values;
  for (const ProbeColumn& column : kProbeColumns) {
    const std::string_view type = column.type;
    if (type == "BLOB") continue;
    names.emplace_back(column.name);
    values.push_back(fmt::format("ifnull({}, {})", column.name, type == "REAL" ? "'nan'" : "-1"));
  }
  const int columns = static_cast<int>(names.size());
  if (format) {
    for (const char* const loss : {"underflowed", "subnormal", "overflowed"}) {
      names.push_back(fmt::format("{}_{}", info(*format).name, loss));
    }
  }
  print_line(names);
  auto query =
      probes.prepare(fmt::format("SELECT {}, histogram FROM probes WHERE ?1 IN (0, step) AND ?2 IN ('', role) AND "
                                 "instr(tensor, ?3) > 0 ORDER BY rowid",
                                 fmt::join(values, ", ")));
  query.bind({request.step, request.role, request.tensor});
  while (query.step()) {
    std::vector<std::string> line;
    line.reserve(static_cast<size_t>(columns) + 1);
    for (int i = 0; i < columns; ++i) line.push_back(to_text(query.at(i)));
    if (format) {
      const DatabaseValue value = query.at(columns);
      const auto* const code = std::get_if<std::vector<std::byte>>(&value);
      const FormatLosses losses =
          code != nullptr ? format_losses(decode_histogram(*code), *format, request.exponent) : FormatLosses();
      for (const int64_t loss : {losses.underflowed, losses.subnormal, losses.overflowed}) {
        line.push_back(fmt::format("{}", loss));
      }
    }
    print_line(line);
  }
}

}  // namespace

int probes_verb(const ProbesRequest& request) {
  return run_reported([&] {
    std::vector<std::string> roles(std::begin(probe_role::kAll), std::end(probe_role::kAll));
    for (const Product product : kAllProducts) roles.emplace_back(name(product));
    // A known role without rows, such as `wire` on one rank, is no error.
    require<ConfigError>(request.role.empty() || std::ranges::count(roles, request.role) > 0,
                         "--role: expected one of {}, got '{}'", fmt::join(roles, ", "), request.role);
    const Database probes = open_probes(file_of(request.run));
    if (!request.sql.empty()) return print_query(probes, request.sql);
    print_rows(probes, request);
  });
}

}  // namespace mantissa
