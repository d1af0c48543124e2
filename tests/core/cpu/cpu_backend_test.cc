#include <gtest/gtest.h>

#include <algorithm>

#include "core/backend/registry.h"

namespace mantissa {
namespace {

TEST(CpuBackend, IsRegisteredByLinkingIt) {
  const std::vector<std::string> names = backend_names();
  EXPECT_NE(std::find(names.begin(), names.end(), "cpu"), names.end());
  const auto backend = create_backend("cpu");
  EXPECT_EQ(backend->device(), Device{});
  for (const char* part : {"cpu: ", " thread(s), ", "oneDNN "}) {
    EXPECT_NE(backend->describe().find(part), std::string::npos) << backend->describe();
  }
}

}  // namespace
}  // namespace mantissa
