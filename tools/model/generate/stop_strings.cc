#include "tools/model/generate/stop_strings.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace mantissa {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) { std::erase(strings_, ""); }

std::string StopStrings::add(const std::string& piece) {
  if (found_) return "";
  held_ += piece;
  size_t certain = held_.size();
  for (const std::string& stop : strings_) {
    if (const size_t at = held_.find(stop); at != std::string::npos) {
      certain = std::min(certain, at);
      found_ = true;
    }
  }
  if (found_) {
    std::string text = held_.substr(0, certain);
    held_.clear();
    return text;
  }
  // The longest end of the text that could begin a stop string.
  for (const std::string& stop : strings_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > 0; --length) {
      if (!std::string_view(held_).ends_with(std::string_view(stop).substr(0, length))) continue;
      certain = std::min(certain, held_.size() - length);
      break;
    }
  }
  std::string text = held_.substr(0, certain);
  held_.erase(0, certain);
  return text;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace mantissa
