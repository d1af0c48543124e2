#include "core/io/probe_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <limits>
#include <system_error>

#include "core/base/check.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::read_file;
using testing::TempFolder;
using Floats = std::vector<float>;
using Integers = std::vector<int64_t>;
using Texts = std::vector<std::string>;

const std::vector<ProbeColumn> kColumns = {
    {"step", ProbeType::kI64}, {"tensor", ProbeType::kText}, {"underflow", ProbeType::kF32}};

// Group number g: new texts, ones that earlier groups had, empty ones and long ones.
std::vector<ProbeValues> group_values(int64_t g) {
  const auto f = static_cast<float>(g);
  return {Integers{g, g, -g}, Texts{"blocks.0.w", "grad " + std::to_string(g), g == 1 ? "" : std::string(40, 'x')},
          Floats{f, -f / 3.0f, f * 0x1p-140f}};
}

// The file's bytes after the header and after each of the groups.
std::vector<std::string> written_stages(const std::string& path, int64_t groups) {
  ProbeFileWriter writer(path, kColumns);
  std::vector<std::string> stages = {read_file(path)};
  for (int64_t g = 0; g < groups; ++g) {
    writer.append(group_values(g));
    stages.push_back(read_file(path));
  }
  writer.close();
  return stages;
}

// That the file has the first groups of group_values() and nothing more.
void expect_groups(const ProbeFile& file, int64_t groups) {
  Floats floats;
  Integers integers;
  Texts texts;
  for (int64_t g = 0; g < groups; ++g) {
    const std::vector<ProbeValues> values = group_values(g);
    const auto extend = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    extend(integers, std::get<Integers>(values[0]));
    extend(texts, std::get<Texts>(values[1]));
    extend(floats, std::get<Floats>(values[2]));
  }
  EXPECT_EQ(file.groups(), groups);
  EXPECT_EQ(file.rows(), 3 * groups);
  EXPECT_EQ(file.integers("step"), integers);
  EXPECT_EQ(file.texts("tensor"), texts);
  EXPECT_EQ(file.floats("underflow"), floats);
}

TEST(ProbeFile, CanBeReadAfterEveryGroup) {
  const TempFolder folder;
  const std::string path = folder.file("run.probes");
  ProbeFileWriter writer(path, kColumns);
  EXPECT_EQ(ProbeFile(path).columns(), kColumns);
  for (int64_t g = 0; g < 5; ++g) {
    const ProbeFile before(path);
    writer.append(group_values(g));
    expect_groups(ProbeFile(path), g + 1);
    expect_groups(before, g);  // a reader keeps what it has seen
  }
  EXPECT_EQ(ProbeFile(path).note(), "");
  EXPECT_EQ(ProbeFile(path).rows_of_group(4), 3);
  writer.close();
  EXPECT_THROW(writer.append(group_values(5)), ContractError);
}

TEST(ProbeFile, KeepsEveryBit) {
  const TempFolder folder;
  const std::string path = folder.file("bits");
  const Floats floats = {
      NAN, std::bit_cast<float>(0xffc12345u), -0.0f, HUGE_VALF, -HUGE_VALF, 0x1p-149f, 0x1.fffffep127f};
  const Integers integers = {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), 0, -1, 1, 2, 3};
  ProbeFileWriter writer(path, {{"f", ProbeType::kF32}, {"i", ProbeType::kI64}});
  writer.append({floats, integers});
  writer.append({Floats{}, Integers{}});
  const ProbeFile file(path);
  const Floats found = file.floats("f");
  ASSERT_EQ(found.size(), floats.size());
  for (size_t i = 0; i < floats.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(floats[i])) << i;
  }
  EXPECT_EQ(file.integers("i"), integers);
  EXPECT_EQ(file.groups(), 2);
  EXPECT_EQ(file.rows_of_group(1), 0);
}

TEST(ProbeFile, KeepsBytesOfAnyLength) {
  const TempFolder folder;
  const std::string path = folder.file("bytes");
  const std::vector<std::vector<std::byte>> first = {{}, {std::byte{0}, std::byte{255}}, {std::byte{7}}},
                                            second = {std::vector<std::byte>(1000, std::byte{3})};
  ProbeFileWriter writer(path, {{"b", ProbeType::kBytes}, {"i", ProbeType::kI64}});
  writer.append({first, Integers{1, 2, 3}});
  writer.append({second, Integers{4}});
  const ProbeFile file(path);
  EXPECT_EQ(file.bytes("b"), (std::vector<std::vector<std::byte>>{first[0], first[1], first[2], second[0]}));
  EXPECT_EQ(file.integers("i"), (Integers{1, 2, 3, 4}));
  EXPECT_THROW(file.texts("b"), DataError) << "of another type";
}

// The layout that probe_file.h promises to other programs, byte by byte but for the checksums.
TEST(ProbeFile, IsLaidOutAsDescribed) {
  const TempFolder folder;
  const std::string path = folder.file("layout");
  ProbeFileWriter writer(path, {{"t", ProbeType::kText}, {"f", ProbeType::kF32}});
  writer.append({Texts{"ab", "c", "ab"}, Floats{1.0f, 2.0f, 3.0f}});
  const std::string bytes = read_file(path);
  const auto at = [&](size_t offset, size_t size) { return bytes.substr(offset, size); };
  const std::string zeros(3, '\0');
  const auto u32 = [&](char value) { return value + zeros; };
  EXPECT_EQ(at(0, 28), "mtprobe1" + u32(16) + u32(2) + "\3" + u32(1) + "t" + "\1" + u32(1) + "f");
  EXPECT_EQ(at(36, 8), u32(47) + u32(3));
  EXPECT_EQ(at(52, 31), u32(27) + u32(2) + u32(2) + "ab" + u32(1) + "c" + u32(0) + u32(1) + u32(0));
  EXPECT_EQ(at(83, 8), u32(12) + std::string("\0\0\x80\x3f", 4));
  EXPECT_EQ(bytes.size(), 36u + 16 + 47 + 8);
  writer.append({Texts{"c"}, Floats{4.0f}});  // its text is known
  EXPECT_EQ(read_file(path).size(), bytes.size() + 16 + 4 + 4 + 4 + 4 + 4 + 8);
}

TEST(ProbeFile, CutAtAnyByteHasItsCompleteGroups) {
  const TempFolder folder;
  const std::vector<std::string> stages = written_stages(folder.file("whole"), 3);
  const std::string& whole = stages.back();
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string path = folder.write("cut", whole.substr(0, size));
    if (size < stages[0].size()) {
      EXPECT_THAT(message_of<DataError>([&] { ProbeFile{path}; }), HasSubstr(path + ": expected a probe file's header"))
          << size;
      continue;
    }
    int64_t complete = 0;
    while (stages[static_cast<size_t>(complete) + 1].size() <= size) ++complete;
    const ProbeFile file(path);
    expect_groups(file, complete);
    if (size == stages[static_cast<size_t>(complete)].size()) {
      EXPECT_EQ(file.note(), "");
    } else {
      EXPECT_THAT(file.note(), HasSubstr(path + ": ends within group " + std::to_string(complete) + ", after"));
    }
  }
}

TEST(ProbeFile, NoticesEveryDamagedByte) {
  const TempFolder folder;
  const std::vector<std::string> stages = written_stages(folder.file("whole"), 3);
  for (size_t offset = 0; offset < stages.back().size(); ++offset) {
    for (const unsigned flip : {0x01u, 0x80u}) {
      std::string bytes = stages.back();
      bytes[offset] = static_cast<char>(static_cast<unsigned char>(bytes[offset]) ^ flip);
      const std::string path = folder.write("damaged", bytes);
      const std::string message = message_of<DataError>([&] { ProbeFile{path}; });
      if (offset < stages[0].size()) {
        EXPECT_THAT(message, HasSubstr(path + ": ")) << offset;
        EXPECT_THROW(ProbeFile(path, ProbeFile::Damage::kReadUpToIt), DataError) << offset;
        continue;
      }
      int64_t intact = 0;
      while (stages[static_cast<size_t>(intact) + 1].size() <= offset) ++intact;
      EXPECT_THAT(message, HasSubstr("of group " + std::to_string(intact) + ", at byte")) << offset;
      const ProbeFile file(path, ProbeFile::Damage::kReadUpToIt);
      expect_groups(file, intact);
      EXPECT_EQ(file.note(), message);
    }
  }
}

// Their checksums count the groups.
TEST(ProbeFile, NoticesGroupsInAnotherOrder) {
  const TempFolder folder;
  const std::vector<std::string> stages = written_stages(folder.file("whole"), 2);
  const std::string first = stages[1].substr(stages[0].size()), second = stages[2].substr(stages[1].size());
  const std::string path = folder.write("swapped", stages[0] + second + first);
  EXPECT_THAT(message_of<DataError>([&] { ProbeFile{path}; }), HasSubstr("the size of group 0"));
}

TEST(ProbeFile, RefusesOtherFilesAndUnknownColumns) {
  const TempFolder folder;
  const std::string other = folder.write("other", "{\"this\": \"is JSON\"}");
  EXPECT_THAT(message_of<DataError>([&] { ProbeFile{other}; }), HasSubstr(other + ": is no probe file"));
  EXPECT_THROW(ProbeFile(folder.file("missing")), std::system_error);
  const std::string path = folder.file("run");
  ProbeFileWriter(path, kColumns).close();
  EXPECT_EQ(message_of<DataError>([&] { ProbeFile(path).floats("step"); }),
            path + ": has no column 'step' (fp32), but step (int64), tensor (text), underflow (fp32)");
}

TEST(ProbeFileWriter, RefusesWhatDoesNotFit) {
  const TempFolder folder;
  const std::string path = folder.file("run");
  ProbeFileWriter writer(path, kColumns);
  EXPECT_THAT(message_of<DataError>([&] { ProbeFileWriter(path, kColumns); }),
              HasSubstr(path + ": cannot create the file after 0 bytes: File exists"));
  const auto refused = [&](const std::vector<ProbeValues>& values) {
    return message_of<ContractError>([&] { writer.append(values); });
  };
  EXPECT_THAT(refused({Integers{1}}), HasSubstr("has 3 columns, got values of 1"));
  EXPECT_THAT(refused({Integers{1}, Texts{"a"}, Integers{1}}), HasSubstr("is fp32, got int64"));
  EXPECT_THAT(refused({Integers{1}, Texts{}, Floats{1.0f}}), HasSubstr("must have 1 rows, got 0 of 'tensor'"));
  expect_groups(ProbeFile(path), 0);
  EXPECT_THROW(ProbeFileWriter(folder.file("none"), {}), ContractError);
  EXPECT_THROW(ProbeFileWriter(folder.file("unnamed"), {{"", ProbeType::kF32}}), ContractError);
  EXPECT_THROW(ProbeFileWriter(folder.file("twice"), {{"a", ProbeType::kF32}, {"a", ProbeType::kI64}}), ContractError);
}

TEST(ProbeFileWriter, GoesOnAfterTheGroupsThatAreKept) {
  const TempFolder folder;
  const std::vector<std::string> stages = written_stages(folder.file("whole"), 4);
  const std::string cut = stages[4].substr(0, stages[3].size() + 20);
  for (const std::string& before : {stages[3], cut, stages[3] + std::string(100, '\0')}) {
    for (int64_t kept = 0; kept <= 3; ++kept) {
      const std::string path = folder.write("run", before);
      ProbeFileWriter writer = ProbeFileWriter::resume(path, kColumns, kept);
      for (int64_t g = kept; g < 4; ++g) writer.append(group_values(g));
      EXPECT_EQ(read_file(path), stages[4]) << kept;
    }
  }
}

TEST(ProbeFileWriter, DoesNotGoOnWithAnotherFile) {
  const TempFolder folder;
  const std::string path = folder.file("run");
  const std::vector<std::string> stages = written_stages(path, 2);
  EXPECT_THAT(message_of<DataError>([&] {
                ProbeFileWriter::resume(path, {{"step", ProbeType::kI64}}, 0);
              }),
              HasSubstr(path + ": cannot go on with a probe file of other columns"));
  EXPECT_THAT(message_of<DataError>([&] { ProbeFileWriter::resume(path, kColumns, 3); }),
              HasSubstr("expected 3 groups to go on after, got 2 that are complete"));
  EXPECT_THROW(ProbeFileWriter::resume(path, kColumns, -1), ContractError);
  EXPECT_EQ(read_file(path), stages[2]);  // a refusal leaves the file as it is
}

// While it lives, files cannot grow beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(size_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(ProbeFileWriter, LeavesNoPartOfAGroupThatCouldNotBeWritten) {
  const TempFolder folder;
  const std::string path = folder.file("run");
  const std::vector<std::string> stages = written_stages(folder.file("whole"), 2);
  ProbeFileWriter writer(path, kColumns);
  writer.append(group_values(0));
  {
    const FileSizeLimit limit(stages[1].size() + 30);
    EXPECT_EQ(message_of<DataError>([&] { writer.append(group_values(1)); }),
              path + ": cannot write after " + std::to_string(stages[1].size()) + " bytes: File too large");
  }
  EXPECT_EQ(read_file(path), stages[1]);
  writer.append(group_values(1));  // with its texts, which nobody has got so far
  EXPECT_EQ(read_file(path), stages[2]);
}

}  // namespace
}  // namespace mantissa
