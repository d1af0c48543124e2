#include "core/io/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "core/base/check.h"
#include "tests/core/io/file_size_limit.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::FileSizeLimit;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::read_file;

class CheckpointStoreTest : public ::testing::Test {
 protected:
  CheckpointStore store(int keep_last = 0) {
    return CheckpointStore(
        root(), {.keep_last = keep_last, .warn = [this](const std::string& text) { warnings_.push_back(text); }});
  }
  CheckpointStore store_with(std::initializer_list<int64_t> saved, int keep_last = 0) {
    CheckpointStore made = store(keep_last);
    for (const int64_t step : saved) save(made, step);
    return made;
  }
  static std::string refusal(const std::string& folder) {
    return message_of<CheckpointError>([&] { open_checkpoint(folder); });
  }
  std::string root() const { return folder_.file("run/checkpoints"); }

  // Writes one rank's file.
  static CheckpointFile write(const std::string& folder, const std::string& name, const std::string& content) {
    CheckpointFileWriter writer(folder, name);
    writer.write(std::as_bytes(std::span(content)).subspan(0, content.size() / 2));
    writer.write(std::as_bytes(std::span(content)).subspan(content.size() / 2));
    return writer.close();
  }

  static std::string content(int64_t step, int rank) {
    return "data of step " + std::to_string(step) + " rank " + std::to_string(rank) + std::string(1000, '.');
  }

  static std::vector<CheckpointFile> write_ranks(CheckpointStore& store, int64_t step) {
    store.begin(step);
    std::vector<CheckpointFile> files;
    for (const int rank : {0, 1}) {
      files.push_back(write(store.partial_folder(step), "rank-" + std::to_string(rank), content(step, rank)));
    }
    return files;
  }

  static void save(CheckpointStore& store, int64_t step) {
    store.commit(step, "model-1", write_ranks(store, step), {{"scale", 65536.0}, {"cursor", step * 8}});
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root())) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  testing::TempFolder folder_;
  std::vector<std::string> warnings_;
};

TEST_F(CheckpointStoreTest, RoundTrip) {
  CheckpointStore s = store();
  EXPECT_EQ(s.latest_valid(), std::nullopt);
  EXPECT_THAT(s.steps(), IsEmpty());
  save(s, 100);
  save(s, 200);
  EXPECT_THAT(s.steps(), ElementsAre(200, 100));
  EXPECT_THAT(names(), ElementsAre("step-00000100", "step-00000200"));
  const auto latest = s.latest_valid();
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(latest->step, 200);
  EXPECT_EQ(latest->folder, s.folder(200));
  EXPECT_EQ(latest->model_fingerprint, "model-1");
  EXPECT_EQ(latest->state.at("cursor"), 1600);
  ASSERT_EQ(latest->files.size(), 2u);
  EXPECT_EQ(latest->files[1].name, "rank-1");
  EXPECT_EQ(latest->files[1].size_bytes, content(200, 1).size());
  EXPECT_EQ(read_file(latest->folder + "/rank-1"), content(200, 1));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckpointStoreTest, StateKeepsNumbersExactly) {
  CheckpointStore s = store();
  const double third = 1.0 / 3.0;
  const float tiny = std::numeric_limits<float>::denorm_min();
  s.commit(1, "m", write_ranks(s, 1),
           {{"d", third}, {"f", tiny}, {"u", UINT64_MAX}, {"i", INT64_MIN}, {"text", "ü\n"}});
  const Checkpoint checkpoint = open_checkpoint(s.folder(1));
  EXPECT_EQ(checkpoint.state.at("d").get<double>(), third);
  EXPECT_EQ(checkpoint.state.at("f").get<float>(), tiny);
  EXPECT_EQ(checkpoint.state.at("u").get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(checkpoint.state.at("i").get<int64_t>(), INT64_MIN);
  EXPECT_EQ(checkpoint.state.at("text"), "ü\n");
}

TEST_F(CheckpointStoreTest, RefusesStateThatJsonCannotHold) {
  CheckpointStore s = store();
  const auto files = write_ranks(s, 1);
  EXPECT_THAT(message_of<ContractError>([&] {
                s.commit(1, "m", files, {{"a", {{"b", std::nan("")}}}});
              }),
              HasSubstr("the state at /a/b is not finite"));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(CheckpointStoreTest, AnyChangedByteIsFoundAndTheOlderCheckpointTaken) {
  CheckpointStore s = store_with({100, 200});
  for (const std::string name : {"rank-0", "rank-1", "manifest.json"}) {
    const std::string path = s.folder(200) + "/" + name, whole = read_file(path);
    const size_t stride = name == "manifest.json" ? 1 : 97;
    for (size_t at = 0; at < whole.size(); at += stride) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
      std::ofstream(path, std::ios::binary) << damaged;
      warnings_.clear();
      const auto latest = s.latest_valid();
      ASSERT_TRUE(latest && latest->step == 100) << name << " byte " << at;
      ASSERT_EQ(warnings_.size(), 1u);
      ASSERT_THAT(warnings_[0], HasSubstr("step-00000200/" + name + ": damaged"));
    }
    std::ofstream(path, std::ios::binary) << whole;
  }
  warnings_.clear();
  EXPECT_EQ(s.latest_valid()->step, 200);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckpointStoreTest, AWrittenFileIsVerifiedBeforeItCounts) {
  CheckpointStore s = store();
  const CheckpointFile file = write_ranks(s, 100)[1];
  const std::string folder = s.partial_folder(100);
  verify_file(folder, file);
  std::string bytes = read_file(folder + "/" + file.name);
  bytes[17] = static_cast<char>(bytes[17] ^ 4);
  std::ofstream(folder + "/" + file.name, std::ios::binary) << bytes;
  EXPECT_THAT(message_of<CheckpointError>([&] { verify_file(folder, file); }),
              HasSubstr("rank-1: damaged: expected XXH3-128 " + file.xxh3_128));
}

TEST_F(CheckpointStoreTest, DamageIsToldWithExpectedAndFound) {
  CheckpointStore s = store_with({100});
  const std::string path = s.folder(100) + "/rank-1", whole = read_file(path);
  const std::string expected = xxh3_128_hex(std::as_bytes(std::span(whole)));
  std::string damaged = whole;
  damaged[10] ^= 1;
  std::ofstream(path, std::ios::binary) << damaged;
  EXPECT_THAT(refusal(s.folder(100)), HasSubstr("rank-1: damaged: expected XXH3-128 " + expected + ", found " +
                                                xxh3_128_hex(std::as_bytes(std::span(damaged)))));
  std::ofstream(path, std::ios::binary) << whole.substr(0, 500);
  EXPECT_THAT(refusal(s.folder(100)),
              HasSubstr("rank-1: damaged: expected " + std::to_string(whole.size()) + " bytes, found 500"));
  fs::remove(path);
  EXPECT_THAT(refusal(s.folder(100)), HasSubstr("rank-1: cannot read the file: No such file"));
  fs::remove(s.folder(100) + "/manifest.json");
  EXPECT_THAT(refusal(s.folder(100)), HasSubstr("manifest.json: cannot read"));
  EXPECT_EQ(s.latest_valid(), std::nullopt);
}

TEST_F(CheckpointStoreTest, EveryCutOfTheManifestIsFound) {
  CheckpointStore s = store_with({100});
  const std::string path = s.folder(100) + "/manifest.json", whole = read_file(path);
  EXPECT_EQ(nlohmann::json::parse(whole).at("manifest").at("step"), 100) << "the manifest is plain JSON";
  for (size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    ASSERT_EQ(s.latest_valid(), std::nullopt) << size;
  }
}

// The published XXH3-128 of empty input with seed 0.
TEST_F(CheckpointStoreTest, HashIsStandard) {
  EXPECT_EQ(xxh3_128_hex({}), "99aa06d3014798d86001c324468d497f");
  fs::create_directories(root());
  EXPECT_EQ(write(root(), "f", "").xxh3_128, "99aa06d3014798d86001c324468d497f");
  const std::string large(3 << 20, 'z');
  EXPECT_EQ(write(root(), "g", large).xxh3_128, xxh3_128_hex(std::as_bytes(std::span(large)))) << "streamed and whole";
}

TEST_F(CheckpointStoreTest, KeepLastRemovesOldOnes) {
  CheckpointStore s = store_with({100, 200, 300, 400}, 2);
  EXPECT_THAT(names(), ElementsAre("step-00000300", "step-00000400"));
  CheckpointStore all = store(0);
  save(all, 500);
  EXPECT_EQ(all.steps().size(), 3u);
}

TEST_F(CheckpointStoreTest, KeepLastGoesByTheOrderOfSaves) {
  CheckpointStore s = store_with({100, 900, 200}, 2);  // the run was resumed from 100
  EXPECT_THAT(s.steps(), ElementsAre(900, 200));
  save(s, 300);
  EXPECT_THAT(s.steps(), ElementsAre(300, 200));
  CheckpointStore one = store(1);
  save(one, 50);
  EXPECT_THAT(one.steps(), ElementsAre(50)) << "never the one just written";
}

TEST_F(CheckpointStoreTest, TheNewestIsTheOneSavedLast) {
  CheckpointStore s = store_with({5, 10, 15, 20});
  EXPECT_EQ(s.latest_valid()->step, 20);
  save(s, 10);  // the run started again and reached this step
  EXPECT_EQ(s.latest_valid()->step, 10);
  EXPECT_EQ(s.latest_valid()->save, 5);
  CheckpointStore next = store();
  save(next, 12);
  EXPECT_EQ(next.latest_valid()->step, 12);
  EXPECT_EQ(next.latest_valid()->save, 6);
  std::ofstream(s.folder(12) + "/rank-0", std::ios::binary) << "damaged";
  EXPECT_EQ(s.latest_valid()->step, 10) << "the one saved before it";
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("step-00000012/rank-0: damaged")));
}

TEST_F(CheckpointStoreTest, WhatCannotBeReadIsNeitherCountedNorRemoved) {
  CheckpointStore s = store_with({100}, 1);
  std::ofstream(s.folder(100) + "/manifest.json", std::ios::binary) << "damaged";
  save(s, 200);
  save(s, 150);
  EXPECT_THAT(s.steps(), ElementsAre(150, 100));
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(s.latest_valid()->step, 150);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("skipping a checkpoint: ")));
}

TEST_F(CheckpointStoreTest, AFolderUnderTheNameOfAnotherStepIsRefused) {
  CheckpointStore s = store_with({100});
  fs::copy(s.folder(100), s.folder(300));
  for (const std::string slash : {"", "/"}) {
    EXPECT_THAT(refusal(s.folder(300) + slash),
                HasSubstr("step-00000300" + slash +
                          ": renamed or copied: the folder is named after step 300, its manifest says step 100; rename "
                          "the folder to step-00000100, or remove it"));
  }
  EXPECT_EQ(s.latest_valid()->step, 100);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("step-00000300: renamed or copied")));
  fs::rename(s.folder(300), root() + "/best");  // the name claims no step
  EXPECT_EQ(open_checkpoint(root() + "/best").step, 100);
}

TEST_F(CheckpointStoreTest, AStepThatIsReachedAgainReplacesItsCheckpoint) {
  CheckpointStore s = store_with({100}, 2);
  s.commit(100, "model-2", write_ranks(s, 100), {});
  EXPECT_EQ(s.latest_valid()->model_fingerprint, "model-2");
  EXPECT_THAT(names(), ElementsAre("step-00000100"));
}

TEST_F(CheckpointStoreTest, AFullDiskLeavesTheOldCheckpoint) {
  CheckpointStore s = store_with({100}, 1);
  {
    s.begin(200);
    const FileSizeLimit limit(4096);
    const std::string big(1 << 20, 'x');
    CheckpointFileWriter writer(s.partial_folder(200), "rank-0");
    EXPECT_THAT(message_of<CheckpointError>([&] { writer.write(std::as_bytes(std::span(big))); }),
                HasSubstr("rank-0: cannot write after 4096 bytes: File too large"));
    s.abandon(200);
  }
  EXPECT_THAT(names(), ElementsAre("step-00000100"));
  EXPECT_EQ(s.latest_valid()->step, 100);
  save(s, 300);  // the next try succeeds
  EXPECT_EQ(s.latest_valid()->step, 300);
}

TEST_F(CheckpointStoreTest, AManifestThatDoesNotFitLeavesTheOldCheckpoint) {
  CheckpointStore s = store_with({100}, 1);
  const auto files = write_ranks(s, 200);
  {
    const FileSizeLimit limit(64);
    EXPECT_THAT(message_of<CheckpointError>([&] { s.commit(200, "m", files, {}); }),
                HasSubstr("manifest.json: cannot write"));
  }
  EXPECT_THAT(names(), ElementsAre("step-00000100"));
  EXPECT_EQ(s.latest_valid()->step, 100);
}

TEST_F(CheckpointStoreTest, AWriterDoesNotWriteThroughWhatIsThere) {
  fs::create_directories(root());
  fs::create_symlink(folder_.write("other", "precious"), root() + "/f");
  EXPECT_THAT(message_of<CheckpointError>([&] { CheckpointFileWriter writer(root(), "f"); }),
              HasSubstr("cannot create the file after 0 bytes: File exists"));
  EXPECT_EQ(read_file(folder_.file("other")), "precious");
}

TEST_F(CheckpointStoreTest, AFolderThatCannotBeMadeIsNamed) {
  folder_.write("run", "a file is in the way");
  CheckpointStore s = store();
  EXPECT_THAT(message_of<CheckpointError>([&] { s.begin(1); }),
              HasSubstr("step-00000001.partial: cannot make the folder"));
  s.abandon(1);
}

TEST_F(CheckpointStoreTest, WhatAKilledRunLeftIsRemoved) {
  CheckpointStore s = store_with({100}, 2);
  write_ranks(s, 200);  // killed before commit
  fs::create_directories(root() + "/step-00000050.doomed");
  fs::create_directories(root() + "/notes");
  CheckpointStore next = store(2);
  EXPECT_EQ(next.latest_valid()->step, 100);
  next.recover();
  EXPECT_THAT(names(), ElementsAre("notes", "step-00000100"));
  EXPECT_THAT(warnings_, IsEmpty());
  CheckpointStore(folder_.file("nowhere"), {.warn = [](const std::string&) {}}).recover();
}

TEST_F(CheckpointStoreTest, AReplacementThatWasInterruptedIsFinished) {
  CheckpointStore s = store_with({100});
  fs::rename(s.folder(100), s.folder(100) + ".replaced");  // killed between the two renames
  s.recover();
  EXPECT_EQ(s.latest_valid()->step, 100);
  fs::copy(s.folder(100), s.folder(100) + ".replaced");  // killed after both
  s.recover();
  EXPECT_THAT(names(), ElementsAre("step-00000100"));
}

TEST_F(CheckpointStoreTest, KilledAtAnyTimeOneCheckpointAlwaysLoads) {
  CheckpointStore s = store_with({100}, 1);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // saves each step twice, so that both adding and replacing are interrupted
      for (int64_t step = s.steps().at(0); step < 1'000'000; ++step) {
        save(s, step);
        save(s, step);
      }
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(1000 + 1717 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child must have been killed in the middle";
    s.recover();
    const auto latest = s.latest_valid();
    ASSERT_TRUE(latest.has_value()) << "round " << round;
    EXPECT_EQ(read_file(latest->folder + "/rank-1"), content(latest->step, 1));
    EXPECT_THAT(warnings_, IsEmpty());
  }
}

TEST_F(CheckpointStoreTest, BeginClearsWhatIsThere) {
  CheckpointStore s = store();
  write_ranks(s, 100);
  EXPECT_TRUE(fs::is_empty(s.begin(100)));
}

TEST_F(CheckpointStoreTest, WriterRefusesMisuse) {
  fs::create_directories(root());
  EXPECT_THROW(CheckpointFileWriter(root(), "a/b"), ContractError);
  CheckpointFileWriter writer(root(), "a");
  writer.close();
  EXPECT_THROW(writer.write({}), ContractError);
  EXPECT_THROW(writer.close(), ContractError);
}

// The number of the next save would be beyond the range.
TEST_F(CheckpointStoreTest, AForgedNumberOfTheSaveIsDamage) {
  CheckpointStore s = store_with({100});
  const std::string path = s.folder(100) + "/" + kManifestName, entry = "\"save\": 1,";
  std::string text = read_file(path);
  text = text.substr(0, text.rfind(",\n\"xxh3_128\""));
  text.replace(text.find(entry), entry.size(), "\"save\": 9223372036854775807,");
  std::ofstream(path, std::ios::binary) << text << ",\n\"xxh3_128\": \"" << xxh3_128_hex(std::as_bytes(std::span(text)))
                                        << "\"}\n";
  EXPECT_THAT(
      message_of<CheckpointError>([&] { read_manifest(s.folder(100)); }),
      HasSubstr("manifest.json: damaged: expected a 'save' from 0 to 1000000000000000, got 9223372036854775807"));
}

TEST_F(CheckpointStoreTest, AProtectedOneStaysBesideTheLast) {
  CheckpointStore s = store_with({100, 200}, 2);
  s.protect({100});
  for (const int64_t step : {300, 400, 500}) save(s, step);
  EXPECT_THAT(s.steps(), ElementsAre(500, 400, 100));
  s.protect({400});
  save(s, 600);
  EXPECT_THAT(s.steps(), ElementsAre(600, 500, 400));
  save(s, 700);
  EXPECT_THAT(s.steps(), ElementsAre(700, 600, 400));
}

}  // namespace
}  // namespace mantissa
