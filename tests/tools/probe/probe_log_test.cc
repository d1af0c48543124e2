#include "tools/probe/probe_log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "core/base/error.h"
#include "core/quant/exponent_histogram.h"
#include "tests/program/program.h"
#include "tests/testing/error_of.h"
#include "tests/tools/probe/probe_rows.h"

namespace mantissa {
namespace {

using testing::fresh_folder;
using testing::ProbeRows;

ProbeRow tensor_row(float amax) {
  ProbeRow row{.role = probe_role::kGradient, .tensor = "blocks.0.mlp.up", .format = "current:e4m3", .scale = 4.0f};
  row.histogram.amax = std::bit_cast<uint32_t>(amax);
  row.histogram.counts[1000] = 3;
  row.losses = {.elements = 5, .zeros = 1, .underflowed = 2, .subnormal = 1, .overflowed = 0, .non_finite = 1};
  return row;
}

ProbeRow product_row() {
  ProbeRow row{.role = "wgrad", .tensor = "blocks.0.mlp.up", .format = "bf16 x bf16"};
  row.error = {.elements = 2,
               .non_finite = 0,
               .reference_squares = 100.0,
               .squares = 100.0,
               .products = 99.0,
               .error_squares = 1.0};
  row.batch_noise = 4.0;
  return row;
}

ProbeRow update_row() {
  ProbeRow row{.role = probe_role::kUpdate, .tensor = "blocks.0.mlp.up.weight", .format = "bf16"};
  row.losses.elements = 8;
  row.stagnation = {.elements = 8, .zero = 0, .non_finite = 0, .stagnant = {0, 6, 2}};
  return row;
}

TEST(ProbeLog, HoldsWhatRowsSay) {
  const std::string path = fresh_folder("probe_log_rows") + "/probes.mtp";
  ProbeLog log(path, std::nullopt);
  log.append({.step = 0, .loss_scale = 256.0f, .rows = {tensor_row(0.5f), product_row(), update_row()}});
  log.append({.step = 10, .loss_scale = 128.0f, .rows = {tensor_row(2.0f)}});

  const ProbeRows file(path);  // while the log is open
  EXPECT_EQ(file.integers("step"), (std::vector<int64_t>{1, 1, 1, 11}));
  EXPECT_EQ(file.texts("role"), (std::vector<std::string>{"gradient", "wgrad", "update", "gradient"}));
  EXPECT_EQ(file.texts("tensor")[0], "blocks.0.mlp.up");
  EXPECT_EQ(file.texts("format")[0], "current:e4m3");
  EXPECT_EQ(file.reals("scale")[0], 4.0);
  EXPECT_EQ(file.reals("loss_scale"), (std::vector<double>{256, 256, 256, 128}));
  EXPECT_EQ(file.integers("elements"), (std::vector<int64_t>{5, -1, 8, 5}));
  EXPECT_EQ(file.integers("zeros")[0], 1);
  EXPECT_EQ(file.integers("underflowed")[0], 2);
  EXPECT_EQ(file.integers("subnormal")[0], 1);
  EXPECT_EQ(file.integers("overflowed")[0], 0);
  EXPECT_EQ(file.integers("non_finite")[0], 1);
  EXPECT_EQ(file.reals("amax")[0], 0.5);
  EXPECT_TRUE(std::isnan(file.reals("drift")[0])) << "there is nothing before";
  EXPECT_EQ(file.reals("drift")[3], 3.0) << "four times as large at half the loss scale";
  EXPECT_EQ(decode_histogram(file.bytes("histogram")[0]), tensor_row(0.5f).histogram);
  EXPECT_TRUE(file.bytes("histogram")[1].empty());
  EXPECT_TRUE(std::isnan(file.reals("snr_db")[0]));
  EXPECT_EQ(file.reals("snr_db")[1], 20.0);
  EXPECT_FLOAT_EQ(static_cast<float>(file.reals("cosine")[1]), 0.99f);
  EXPECT_EQ(file.reals("noise_ratio")[1], 0.25);
  EXPECT_EQ(file.integers("stagnant_bf16"), (std::vector<int64_t>{-1, -1, 6, -1}));
}

TEST(ProbeLog, GoesOnBehindACheckpoint) {
  const std::string path = fresh_folder("probe_log_resume") + "/probes.mtp";
  {
    ProbeLog log(path, std::nullopt);
    for (const int64_t step : {0, 10, 20, 30}) log.append({.step = step, .rows = {tensor_row(1.0f)}});
  }
  ProbeLog log(path, 20);  // steps 0 to 19 are part of the checkpoint
  log.append({.step = 20, .rows = {tensor_row(1.0f)}});
  EXPECT_EQ(ProbeRows(path).integers("step"), (std::vector<int64_t>{1, 11, 21}));
}

TEST(ProbeLog, AKilledRunLeavesWholeSteps) {
  const std::string path = fresh_folder("probe_log_killed") + "/probes.mtp";
  const pid_t child = ::fork();
  if (child == 0) {
    ProbeLog log(path, std::nullopt);
    for (const int64_t step : {0, 10, 20}) log.append({.step = step, .rows = {tensor_row(1.0f), product_row()}});
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(ProbeRows(path).integers("step"), (std::vector<int64_t>{1, 1, 11, 11, 21, 21}));
  ProbeLog log(path, 20);
  log.append({.step = 20, .rows = {tensor_row(1.0f)}});
  EXPECT_EQ(ProbeRows(path).integers("step"), (std::vector<int64_t>{1, 1, 11, 11, 21}));
}

// A truncated copy is refused or set aside, wherever it ends. No step is mistaken for another.
TEST(ProbeLog, ACutFileIsKeptAside) {
  const std::string path = fresh_folder("probe_log_cut") + "/probes.mtp";
  { ProbeLog(path, std::nullopt).append({.step = 0, .rows = {tensor_row(1.0f)}}); }
  const std::string whole = testing::read_file(path);
  for (size_t bytes = 0; bytes < whole.size(); bytes += 777) {
    const std::string cut = fresh_folder("probe_log_cut_at") + "/probes.mtp";
    testing::write_file(cut, whole.substr(0, bytes));
    { const ProbeLog log(cut, 20); }
    EXPECT_EQ(ProbeRows(cut).rows(), 0) << bytes;
    EXPECT_EQ(testing::read_file(cut + ".previous"), whole.substr(0, bytes));
  }
}

TEST(ProbeLog, AFileThatIsTruncatedDuringTheRunTakesNoMoreRows) {
  const std::string path = fresh_folder("probe_log_truncated") + "/probes.mtp";
  ProbeLog log(path, std::nullopt);
  for (const int64_t step : {0, 10}) log.append({.step = step, .rows = {tensor_row(1.0f)}});
  std::filesystem::resize_file(path, 100);
  EXPECT_EQ(testing::error_of([&] { log.append({.step = 20, .rows = {tensor_row(1.0f)}}); }),
            path + ": somebody truncated it");
}

TEST(ProbeLog, AFinishedFileStandsAlone) {
  const std::string folder = fresh_folder("probe_log_alone"), path = folder + "/probes.mtp";
  { ProbeLog(path, std::nullopt).append({.step = 0, .rows = {tensor_row(1.0f)}}); }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) EXPECT_EQ(entry.path(), path);
  EXPECT_EQ(ProbeRows(path).rows(), 1);
}

TEST(ProbeLog, BeginsAnewWhereTheFileIsDamaged) {
  const std::string path = fresh_folder("probe_log_damaged") + "/probes.mtp";
  testing::write_file(path, "mtprobe1\x04");  // the header of an earlier version
  EXPECT_EQ(testing::error_of([&] { ProbeRows{path}; }),
            path + ": file is not a database (expected a probe file of this version of the program)");
  ProbeLog log(path, 20);
  log.append({.step = 20, .rows = {tensor_row(1.0f)}});
  EXPECT_EQ(ProbeRows(path).integers("step"), std::vector<int64_t>{21});
  EXPECT_EQ(testing::read_file(path + ".previous"), "mtprobe1\x04");
}

TEST(ProbeLog, RefusesOtherDatabasesAndVersions) {
  const std::string path = fresh_folder("probe_log_other") + "/probes.mtp";
  { Database(path, Database::Mode::kWrite).run("CREATE TABLE probes (step INTEGER)"); }
  EXPECT_EQ(testing::error_of([&] { ProbeRows{path}; }).find(path + ": expected a probe file, got another database"),
            0u);
  { const ProbeLog log(path, 20); }
  { Database(path, Database::Mode::kWrite).run("PRAGMA user_version = 2"); }
  EXPECT_EQ(testing::error_of([&] { ProbeRows{path}; }).find(path + ": expected a probe file of version 1, got 2"), 0u);
}

// Overwrites a page of the table with other bytes.
void damage(const std::string& path) {
  std::string bytes = testing::read_file(path);
  ASSERT_GT(bytes.size(), 4096u + 200u);
  bytes.replace(4096, 200, 200, '\xff');
  testing::write_file(path, bytes);
}

TEST(ProbeLog, KeepsAFileWithADamagedPage) {
  const std::string path = fresh_folder("probe_log_damaged_page") + "/probes.mtp";
  {
    ProbeLog log(path, std::nullopt);
    for (int64_t step = 0; step < 3; ++step) log.append({.step = step, .rows = {tensor_row(1.0f)}});
  }
  damage(path);
  const std::string bytes = testing::read_file(path);
  ProbeLog log(path, 20);
  log.append({.step = 20, .rows = {tensor_row(1.0f)}});
  EXPECT_EQ(ProbeRows(path).integers("step"), (std::vector<int64_t>{21}));
  EXPECT_EQ(testing::read_file(path + ".previous"), bytes);
}

// Whatever the file contains, nothing that was kept is overwritten.
TEST(ProbeLog, KeepsEveryFileThatItTakesThePlaceOf) {
  const std::string path = fresh_folder("probe_log_kept") + "/probes.mtp";
  for (const std::string damaged : {"first", "second"}) {
    testing::write_file(path, damaged);
    ProbeLog(path, 20).append({.step = 20, .rows = {tensor_row(1.0f)}});
  }
  damage(path);
  const std::string page = testing::read_file(path);
  { const ProbeLog log(path, 40); }
  const std::string whole = testing::read_file(path);
  { const ProbeLog log(path, std::nullopt); }
  EXPECT_EQ(testing::read_file(path + ".previous"), "first");
  EXPECT_EQ(testing::read_file(path + ".previous.2"), "second");
  EXPECT_EQ(testing::read_file(path + ".previous.3"), page) << "a page was damaged";
  EXPECT_EQ(testing::read_file(path + ".previous.4"), whole) << "a run began anew";
  EXPECT_FALSE(std::filesystem::exists(path + ".previous.5"));
}

TEST(ProbeLog, DriftOfGradientsLeavesTheLossScaleOut) {
  const std::string path = fresh_folder("probe_log_drift") + "/probes.mtp";
  ProbeLog log(path, std::nullopt);
  log.append({.step = 0, .loss_scale = 64.0f, .rows = {tensor_row(1.0f)}});
  log.append({.step = 1, .loss_scale = 32.0f, .rows = {tensor_row(1.0f)}});
  EXPECT_EQ(ProbeRows(path).reals("drift")[1], 1.0);
}

TEST(ProbeLog, ANewRunKeepsTheFileOfTheLast) {
  const std::string path = fresh_folder("probe_log_new") + "/probes.mtp";
  { ProbeLog(path, std::nullopt).append({.step = 5, .rows = {tensor_row(1.0f)}}); }
  const ProbeLog log(path, std::nullopt);
  EXPECT_EQ(ProbeRows(path).rows(), 0);
  EXPECT_EQ(ProbeRows(path + ".previous").rows(), 1);
}

}  // namespace
}  // namespace mantissa
