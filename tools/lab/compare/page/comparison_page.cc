#include "tools/lab/compare/page/comparison_page.h"

#include <nlohmann/json.hpp>

#include "tools/lab/compare/page/comparison_page_sources.h"

namespace mantissa {

std::string comparison_page(const nlohmann::json& comparison) { return page_document(kComparisonPage, comparison); }

}  // namespace mantissa
