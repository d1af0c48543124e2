#include "core/io/files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

using Kind = PendingOutput::Kind;
using testing::TempFolder;

TEST(PendingOutput, AppearsWhenItIsFinished) {
  const TempFolder folder;
  const std::string name = folder.file("deep/new");
  {
    PendingOutput output(Kind::kFolder, name + "/");
    EXPECT_EQ(output.partial(), name + ".mantissa-partial");
    EXPECT_TRUE(fs::is_directory(output.partial()));
    EXPECT_FALSE(fs::exists(name));
    output.finish();
  }
  EXPECT_TRUE(fs::is_directory(name));
  PendingOutput(Kind::kFolder, name).finish();  // takes the place of an empty folder
  EXPECT_TRUE(fs::is_directory(name));
  EXPECT_FALSE(fs::exists(name + ".mantissa-partial"));
}

TEST(PendingOutput, LeavesNothingWithoutThat) {
  const TempFolder folder;
  for (const Kind kind : {Kind::kFolder, Kind::kFile}) {
    folder.write("x.mantissa-partial", "the rest of a program that was killed");
    {
      const PendingOutput output(kind, folder.file("x"));
      EXPECT_EQ(fs::exists(output.partial()), kind == Kind::kFolder);
      if (kind == Kind::kFile) folder.write("x.mantissa-partial", "half");
    }
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
  PendingOutput output(Kind::kFile, folder.file("x"));
  folder.write("x.mantissa-partial", "whole");
  output.finish();
  EXPECT_EQ(fs::file_size(folder.file("x")), 5u);
}

TEST(PendingOutput, RefusesWhatIsThereAndWhatCannotBe) {
  const TempFolder folder;
  const std::string file = folder.write("file", "");
  fs::create_directory(folder.file("empty"));
  const auto message = [](Kind kind, const std::string& name) {
    return testing::message_of<ConfigError>([&] { const PendingOutput output(kind, name); });
  };
  EXPECT_EQ(message(Kind::kFolder, ""), "--out: expected a name, got an empty text");
  const std::string there = ": already exists; give another name, or remove it";
  EXPECT_EQ(message(Kind::kFolder, file), file + there);
  EXPECT_EQ(message(Kind::kFile, file), file + there);
  EXPECT_EQ(message(Kind::kFolder, folder.path()), folder.path() + there);
  EXPECT_EQ(message(Kind::kFile, folder.file("empty")), folder.file("empty") + there);
  EXPECT_EQ(message(Kind::kFolder, file + "/x"), file + "/x: it cannot be made: Not a directory");
}

}  // namespace
}  // namespace mantissa
