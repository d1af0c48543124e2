// The state of delayed scaling against one that is written out with a list of amaxes.
#include "core/quant/delayed_scaling.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <deque>
#include <vector>

#include "core/tensor/philox.h"

namespace mantissa {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Keeps the amaxes themselves, the newest first.
class WrittenOut {
 public:
  WrittenOut(DelayedScalingOptions options, float max) : options_(options), max_(max) {}

  float next(float amax) {
    amaxes_.push_front(std::isfinite(amax) ? amax : 0.0f);
    if (amaxes_.size() > static_cast<size_t>(options_.history)) amaxes_.pop_back();
    float chosen = amaxes_.front();
    if (options_.choice == AmaxChoice::kMax) {
      for (const float one : amaxes_) chosen = std::max(chosen, one);
    }
    if (chosen > 0.0f) {
      scale_ = std::min(max_ / chosen, std::ldexp(1.0f, 126)) / std::exp2(static_cast<float>(options_.margin));
    }
    return scale_;
  }

 private:
  DelayedScalingOptions options_;
  float max_;
  float scale_ = 1.0f;
  std::deque<float> amaxes_;
};

// Mostly values around 1 that drift, with runs of zeros, NaN and Inf in between.
float random_amax(uint32_t step) {
  const PhiloxCounter words = philox(17, {step, 0, 0, 0});
  switch (words[0] % 16) {
    case 0:
      return 0.0f;
    case 1:
      return kInfinity;
    case 2:
      return std::nanf("");
    case 3:
      return std::numeric_limits<float>::denorm_min();
    default:
      return std::exp2(8.0f * std::sin(static_cast<float>(step) / 50.0f) + 4.0f * uniform01(words[1]));
  }
}

TEST(DelayedScaling, EqualsTheWrittenOutStateOverAThousandSteps) {
  for (const AmaxChoice choice : {AmaxChoice::kMax, AmaxChoice::kMostRecent}) {
    for (const int32_t length : {1, 3, 16, 1024}) {
      for (const int32_t margin : {0, 2}) {
        const DelayedScalingOptions options{.history = length, .choice = choice, .margin = margin};
        WrittenOut expected(options, 448.0f);
        std::vector<uint32_t> history(static_cast<size_t>(length), 0);
        float scale = 1.0f;
        for (uint32_t step = 0; step < 1000; ++step) {
          const float amax = random_amax(step);
          scale = next_delayed_scale(options, history.data(), step, magnitude_bits(amax), 448.0f, scale);
          ASSERT_EQ(scale, expected.next(amax)) << "step " << step << ", history " << length;
          ASSERT_TRUE(std::isfinite(scale) && scale > 0.0f);
        }
      }
    }
  }
}

TEST(DelayedScaling, AnOverflowDoesNotHoldTheScale) {
  const DelayedScalingOptions options{.history = 4};
  std::vector<uint32_t> history(4, 0);
  float scale = next_delayed_scale(options, history.data(), 0, magnitude_bits(448.0f), 448.0f, 1.0f);
  EXPECT_EQ(scale, 1.0f);
  scale = next_delayed_scale(options, history.data(), 1, magnitude_bits(kInfinity), 448.0f, scale);
  EXPECT_EQ(scale, 1.0f);
  scale = next_delayed_scale(options, history.data(), 2, magnitude_bits(896.0f), 448.0f, scale);
  EXPECT_EQ(scale, 0.5f);
}

TEST(DelayedScaling, KeepsTheScaleWhileThereIsNoAmax) {
  const DelayedScalingOptions options{.history = 2, .choice = AmaxChoice::kMostRecent};
  std::vector<uint32_t> history(2, 0);
  float scale = next_delayed_scale(options, history.data(), 0, 0, 448.0f, 1.0f);
  EXPECT_EQ(scale, 1.0f);
  scale = next_delayed_scale(options, history.data(), 1, magnitude_bits(1.0f), 448.0f, scale);
  EXPECT_EQ(scale, 448.0f);
  scale = next_delayed_scale(options, history.data(), 2, magnitude_bits(std::nanf("")), 448.0f, scale);
  EXPECT_EQ(scale, 448.0f);
}

}  // namespace
}  // namespace mantissa
