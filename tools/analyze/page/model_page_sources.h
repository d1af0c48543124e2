// The texts that a page is put together from; written by embed.sh at build time.
#pragma once

#include <string_view>

namespace mantissa {

extern const std::string_view kPageHtml;  // with {{style}}, {{analysis}} and {{script}}, each once
extern const std::string_view kPageCss;
extern const std::string_view kPageScript;

}  // namespace mantissa
