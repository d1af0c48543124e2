#include "tools/lab/analyze/page/model_page.h"

#include <nlohmann/json.hpp>

#include "tools/lab/analyze/page/model_page_sources.h"

namespace mantissa {

std::string model_page(const nlohmann::json& analysis) { return page_document(kModelPage, analysis); }

}  // namespace mantissa
