#include "core/io/file_glob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FileGlob : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"b.txt", "a.txt", "c.h", ".hidden.txt", "x/d.txt", "x/y/e.txt", "x/y/f.h", "Z.txt"})
      folder_.write(name, "1");
    std::filesystem::create_directory_symlink(folder_.path(), folder_.file("x/loop"));
  }
  std::vector<std::string> names(const std::string& pattern) {
    std::vector<std::string> names = expand_glob(folder_.file(pattern));
    for (std::string& name : names) name = name.substr(folder_.path().size() + 1);
    return names;
  }
  testing::TempFolder folder_;
};

TEST_F(FileGlob, MatchesWithinAFolderInByteOrder) {
  EXPECT_THAT(names("*.txt"), ElementsAre("Z.txt", "a.txt", "b.txt"));
  EXPECT_THAT(names("?.h"), ElementsAre("c.h"));
  EXPECT_THAT(names("[ab].txt"), ElementsAre("a.txt", "b.txt"));
  EXPECT_THAT(names("*/d.txt"), ElementsAre("x/d.txt"));
  EXPECT_THAT(names(".*.txt"), ElementsAre(".hidden.txt"));
}

TEST_F(FileGlob, DoubleStarCrossesFoldersAndSkipsLinksAndFolders) {
  EXPECT_THAT(names("**/*.txt"), ElementsAre("Z.txt", "a.txt", "b.txt", "x/d.txt", "x/y/e.txt"));
  EXPECT_THAT(names("x/**/*.h"), ElementsAre("x/y/f.h"));
  EXPECT_THAT(names("x/*"), ElementsAre("x/d.txt"));
}

TEST_F(FileGlob, WithoutWildcardsTheNameIsTheAnswer) {
  EXPECT_THAT(names("nothing.txt"), ElementsAre("nothing.txt"));
  EXPECT_THAT(names("*.nothing"), IsEmpty());
  EXPECT_THAT(names("nothing/*"), IsEmpty());
}

}  // namespace
}  // namespace mantissa
