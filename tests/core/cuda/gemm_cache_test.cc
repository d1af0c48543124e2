#include "core/cuda/cublaslt/gemm_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "tests/core/io/temp_folder.h"

namespace mantissa::cuda {
namespace {

using testing::read_file;
using testing::TempFolder;

GemmChoice choice(const std::string& key, uint64_t number) {
  return {.key = key, .algorithm = {number, 0xffffffffffffffff, 0, 3, 4, 5, 6, 0x0123456789abcdef}};
}

TEST(GemmCache, ALineGivesBackItsChoice) {
  const GemmChoice given = choice("16 32 48 bf16 nt", 7);
  const std::string line = to_line(given);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(parse_line(line), given);
}

TEST(GemmCache, NoDamagedLineIsTaken) {
  const std::string line = to_line(choice("16 32 48 bf16 nt", 7));
  for (size_t i = 0; i < line.size(); ++i) {
    std::string damaged = line;
    damaged[i] = damaged[i] == '1' ? '2' : '1';
    EXPECT_FALSE(parse_line(damaged)) << "character " << i;
    EXPECT_FALSE(parse_line(line.substr(0, i))) << "first " << i << " characters";
    damaged = line;
    damaged.erase(i, 1);
    EXPECT_FALSE(parse_line(damaged)) << "without character " << i;
  }
  EXPECT_FALSE(parse_line(line + "0"));
  EXPECT_FALSE(parse_line("# a comment"));
  EXPECT_FALSE(parse_line("\t" + line));
}

TEST(GemmCache, RemembersFromRunToRun) {
  const TempFolder folder;
  const std::string path = folder.file("choices.txt");
  GemmCache first(path);
  EXPECT_EQ(first.find("p"), std::nullopt);
  EXPECT_EQ(first.record(choice("p", 1), {}), choice("p", 1).algorithm);
  EXPECT_EQ(first.record(choice("q", 2), {}), choice("q", 2).algorithm);
  GemmCache second(path);
  EXPECT_EQ(second.find("p"), choice("p", 1).algorithm);
  EXPECT_EQ(second.find("q"), choice("q", 2).algorithm);
  EXPECT_EQ(second.find("r"), std::nullopt);
}

TEST(GemmCache, TheFirstToWriteDecidesForAll) {
  const TempFolder folder;
  GemmCache mine(folder.file("choices.txt")), other(folder.file("choices.txt"));
  EXPECT_EQ(mine.find("p"), std::nullopt);
  EXPECT_EQ(other.record(choice("p", 1), {}), choice("p", 1).algorithm);
  EXPECT_EQ(mine.record(choice("p", 2), {}), choice("p", 1).algorithm);
  EXPECT_EQ(GemmCache(folder.file("choices.txt")).find("p"), choice("p", 1).algorithm);
  // What another rank adds later is found as well.
  other.record(choice("q", 3), {});
  EXPECT_EQ(mine.find("q"), choice("q", 3).algorithm);
}

TEST(GemmCache, OnlyARefusedChoiceIsReplaced) {
  const TempFolder folder;
  GemmCache cache(folder.file("choices.txt"));
  cache.record(choice("p", 1), {});
  EXPECT_EQ(cache.record(choice("p", 2), choice("p", 9).algorithm), choice("p", 1).algorithm);
  EXPECT_EQ(cache.record(choice("p", 2), choice("p", 1).algorithm), choice("p", 2).algorithm);
  EXPECT_EQ(GemmCache(folder.file("choices.txt")).find("p"), choice("p", 2).algorithm);
}

TEST(GemmCache, DamagedAndForeignLinesAreIgnored) {
  const TempFolder folder;
  const std::string whole = to_line(choice("p", 1)), damaged = to_line(choice("q", 2)).substr(0, 50);
  const std::string path = folder.write("choices.txt", damaged + "\n\nhello\n" + whole + "\n" + whole.substr(3));
  GemmCache cache(path);
  EXPECT_EQ(cache.find("p"), choice("p", 1).algorithm);
  EXPECT_EQ(cache.find("q"), std::nullopt);
  cache.record(choice("r", 3), {});
  EXPECT_EQ(read_file(path), whole + "\n" + to_line(choice("r", 3)) + "\n");
}

TEST(GemmCache, ManyWritersLoseNothing) {
  constexpr int kWriters = 8, kEach = 20;
  const TempFolder folder;
  const std::string path = folder.file("choices.txt");
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&path, writer] {
      GemmCache cache(path);
      for (int i = 0; i < kEach; ++i) {
        const auto number = static_cast<uint64_t>(writer * kEach + i);
        cache.record(choice("p" + std::to_string(number), number), {});
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  GemmCache cache(path);
  for (uint64_t i = 0; i < kWriters * kEach; ++i) {
    ASSERT_EQ(cache.find("p" + std::to_string(i)), choice("", i).algorithm) << i;
  }
}

TEST(GemmCache, WithoutAFileItRemembersForItself) {
  GemmCache cache("");
  EXPECT_EQ(cache.find("p"), std::nullopt);
  EXPECT_EQ(cache.record(choice("p", 1), {}), choice("p", 1).algorithm);
  EXPECT_EQ(cache.find("p"), choice("p", 1).algorithm);
}

TEST(GemmCache, AFileThatCannotBeWrittenIsNoError) {
  GemmCache cache("/nowhere/choices.txt");
  EXPECT_EQ(cache.record(choice("p", 1), {}), choice("p", 1).algorithm);
  EXPECT_EQ(cache.find("p"), choice("p", 1).algorithm);
}

TEST(GemmCache, TheFileIsNamedByWhatChoicesDependOn) {
  EXPECT_EQ(
      cache_file_name(
          {.gpu = "NVIDIA H100 80GB HBM3", .major = 9, .minor = 0, .multiprocessors = 132, .library_version = 130100}),
      "gemm-2-NVIDIA-H100-80GB-HBM3-sm90-132-cublaslt130100.txt");
}

class GemmCacheFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* variable : {"MANTISSA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) unsetenv(variable);
  }
  const TempFolder folder_;
};

TEST_F(GemmCacheFolder, IsTheFirstOfThreeThatCanBeMade) {
  EXPECT_EQ(cache_folder(), "");
  setenv("HOME", folder_.file("home").c_str(), 1);
  EXPECT_EQ(cache_folder(), folder_.file("home/.cache/mantissa"));
  setenv("XDG_CACHE_HOME", folder_.file("xdg").c_str(), 1);
  EXPECT_EQ(cache_folder(), folder_.file("xdg/mantissa"));
  setenv("MANTISSA_CACHE_DIR", folder_.file("own").c_str(), 1);
  EXPECT_EQ(cache_folder(), folder_.file("own"));
  setenv("MANTISSA_CACHE_DIR", folder_.write("file", "").c_str(), 1);  // no folder can be made there
  EXPECT_EQ(cache_folder(), folder_.file("xdg/mantissa"));
}

}  // namespace
}  // namespace mantissa::cuda
