#include "tools/config/data_paths.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"

namespace mantissa::testing {
namespace {

namespace fs = std::filesystem;

// An empty folder that is the working directory for as long as the object lives.
class Room {
 public:
  explicit Room(const std::string& name) : before_(fs::current_path()), path_(::testing::TempDir() + "/" + name) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    path_ = fs::canonical(path_);
    fs::current_path(path_);
  }
  ~Room() { fs::current_path(before_); }
  const fs::path& path() const { return path_; }

  static void write(const std::string& path, const std::string& text = "text") {
    if (fs::path(path).has_parent_path()) fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << text;
  }

 private:
  fs::path before_, path_;
};

std::string error_of(const std::string& folder, DataFormat format) {
  try {
    in_folders({folder}, format);
  } catch (const DataError& error) {
    return error.what();
  }
  return "none";
}

TEST(DataFolders, StandForTheirFiles) {
  const Room room("data_folders");
  Room::write("text/b.txt");
  Room::write("text/a.md");
  Room::write("text/.hidden.bin");
  Room::write("tokens/train.bin");
  EXPECT_EQ(in_folders({"text", "other.txt"}, DataFormat::kBytes), (std::vector<std::string>{"text/*", "other.txt"}));
  EXPECT_EQ(in_folders({"text/"}, DataFormat::kBytes), std::vector<std::string>{"text/*"});
  EXPECT_EQ(in_folders({"tokens"}, DataFormat::kTokens), std::vector<std::string>{"tokens/*"});
  EXPECT_EQ(in_folders({"absent"}, DataFormat::kBytes), std::vector<std::string>{"absent"});
}

TEST(DataFolders, OfMixedFilesAreRefused) {
  const Room room("mixed_folders");
  Room::write("mixed/a.txt");
  Room::write("mixed/b.bin");
  Room::write("empty/.hidden");
  Room::write("empty/below/a.txt");
  const std::string mixed = error_of("mixed", DataFormat::kBytes);
  EXPECT_NE(mixed.find("text files (mixed/a.txt) and token files (mixed/b.bin)"), std::string::npos) << mixed;
  const std::string empty = error_of("empty/", DataFormat::kBytes);
  EXPECT_NE(empty.find("'empty' is a folder without files"), std::string::npos) << empty;
  EXPECT_NE(empty.find("'empty/**/*.txt'"), std::string::npos) << empty;
  Room::write("text/a.txt");
  Room::write("tokens/a.bin");
  EXPECT_NE(error_of("text", DataFormat::kTokens).find("give data.format=bytes"), std::string::npos);
  EXPECT_NE(error_of("tokens", DataFormat::kBytes).find("reads them by data.format=tokens"), std::string::npos);
  Room::write("raw/a.u16");
  const std::string raw = error_of("raw", DataFormat::kTokens);
  EXPECT_NE(raw.find("give the pattern 'raw/*.u16'"), std::string::npos) << raw;
}

Config config_of(const std::string& run_dir, const std::vector<std::string>& data) {
  Config config;
  config.train.run_dir = run_dir;
  config.data.train = data;
  return config;
}

using Paths = std::vector<std::string>;

// Started in `home`, continued from elsewhere.
TEST(Relocation, FindsWhatTheRunFoundWhereItWasStarted) {
  const Room room("relocation");
  Room::write("home/data/a.txt");
  Room::write("home/runs/x/config.yaml");
  Config config = config_of("runs/x", {"data/*.txt", "absent.txt"});
  relocate(config, "home/runs/x", {});
  EXPECT_EQ(config.train.run_dir, (room.path() / "home/runs/x").string());
  EXPECT_EQ(config.data.train, (Paths{(room.path() / "home/data/*.txt").string(), "absent.txt"}));

  // Where it was started, nothing changes.
  fs::current_path("home");
  config = config_of("runs/x", {"data/*.txt"});
  relocate(config, "./runs/x/", {});
  EXPECT_EQ(config.train.run_dir, "runs/x");
  EXPECT_EQ(config.data.train, Paths{"data/*.txt"});
}

TEST(Relocation, FindsDataBesideTheFolderOfTheStart) {
  const Room room("relocation_beside");
  Room::write("text/a.txt");
  Room::write("work/runs/a/config.yaml");
  Config config = config_of("runs/a", {"../text", "../text/*.txt"});
  relocate(config, "work/runs/a", {});
  ASSERT_EQ(config.data.train.size(), 2u);
  EXPECT_EQ(fs::weakly_canonical(config.data.train[0]), room.path() / "text");
  EXPECT_EQ(config.data.train[1], (room.path() / "work/../text/*.txt").string());
}

TEST(Relocation, WarnsOfRelativeDataWhereTheStartIsNotKnown) {
  const Room room("relocation_lost");
  Room::write("a.txt");
  Room::write("runs/x/config.yaml");
  const auto warnings = [&](const std::vector<std::string>& data, const ConfigOrigins& origins) {
    Config config = config_of((room.path() / "runs/x").string(), data);
    ::testing::internal::CaptureStdout();
    relocate(config, "runs/x", origins);
    EXPECT_EQ(config.data.train, data);
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string lost = warnings({"a.txt", "lost.txt"}, {});
  EXPECT_NE(lost.find("data.train: 'lost.txt' is not here."), std::string::npos) << lost;
  EXPECT_EQ(lost.find("'a.txt'"), std::string::npos) << lost;
  EXPECT_EQ(warnings({"lost.txt"}, {{"data.train", "command line: data.train=lost.txt"}}), "");
}

TEST(Runs, AreKnownByWhatARunWritesFirst) {
  const Room room("runs_known");
  Room::write("other/config.yaml");
  Room::write("other/checkpoints/step");  // of another program, perhaps
  EXPECT_FALSE(is_config_of_run("other/config.yaml"));
  for (const char* file : {"lock", "metrics.jsonl"}) {
    Room::write(std::string(file) + "/config.yaml");
    Room::write(std::string(file) + "/" + file);
    EXPECT_TRUE(is_config_of_run(std::string(file) + "/config.yaml"));
    EXPECT_FALSE(is_config_of_run(std::string(file) + "/other.yaml"));
  }
}

// Only its model matters, not the settings of the training, which an earlier version may have written.
TEST(Runs, GiveTheirModel) {
  const Room room("runs_model");
  Room::write("old/config.yaml", "model: {width: 48}\nstraggler: {factor: 2}\nprecision: {ops: []}\n");
  EXPECT_EQ(model_of_weights("old").width, 48);
}

TEST(Relocation, FollowsAFolderThatMovedWithItsData) {
  const Room room("relocation_moved");
  Room::write("new/data/a.txt");
  Room::write("kept/b.txt");
  Room::write("new/runs/x/config.yaml");
  const std::string old = (room.path() / "old").string(), kept = (room.path() / "kept/b.txt").string();
  Config config = config_of(old + "/runs/x", {old + "/data/a.txt", kept, "data/a.txt"});
  relocate(config, "new/runs/x", {});
  EXPECT_EQ(config.train.run_dir, (room.path() / "new/runs/x").string());
  EXPECT_EQ(config.data.train, (Paths{(room.path() / "new/data/a.txt").string(), kept, "data/a.txt"}));
}

TEST(Relocation, LeavesWhatIsGivenNow) {
  const Room room("relocation_given");
  Room::write("home/data/a.txt");
  Room::write("home/runs/x/config.yaml");
  Config config = config_of("runs/x", {"data/a.txt"});
  relocate(config, "home/runs/x", {{"data.train", "command line: data.train=data/a.txt"}});
  EXPECT_EQ(config.train.run_dir, (room.path() / "home/runs/x").string());
  EXPECT_EQ(config.data.train, Paths{"data/a.txt"});
  config = config_of("runs/x", {"data/a.txt"});
  relocate(config, "home/runs/x", {{"train.run_dir", "command line: train.run_dir=runs/x"}});
  EXPECT_EQ(config.train.run_dir, "runs/x");
}

// A copy, or a renamed folder: training from it writes into it.
TEST(Relocation, TakesAFolderOfAnotherNameForTheRun) {
  const Room room("relocation_renamed");
  Room::write("home/data/a.txt");
  Room::write("home/runs/x/config.yaml");
  const std::string here = (room.path() / "home/runs/x").string(), data = (room.path() / "home/data/a.txt").string();
  for (const std::string other : {"x/runs", "../runs/x/z", "/elsewhere/y"}) {  // where it was started is not known
    Config config = config_of(other, {"data/a.txt"});
    relocate(config, "home/runs/x", {});
    EXPECT_EQ(config.train.run_dir, here);
    EXPECT_EQ(config.data.train, Paths{"data/a.txt"});
  }
  Config config = config_of("runs/y", {"data/a.txt"});
  relocate(config, "home/runs/x", {});
  EXPECT_EQ(config.train.run_dir, here);
  EXPECT_EQ(config.data.train, Paths{data});
  config = config_of("/elsewhere/runs/y", {"/elsewhere/data/a.txt"});
  relocate(config, "home/runs/x", {});
  EXPECT_EQ(config.train.run_dir, here);
  EXPECT_EQ(config.data.train, Paths{data});
}

TEST(CarriedFiles, AreNotWrittenThroughALink) {
  const Room room("carried_links");
  Room::write("from/config.json", "{}");
  Room::write("from/merges.txt", "a b");
  Room::write("target", "kept");
  fs::create_directories("to");
  fs::create_symlink(room.path() / "target", "to/config.json");
  fs::create_hard_link("target", "to/merges.txt");
  carry_files("from", "to");
  EXPECT_EQ(fs::file_size("target"), 4u);
  EXPECT_EQ(fs::file_size("to/config.json"), 2u);
  EXPECT_EQ(fs::file_size("to/merges.txt"), 3u);
}

TEST(ForeignModels, AreNamed) {
  const Room room("foreign_models");
  Room::write("hf/config.json", "{}");
  refuse_foreign_model("hf");
  Room::write("hf/model-00001-of-00002.safetensors");
  EXPECT_THROW(refuse_foreign_model("hf"), ConfigError);
  EXPECT_THROW(configuration_file("hf"), ConfigError);
  Room::write("run/config.yaml");
  EXPECT_EQ(configuration_file("run"), "run/config.yaml");
  EXPECT_EQ(configuration_file("run/config.yaml"), "run/config.yaml");
  EXPECT_EQ(configuration_file("absent"), "absent");
}

}  // namespace
}  // namespace mantissa::testing
