#include "core/base/thread_binding.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/base/error.h"
#include "core/base/thread_team.h"

namespace mantissa {
namespace {

// The processors of each thread of the team, as the system knows them. Tasks wait until every thread has come.
std::vector<std::vector<int>> masks_of_team() {
  const int count = threads();
  std::vector<std::vector<int>> masks(static_cast<size_t>(count));
  std::atomic<int> here = 0;
  parallel_for(count, [&](int64_t) {
    here.fetch_add(1);
    while (here.load() < count) std::this_thread::yield();
    masks[static_cast<size_t>(current_thread())] = processors_of_this_thread();
  });
  return masks;
}

TEST(ThreadBinding, EveryThreadOfTheTeamHasItsProcessorAlone) {
  const std::vector<int> free = processors_of_this_thread();
  const std::vector<int> wanted = {free.back(), free.front(), free.back()};  // also where there is one only
  bind_threads(wanted);
  EXPECT_EQ(threads(), 3);
  const auto masks = masks_of_team();
  for (size_t thread = 0; thread < wanted.size(); ++thread) {
    EXPECT_EQ(masks[thread], std::vector<int>{wanted[thread]}) << thread;
  }
  bind_threads({});
  EXPECT_EQ(processors_of_this_thread(), free);
}

TEST(ThreadBinding, AnotherNumberOfThreadsFreesThem) {
  const std::vector<int> free = processors_of_this_thread();
  bind_threads({free.front(), free.front()});
  set_threads(2);
  EXPECT_EQ(processors_of_this_thread(), std::vector<int>{free.front()});
  set_threads(3);
  for (const auto& mask : masks_of_team()) EXPECT_EQ(mask, free);
}

TEST(ThreadBinding, AProcessorThatIsNotThereIsNamedAndNothingIsBound) {
  const std::vector<int> free = processors_of_this_thread();
  set_threads(2);
  for (const int absent : {1023, -1}) {
    try {
      bind_threads({free.front(), absent});
      ADD_FAILURE() << "processor " << absent;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(absent)), std::string::npos) << error.what();
    }
    EXPECT_EQ(processors_of_this_thread(), free);
    EXPECT_EQ(threads(), 2);
  }
}

}  // namespace
}  // namespace mantissa
