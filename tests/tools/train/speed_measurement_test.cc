
#include <gtest/gtest.h>

#include <thread>

#include "comm/local/local_communicator.h"
#include "core/backend/registry.h"
#include "tests/program/program.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/run_profile.h"
#include "tools/train/step/session.h"

namespace mantissa::testing {
namespace {

// The CPU with a data sheet, as a device that all ranks share.
const bool kRegistered =
    register_backend("cpu_with_datasheet",
                     {.create = [](int) { return create_backend("cpu"); },
                      .device_identity = [](int) { return DeviceIdentity{.uuid = "the only one", .pci_bus_id = ""}; },
                      .datasheet_flops = [](int, DType dtype, Fp32Math) -> std::optional<double> {
                        if (dtype == DType::kBF16) return 3e12;
                        return std::nullopt;
                      }});

std::vector<SpeedContext> measure(int ranks, std::vector<std::string> settings) {
  const SmallRun run("speed_measurement");
  settings.insert(settings.begin(), "train.measure_peak=true");
  const Config config = load_config(run.config_path(), settings);
  LocalGroup group(ranks);
  std::vector<SpeedContext> found(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Session session(config, group.rank(rank));
      found[static_cast<size_t>(rank)] =
          measure_speed_context(session.config, session.device, session.runtime, session.communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(SpeedMeasurement, SumsThePeaksOfAllRanks) {
  const auto found = measure(2, {"device=cpu_with_datasheet", "precision.compute=bf16"});
  EXPECT_GT(found[0].gemm_peak_flops, 1e8);
  EXPECT_EQ(found[0].gemm_peak_flops, found[1].gemm_peak_flops);
  EXPECT_EQ(found[0].datasheet_flops, 0.0) << "each of two ranks would be promised the only device";
  EXPECT_EQ(found[0].tokens_per_step, 12 * 32);
  EXPECT_GT(found[0].flops_per_step, 0.0);
}

TEST(SpeedMeasurement, LeavesThePeakOutOnRequest) {
  const auto found = measure(1, {"device=cpu_with_datasheet", "precision.compute=bf16", "train.measure_peak=false"});
  EXPECT_EQ(found[0].gemm_peak_flops, 0.0);
  EXPECT_EQ(found[0].datasheet_flops, 3e12);
}

TEST(SpeedMeasurement, OneRankHasTheDataSheetOfItsDevice) {
  EXPECT_EQ(measure(1, {"device=cpu_with_datasheet", "precision.compute=bf16"})[0].datasheet_flops, 3e12);
}

TEST(PromisedFlops, AreOfTheDtypeAndTheProductsThatMakeOne) {
  const auto promised = [](DType compute, Fp32Products products) {
    PrecisionConfig precision;
    precision.compute = compute;
    precision.fp32_products = products;
    return promised_flops(find_backend("cpu_with_datasheet"), 0, precision);
  };
  EXPECT_EQ(promised(DType::kBF16, Fp32Products::kFp32), 3e12);
  EXPECT_EQ(promised(DType::kF32, Fp32Products::kFp32), 0.0);
  EXPECT_EQ(promised(DType::kF32, Fp32Products::kBf16x3), 3e12 / 3);
  EXPECT_EQ(promised(DType::kF32, Fp32Products::kBf16x6), 3e12 / 6);
}

}  // namespace
}  // namespace mantissa::testing
