// Strings that end a text, found as the text grows.
#pragma once

#include <string>
#include <vector>

namespace mantissa {

class StopStrings {
 public:
  // Empty ones are left out.
  explicit StopStrings(std::vector<std::string> strings);

  // Appends a piece of text. Returns the text that is certain to stand before every stop string: a stop string may
  // start in one piece and end in a later piece. After a stop string, nothing.
  std::string add(const std::string& piece);
  // The text that add() has held back, where the text ends without a stop string.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace mantissa
