// The texts that the page is put together from.
#pragma once

#include "tools/lab/report/page/page_document.h"

namespace mantissa {

extern const PageSources kComparisonPage;

}  // namespace mantissa
