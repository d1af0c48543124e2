// Report texts in the form that tests search.
#pragma once

#include <sstream>
#include <string>

namespace mantissa::testing {

// All words separated by one space, wherever a report's lines break.
inline std::string unwrapped(const std::string& text) {
  std::istringstream words(text);
  std::string line, word;
  while (words >> word) line += (line.empty() ? "" : " ") + word;
  return line;
}

}  // namespace mantissa::testing
