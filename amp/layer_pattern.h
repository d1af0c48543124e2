// LayerPattern: which layers a precision override applies to.
//
// A layer path is a dotted name ("blocks.3.mlp.up"). A pattern is dotted likewise; within a component `*` stands for
// any run of characters and `?` for one; the component `**` stands for any number of components, none included. A
// pattern that matches a layer matches all layers below it: "blocks.0" covers "blocks.0.mlp.up".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

class LayerPattern {
 public:
  // Throws ConfigError if `text` is empty or has an empty component.
  explicit LayerPattern(std::string text);

  bool matches(std::string_view layer_path) const;
  // How specific the pattern is: its number of characters that are neither wildcards nor dots.
  int literal_length() const { return literal_length_; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::vector<std::string> components_;
  int literal_length_ = 0;
};

}  // namespace mantissa
