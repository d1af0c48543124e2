#include "tools/run/report/report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "tests/testing/error_of.h"
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

TEST(OutputFiles, AreNotReadFromAFolder) {
  const std::string folder = ::testing::TempDir() + "/figures";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(testing::error_of([&] { read_figures(folder, "`compare`"); }),
            folder + ": expected a file that `compare` wrote with --json, got a folder");
  std::ofstream(folder + "/a.json") << "[1]";
  EXPECT_EQ(read_figures(folder + "/a.json").size(), 1u);
}

}  // namespace
}  // namespace mantissa
