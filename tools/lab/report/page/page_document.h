// A page of figures: one HTML file with style, script and data in it, which loads nothing from elsewhere.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace mantissa {

// What a page is put together from; written by embed.sh at build time.
struct PageSources {
  std::string_view html{};  // with {{style}}, {{figures}} and {{script}}, each once, in this order
  std::string_view style{};
  std::string_view script{};
};

// A complete document, UTF-8. `figures` stand in it as JSON, for the script to read. Text stays text whatever is in it;
// bytes that are no UTF-8 become U+FFFD.
std::string page_document(const PageSources& sources, const nlohmann::json& figures);

}  // namespace mantissa
