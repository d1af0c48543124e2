// NCCL as it is installed here: every function is there. Nothing of it is called that needs a GPU.
#include "comm/nccl/nccl_library.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace mantissa {
namespace {

TEST(NcclLibrary, GivesAllFunctions) {
  const NcclApi api = load_nccl();
  const int version = nccl_version(api);
  EXPECT_GE(version, kOldestNccl);
  EXPECT_EQ(version >= 22800, api.all_to_all != nullptr);
  EXPECT_EQ(version >= 21900, api.comm_register != nullptr);
  EXPECT_EQ(version >= 21900, api.comm_deregister != nullptr);
  EXPECT_NE(api.comm_init_rank_config, nullptr);
  EXPECT_NE(api.recv, nullptr);
  EXPECT_STREQ(api.get_error_string(ncclSuccess), "no error");
  EXPECT_EQ(api.comm_abort(nullptr), ncclSuccess);
}

TEST(NcclLibrary, WritesVersionsAsPeopleDo) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(23203), "2.32.3");
  EXPECT_EQ(nccl_version_text(21400), "2.14.0");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

void expect_refusal(const std::string& file, const std::string& reason) {
  try {
    load_nccl(file);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("comm.backend: nccl: " + file), std::string::npos) << text;
    EXPECT_NE(text.find(reason), std::string::npos) << text;
    EXPECT_NE(text.find("comm.backend: mpi works without it"), std::string::npos) << text;
  }
}

TEST(NcclLibrary, SaysWhyItCannotBeUsed) {
  expect_refusal("libthere_is_no_such_thing.so.9", "No such file or directory");
  expect_refusal("libm.so.6", "has no function ncclGetVersion");
}

}  // namespace
}  // namespace mantissa
