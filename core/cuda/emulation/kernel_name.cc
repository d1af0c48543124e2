#include "core/cuda/emulation/kernel_name.h"

#include <fmt/core.h>

#include <algorithm>

namespace mantissa::cuda::emulation {
namespace {

// Removes "<...>" and all but the last part of qualified names.
std::string shortened(const std::string& types) {
  std::string result;
  size_t name_begins = 0;
  int depth = 0;
  for (size_t i = 0; i < types.size(); ++i) {
    const char c = types[i];
    if (c == '<') ++depth;
    if (depth == 0) {
      if (types.compare(i, 2, "::") == 0) {
        result.resize(name_begins);
        ++i;
        continue;
      }
      result += c;
      if (c == ' ' || c == ',') name_begins = result.size();
    }
    if (c == '>') --depth;
  }
  return result;
}

}  // namespace

std::string kernel_name_from(const Site& site, const std::string& function) {
  const std::string before = "Parameters = {";
  const size_t begin = function.find(before) + before.size();
  const size_t end = std::min(function.find("};", begin), function.find("}]", begin));
  return fmt::format("{}:{} ({})", site.file, site.line, shortened(function.substr(begin, end - begin)));
}

}  // namespace mantissa::cuda::emulation
