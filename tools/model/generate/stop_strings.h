// Strings that end a text, found as the text grows.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mantissa {

class StopStrings {
 public:
  // Empty ones are left out.
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) { std::erase(strings_, ""); }

  // Appends a piece of text. Returns the text that is certain to stand before every stop string: a stop string may
  // start in one piece and end in a later piece. After a stop string, nothing.
  std::string add(const std::string& piece) {
    if (found_) return "";
    held_ += piece;
    size_t certain = held_.size();
    for (const std::string& stop : strings_) {
      const size_t at = held_.find(stop);
      found_ |= at != std::string::npos;
      certain = std::min(certain, at);
    }
    for (const std::string& stop : strings_) {  // the longest end of the text that could begin a stop string
      size_t length = found_ ? 0 : std::min(stop.size() - 1, held_.size());
      while (!held_.ends_with(std::string_view(stop).substr(0, length))) --length;
      certain = std::min(certain, held_.size() - length);
    }
    std::string text = held_.substr(0, certain);
    held_.erase(0, found_ ? held_.size() : certain);
    return text;
  }
  // The text that add() has held back, where the text ends without a stop string.
  std::string finish() { return std::exchange(held_, {}); }
  bool found() const { return found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace mantissa
