#include "tools/analyze/page/model_page.h"

#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "tools/analyze/page/model_page_sources.h"

namespace mantissa {
namespace {

// JSON that can stand in a script element: without "<" nothing in it closes the element or opens a comment.
std::string embedded(const nlohmann::json& analysis) {
  const std::string text = analysis.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      result += "\\u003c";
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

std::string model_page(const nlohmann::json& analysis) {
  const std::string figures = embedded(analysis);
  const std::pair<std::string_view, std::string_view> parts[] = {
      {"{{style}}", kPageCss}, {"{{analysis}}", figures}, {"{{script}}", kPageScript}};
  std::string page;
  std::string_view rest = kPageHtml;  // what is put in is not searched again
  for (const auto& [place, text] : parts) {
    const size_t at = rest.find(place);
    MANTISSA_CHECK(at != std::string_view::npos,
                   "[model_page] model_page.html must hold {} behind the places before it", place);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + place.size());
  }
  return page.append(rest);
}

}  // namespace mantissa
