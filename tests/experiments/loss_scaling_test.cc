// Loss scaling: the shares of gradients that underflow and overflow, with and without it, for lognormal magnitudes: ln
// |g| normal with mean m and standard deviation s. A format rounds anything up to half of its smallest number to 0, and
// anything from half a step beyond its largest on to Inf (e4m3: NaN):
//   P(g S -> 0) = Phi((ln(min_subnormal / 2 / S) - m) / s)
//   P(|g S| -> Inf) = 1 - Phi((ln((max + step / 2) / S) - m) / s)
// Loss scaling follows Micikevicius et al., "Mixed Precision Training", ICLR 2018. Gradients are nearly lognormal:
// Chmiel et al., "Neural gradients are near-lognormal: improved quantized and sparse training", ICLR 2021.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>

#include "core/tensor/format.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

constexpr int kSamples = 1 << 18;

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

struct Gradients {
  double mean;  // of ln |g|
  double deviation;
};

struct Shares {
  double zero = 0;
  double overflow = 0;
};

Shares measured(const Gradients& gradients, Format format, double scale) {
  Shares shares;
  for (uint32_t i = 0; i < kSamples; i += 2) {
    const PhiloxCounter words = philox(7, {i, 0, 0, 0});
    for (const float normal : normal_pair(words[0], words[1])) {
      const double magnitude = std::exp(gradients.mean + gradients.deviation * normal) * scale;
      const float rounded = quantize(format, static_cast<float>(magnitude), Saturation::kNo);
      shares.zero += rounded == 0 ? 1.0 / kSamples : 0;
      shares.overflow += std::isfinite(rounded) ? 0 : 1.0 / kSamples;
    }
  }
  return shares;
}

Shares predicted(const Gradients& gradients, Format format, double scale) {
  const FormatInfo& of = info(format);
  // The step of the last binade, in which e4m3 ends at 448.
  const double step = std::exp2(std::floor(std::log2(of.max))) * of.epsilon;
  const auto below = [&](double magnitude) {
    return normal_cdf((std::log(magnitude / scale) - gradients.mean) / gradients.deviation);
  };
  return {below(0.5 * of.min_subnormal), 1 - below(of.max + 0.5 * step)};
}

// 4.5 standard deviations of a share of kSamples, plus one sample for shares near 0.
double tolerance(double share) { return 4.5 * std::sqrt(share * (1 - share) / kSamples) + 1.0 / kSamples; }

// Scales from 1, where 8 bits round most gradients to 0, to a scale that overflows.
TEST(LossScaling, SharesOfLognormalGradientsAreThoseOfTheFormula) {
  for (const Format format : {Format::kE5M2, Format::kE4M3, Format::kF16}) {
    for (const Gradients gradients : {Gradients{std::log(1e-6), 2.0}, Gradients{std::log(1e-4), 3.0}}) {
      for (const int exponent : {0, 6, 12, 18, 24}) {
        const double scale = std::exp2(exponent);
        const Shares is = measured(gradients, format, scale), should = predicted(gradients, format, scale);
        std::printf("%-5s median %.0e s %.0f scale 2^%-2d to 0: %.5f (%.5f)  overflow: %.6f (%.6f)\n",
                    std::string(info(format).name).c_str(), std::exp(gradients.mean), gradients.deviation, exponent,
                    is.zero, should.zero, is.overflow, should.overflow);
        EXPECT_NEAR(is.zero, should.zero, tolerance(should.zero));
        EXPECT_NEAR(is.overflow, should.overflow, tolerance(should.overflow));
      }
    }
  }
}

// How to choose a scale: a format's range, from half of its smallest number to its largest, holds log(range) / s
// standard deviations. If the scale centres the gradients in the range, both tails are equal, and no scale keeps more.
// Here the range holds six.
TEST(LossScaling, NoScaleKeepsMoreThanTheOneInTheMiddle) {
  for (const Format format : {Format::kE5M2, Format::kE4M3, Format::kF16}) {
    const FormatInfo& of = info(format);
    const double step = std::exp2(std::floor(std::log2(of.max))) * of.epsilon;
    const double low = std::log(0.5 * of.min_subnormal), high = std::log(of.max + 0.5 * step);
    const Gradients gradients{std::log(1e-5), (high - low) / 6};
    const double middle = std::exp(0.5 * (low + high) - gradients.mean);
    const double lost = 2 * normal_cdf(-0.5 * (high - low) / gradients.deviation);
    const Shares best = measured(gradients, format, middle);
    std::printf("%-5s s %.2f scale %.3g loses %.5f (%.5f)\n", std::string(of.name).c_str(), gradients.deviation, middle,
                best.zero + best.overflow, lost);
    EXPECT_NEAR(best.zero + best.overflow, lost, tolerance(lost));
    for (const double factor : {0.1, 10.0}) {
      const Shares other = measured(gradients, format, middle * factor);
      EXPECT_GT(other.zero + other.overflow, best.zero + best.overflow);
    }
  }
}

}  // namespace
}  // namespace mantissa
