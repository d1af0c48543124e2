// ProbeRows: reads a probe file's columns, by row.
#pragma once

#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "tools/probe/probe_log.h"

namespace mantissa::testing {

class ProbeRows {
 public:
  explicit ProbeRows(const std::string& path) : database_(open_probes(path)) {}

  int64_t rows() const { return std::get<int64_t>(database_.value("SELECT count(*) FROM probes")); }
  std::vector<int64_t> integers(const std::string& column) const { return read<int64_t>(column, -1); }
  std::vector<double> reals(const std::string& column) const { return read<double>(column, NAN); }
  std::vector<std::string> texts(const std::string& column) const { return read<std::string>(column, ""); }
  std::vector<std::vector<std::byte>> bytes(const std::string& column) const {
    return read<std::vector<std::byte>>(column, {});
  }

 private:
  // `none` stands for NULL.
  template <typename T>
  std::vector<T> read(const std::string& column, const T& none) const {
    auto query = database_.prepare("SELECT " + column + " FROM probes ORDER BY rowid");
    std::vector<T> values;
    while (query.step()) {
      const DatabaseValue value = query.at(0);
      values.push_back(std::holds_alternative<std::monostate>(value) ? none : std::get<T>(value));
    }
    return values;
  }

  Database database_;
};

}  // namespace mantissa::testing
