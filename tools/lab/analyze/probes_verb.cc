#include "tools/lab/analyze/probes_verb.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "core/autograd/linear_formats.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/run_reported.h"
#include "core/io/probe_file.h"
#include "core/quant/format_losses.h"
#include "core/quant/histogram_code.h"
#include "tools/probe/probe_row.h"

namespace mantissa {
namespace {

std::string file_of(const std::string& run) {
  const std::string path = std::filesystem::is_directory(run) ? run + "/probes.mtp" : run;
  if (std::filesystem::is_regular_file(path)) return path;
  throw DataError(fmt::format("{}: expected a probe file, as a run with probe.enabled=true leaves in its folder: {}",
                              path, std::filesystem::exists(path) ? "this is no file" : "there is none"));
}

// A role that the file merely has no rows of (no wire on one rank) is none that is written wrongly.
void require_role(const std::string& role) {
  std::vector<std::string> known(std::begin(probe_role::kAll), std::end(probe_role::kAll));
  for (const Product product : kAllProducts) known.emplace_back(name(product));
  if (role.empty() || std::find(known.begin(), known.end(), role) != known.end()) return;
  throw ConfigError(fmt::format("--role: expected one of {}, got '{}'", fmt::join(known, ", "), role));
}

ProbeFile open_probes(const std::string& run) {
  const std::string path = file_of(run);
  try {
    return ProbeFile(path);
  } catch (const std::system_error& error) {
    throw DataError(fmt::format("{}: expected a probe file that can be read: {}", path, error.code().message()));
  }
}

std::optional<Format> parse_format(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::string known;
  for (const Format format : kAllFormats) {
    if (info(format).name == text) return format;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info(format).name);
  }
  throw ConfigError(fmt::format("--format: expected one of {}, got '{}'", known, text));
}

// The columns of a file as text, by row. Of histograms only what was asked for is told.
struct Table {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> columns;

  void add(const std::string& name, std::vector<std::string> values) {
    names.push_back(name);
    columns.push_back(std::move(values));
  }
};

template <typename T>
std::vector<std::string> texts_of(const std::vector<T>& values) {
  std::vector<std::string> texts;
  for (const T& value : values) texts.push_back(fmt::format("{}", value));
  return texts;
}

void add_losses(const ProbeFile& file, Format format, int exponent, Table& table) {
  std::vector<std::string> zeros, subnormal, overflowed;
  for (const auto& code : file.bytes("histogram")) {
    const FormatLosses losses = code.empty() ? FormatLosses() : format_losses(decode_histogram(code), format, exponent);
    zeros.push_back(fmt::format("{}", losses.underflowed));
    subnormal.push_back(fmt::format("{}", losses.subnormal));
    overflowed.push_back(fmt::format("{}", losses.overflowed));
  }
  table.add(fmt::format("{}_underflowed", info(format).name), std::move(zeros));
  table.add(fmt::format("{}_subnormal", info(format).name), std::move(subnormal));
  table.add(fmt::format("{}_overflowed", info(format).name), std::move(overflowed));
}

Table read(const ProbeFile& file, const ProbesRequest& request) {
  Table table;
  for (const ProbeColumn& column : file.columns()) {
    switch (column.type) {
      case ProbeType::kF32:
        table.add(column.name, texts_of(file.floats(column.name)));
        break;
      case ProbeType::kI64:
        table.add(column.name, texts_of(file.integers(column.name)));
        break;
      case ProbeType::kText:
        table.add(column.name, file.texts(column.name));
        break;
      case ProbeType::kBytes:
        break;
    }
  }
  if (const auto format = parse_format(request.format)) add_losses(file, *format, request.exponent, table);
  return table;
}

void print(const ProbesRequest& request) {
  require_role(request.role);
  const ProbeFile file = open_probes(request.run);
  if (!file.note().empty()) log_info("{}", file.note());
  const Table table = read(file, request);
  const auto steps = file.integers("step");
  const auto roles = file.texts("role"), tensors = file.texts("tensor");
  std::string text = fmt::format("{}\n", fmt::join(table.names, ","));
  for (size_t row = 0; row < steps.size(); ++row) {
    const bool is_wanted = (request.step == 0 || steps[row] == request.step) &&
                           (request.role.empty() || roles[row] == request.role) &&
                           tensors[row].find(request.tensor) != std::string::npos;
    if (!is_wanted) continue;
    for (size_t column = 0; column < table.columns.size(); ++column) {
      text += (column == 0 ? "" : ",") + table.columns[column][row];
    }
    text += '\n';
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

int probes_verb(const ProbesRequest& request) {
  return run_reported([&] { print(request); });
}

}  // namespace mantissa
