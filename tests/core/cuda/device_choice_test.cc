#include "core/cuda/device_models.h"

#include <gtest/gtest.h>

namespace mantissa::cuda {
namespace {

TEST(DeviceChoice, CodeRunsOnItsMajorVersionAndUpwards) {
  EXPECT_TRUE(runs_on("sm_80", 8, 0));
  EXPECT_TRUE(runs_on("sm_80", 8, 6));
  EXPECT_FALSE(runs_on("sm_89", 8, 6));
  EXPECT_FALSE(runs_on("sm_80", 9, 0));
  EXPECT_TRUE(runs_on("sm_90a", 9, 0));
  EXPECT_FALSE(runs_on("sm_100a", 10, 3));
}

TEST(DeviceChoice, TheAdviceIsABuildThatExists) {
  EXPECT_EQ(build_advice(8, 6), "build with --//tools/build:cuda_archs=sm_80");
  EXPECT_EQ(build_advice(9, 0), "build with --//tools/build:cuda_archs=sm_90a");
  EXPECT_EQ(build_advice(10, 0), "build with --//tools/build:cuda_archs=sm_100a");
  EXPECT_EQ(build_advice(7, 5),
            "a build can hold code for sm_80, sm_89, sm_90a, sm_100a only, none of which runs on it");
}

}  // namespace
}  // namespace mantissa::cuda
