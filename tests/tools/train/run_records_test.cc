// The files that a run leaves for programs: metrics.jsonl, and event files for TensorBoard.
#include "tools/run/metrics/metrics_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>

#include "core/base/log.h"
#include "tests/program/program.h"
#include "tools/config/config.h"

namespace mantissa::testing {
namespace {

RunRecords records_in(const std::string& path, std::optional<int64_t> steps) {
  Config config;
  config.train.run_dir = std::filesystem::path(path).parent_path();
  config.train.tensorboard = false;
  return RunRecords(config, steps);
}

TEST(RunRecords, AResumedRunContinuesBehindItsCheckpoint) {
  const std::string path = fresh_folder("metrics_resumed") + "/metrics.jsonl";
  write_file(
      path, "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\",\"step\":2}\n{\"event\":\"st");
  records_in(path, 1).write({{"event", "step"}, {"step", 2}, {"again", true}});
  EXPECT_EQ(read_file(path),
            "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1}\n{\"again\":true,\"event\":\"step\",\"step\":2}\n");
}

TEST(RunRecords, AnotherRunKeepsTheOldFileAside) {
  const std::string path = fresh_folder("metrics_new") + "/metrics.jsonl";
  write_file(path, "{\"event\":\"start\"}\n");
  records_in(path, std::nullopt).write({{"event", "other"}});
  EXPECT_EQ(read_file(path), "{\"event\":\"other\"}\n");
  EXPECT_EQ(read_file(path + ".previous"), "{\"event\":\"start\"}\n");
}

// Events of rollbacks to the first weights stay, as those of other rollbacks do.
TEST(RunRecords, ARollbackToTheFirstWeightsIsTheSameRun) {
  const std::string path = fresh_folder("metrics_rolled") + "/metrics.jsonl";
  const std::string start = "{\"event\":\"start\"}\n", rollback = "{\"event\":\"rollback\",\"step\":0}\n";
  write_file(path, start + "{\"event\":\"validation\",\"step\":0}\n" + rollback + "{\"event\":\"step\",\"step\":1}\n");
  records_in(path, 0).write({{"event", "other"}});
  EXPECT_EQ(read_file(path), start + rollback + "{\"event\":\"other\"}\n");
  EXPECT_FALSE(std::filesystem::exists(path + ".previous"));
}

// Names of the files in a folder that contain this text, sorted.
std::vector<std::string> files_with(const std::string& folder, const std::string& text) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.find(text) != std::string::npos) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The bytes of a field of type `string`.
std::string text_field(int field, const std::string& text) {
  return std::string{static_cast<char>(field << 3 | 2), static_cast<char>(text.size())} + text;
}

nlohmann::json step_record(int64_t step) {
  return {{"event", "step"}, {"step", step}, {"loss", 2.5}, {"mfu_of_gemm_peak", nullptr}, {"applied", step != 2}};
}

TEST(TensorboardFile, HoldsTheFiguresOfTheRecords) {
  const std::string folder = fresh_folder("tensorboard_figures");
  TensorboardFile file(folder, std::nullopt, {{"optimizer.lr", "0.001"}, {"path", "\xff"}});
  file.write(step_record(1));
  file.write({{"event", "validation"}, {"step", 1}, {"loss", 2.0}});
  file.write({{"event", "checkpoint"}, {"step", 1}});
  file.write({{"event", "sample"}, {"step", 1}, {"text", "one\ntwo"}});
  ASSERT_EQ(files_with(folder, "tfevents").size(), 1u);
  const std::string bytes = read_file(folder + "/" + files_with(folder, "tfevents")[0]);
  for (const char* tag : {"train/loss", "train/skipped", "validation/loss", "samples"}) {
    EXPECT_TRUE(has(bytes, text_field(1, tag))) << tag;
  }
  EXPECT_FALSE(has(bytes, text_field(1, "throughput/mfu"))) << "a figure that is not known";
  EXPECT_TRUE(has(bytes, "    one\n    two")) << "Markdown would join the lines";
  EXPECT_TRUE(has(bytes, "optimizer.lr"));
  EXPECT_TRUE(has(bytes, "\\xff")) << "readers refuse what is not UTF-8";
}

TEST(TensorboardFile, CountsMagnitudesByPowersOfTwo) {
  const std::string folder = fresh_folder("tensorboard_histograms");
  ProbedStep step;
  ProbeRow row{.role = "weight", .tensor = "w", .format = "fp32"};
  for (const float value : {0.25f, 0.3f, 1.5f, 0.0f})
    ++row.histogram.counts[histogram_bin(std::bit_cast<uint32_t>(value))];
  step.rows = {row, {.role = "update", .tensor = "only zeros", .format = "fp32"}};
  TensorboardFile(folder, std::nullopt, {}).write(step);
  const std::string bytes = read_file(folder + "/" + files_with(folder, "tfevents").at(0));
  const int64_t counts[] = {2, 0, 1};  // [1/4, 1/2), [1/2, 1), [1, 2)
  const std::string record = TensorboardEvent(0.0, 1).histogram("log2 of weight/w", -2, counts).record();
  const std::string values = record.substr(record.find("log2"), record.size() - 4 - record.find("log2"));
  EXPECT_TRUE(has(bytes, values));
  EXPECT_FALSE(has(bytes, "only zeros"));
}

TEST(TensorboardFile, AResumedRunMarksItsRestart) {
  const std::string folder = fresh_folder("tensorboard_resumed");
  TensorboardFile(folder, std::nullopt, {}).write(step_record(1));
  TensorboardFile(folder, 5, {}).write(step_record(6));
  const TensorboardFile from_first_weights(folder, 0, {});
  const std::vector<std::string> files = files_with(folder, "tfevents");  // in the order in which they were made
  ASSERT_EQ(files.size(), 3u);
  const auto restarts_at = [&](const std::string& name, int64_t step) {
    const std::string record = TensorboardEvent::restart(0.0, step);
    constexpr size_t kBeforeStep = 12 + 9;  // the frame and the time
    return has(read_file(folder + "/" + name), record.substr(kBeforeStep, record.size() - kBeforeStep - 4));
  };
  EXPECT_FALSE(restarts_at(files[0], 1));
  EXPECT_TRUE(restarts_at(files[1], 6)) << "steps up to 5 stay";
  EXPECT_TRUE(restarts_at(files[2], 0)) << "the evaluation of the first weights is made again";
}

TEST(TensorboardFile, AnotherRunIsNotMixedWithTheOneBefore) {
  const std::string folder = fresh_folder("tensorboard_another");
  write_file(folder + "/events.out.previous.1", "of the run before the last");
  write_file(folder + "/events.out.tfevents.1", "of the last run");
  const TensorboardFile file(folder, std::nullopt, {});
  EXPECT_EQ(files_with(folder, "tfevents").size(), 1u);
  EXPECT_EQ(read_file(folder + "/events.out.previous.1"), "of the last run");
}

TEST(RunRecords, TensorboardCanBeLeftOut) {
  Config config;
  for (const bool wanted : {true, false}) {
    config.train.run_dir = fresh_folder(wanted ? "records_all" : "records_without");
    config.train.tensorboard = wanted;
    RunRecords(config, std::nullopt).write(step_record(1));
    EXPECT_EQ(files_with(config.train.run_dir, "tfevents").size(), wanted ? 1u : 0u);
    EXPECT_TRUE(has(read_file(config.train.run_dir + "/metrics.jsonl"), "\"loss\":2.5"));
  }
}

TEST(AppendedFile, SaysOnceThatItIsRemovedOrTruncated) {
  for (const bool removes : {true, false}) {
    const std::string path = fresh_folder("appended_removed") + "/file";
    AppendedFile file("metrics", path);
    file.append("record");
    removes ? std::filesystem::remove(path) : (std::filesystem::resize_file(path, 0), true);
    const int64_t before = logged_warnings();
    for (int i = 0; i < 3; ++i) file.append("record");
    EXPECT_EQ(logged_warnings(), before + 1);
  }
}

// A full disk: part of a record would hide all that follows.
TEST(AppendedFile, HoldsWholeRecordsWhenTheDiskIsFull) {
  const std::string path = fresh_folder("appended") + "/file";
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  AppendedFile file("figures", path);
  file.append("first record\n");
  const rlimit full{.rlim_cur = 20, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  ::testing::internal::CaptureStderr();
  file.append("second record\n");
  file.append("third record\n");
  const std::string told = ::testing::internal::GetCapturedStderr();
  setrlimit(RLIMIT_FSIZE, &before);
  file.append("fourth record\n");
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(read_file(path), "first record\nfourth record\n");
  EXPECT_EQ(told.find("figures cannot be written to " + path), told.rfind("figures cannot be written to")) << told;
}

}  // namespace
}  // namespace mantissa::testing
