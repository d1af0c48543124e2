// Text in a record that travels as bytes: a fixed number of characters, ended by a zero.
#pragma once

#include <cstddef>
#include <string_view>

namespace mantissa {

// Copies the text if it fits with its final zero. Else copies as much as fits, with "..." as its end, so that the cut
// is visible. `to` must hold zeros.
template <size_t N>
void copy_text(std::string_view text, char (&to)[N]) {
  constexpr std::string_view kCut = "...";
  constexpr size_t kRoom = N - 1;
  static_assert(kRoom > kCut.size());
  const bool fits = text.size() <= kRoom;
  text.copy(to, fits ? text.size() : kRoom - kCut.size());
  if (!fits) kCut.copy(to + kRoom - kCut.size(), kCut.size());
}

}  // namespace mantissa
