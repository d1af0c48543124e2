#include "tools/lab/report/output_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "tools/config/config.h"

namespace mantissa {
namespace {

TEST(OutputFiles, ReplaceNoDataOfAFolderAndNoRun) {
  const std::string folder = ::testing::TempDir() + "/outputs";
  for (const char* name : {"/text", "/run"}) std::filesystem::create_directories(folder + name);
  for (const char* name : {"/text/a.txt", "/run/config.yaml"}) std::ofstream(folder + name) << "text";
  Config config;
  config.data.train = {folder + "/text"};
  const auto refusal = [&](const std::string& output) {
    try {
      require_different_files({{"--json", folder + output}}, files_read(folder + "/run", config));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal("/text/a.txt"), "");
  EXPECT_NE(refusal("/text/b.json").find("expected a file outside the folder"), std::string::npos);
  EXPECT_NE(refusal("/run/config.yaml").find("expected two files, got one"), std::string::npos);
  EXPECT_EQ(refusal("/run/a.json"), "");
  EXPECT_EQ(refusal("/text.json"), "");
}

}  // namespace
}  // namespace mantissa
