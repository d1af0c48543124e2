// All outcomes that a test program can cause in a row of tools/gpu_check's table, one suite each.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace mantissa {
namespace {

TEST(Passes, One) {}
TEST(Passes, AndLeavesItsLineOpen) { std::printf("no line end"); }

TEST(Skips, All) { GTEST_SKIP() << "there is no such thing here"; }

TEST(SkipsSome, ButNotThis) {}
TEST(SkipsSome, This) { GTEST_SKIP() << "version 1 found, 2 needed"; }

TEST(Fails, NotHere) {}
TEST(Fails, WithAMessage) { EXPECT_EQ(1 + 1, 3) << "left | right"; }
TEST(Fails, OnceMore) { FAIL() << "the second failure"; }

TEST(Crashes, InTheMiddle) { std::abort(); }

TEST(Throws, AnError) { throw std::runtime_error("out of luck"); }

TEST(Hangs, ForEver) {
  for (;;) pause();
}

}  // namespace
}  // namespace mantissa
