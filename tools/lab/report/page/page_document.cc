#include "tools/lab/report/page/page_document.h"

#include <nlohmann/json.hpp>

#include <utility>

#include "core/base/check.h"

namespace mantissa {
namespace {

// JSON that can stand in a script element: without "<" nothing in it closes the element or opens a comment.
std::string embedded(const nlohmann::json& figures) {
  const std::string text = figures.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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

std::string page_document(const PageSources& sources, const nlohmann::json& figures) {
  const std::string data = embedded(figures);
  const std::pair<std::string_view, std::string_view> parts[] = {
      {"{{style}}", sources.style}, {"{{figures}}", data}, {"{{script}}", sources.script}};
  std::string page;
  std::string_view rest = sources.html;  // what is put in is not searched again
  for (const auto& [place, text] : parts) {
    const size_t at = rest.find(place);
    MANTISSA_CHECK(at != std::string_view::npos,
                   "[page_document] the page's HTML must hold {} behind the places before it", place);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + place.size());
  }
  return page.append(rest);
}

}  // namespace mantissa
