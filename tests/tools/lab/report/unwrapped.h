// Texts of reports as tests search them.
#pragma once

#include <sstream>
#include <string>

namespace mantissa::testing {

// All words with one space between them, wherever the lines of a report break.
inline std::string unwrapped(const std::string& text) {
  std::istringstream words(text);
  std::string line, word;
  while (words >> word) line += (line.empty() ? "" : " ") + word;
  return line;
}

}  // namespace mantissa::testing
