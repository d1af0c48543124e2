// Error propagation: operands rounded to a format, products summed in fp32.
//
// Rounding to nearest adds noise of variance step^2 / 12. Relative to normal numbers of variance s^2 that is kappa^2 =
// E[step^2] / (12 s^2). For a dot product of independent, rounded x and y of mean 0, the error is sum x y (e1 + e2).
// Relative to the product, its root mean square is
//   sqrt(2) kappa, whatever the length n,
// because both go like sqrt(n). A chain of L linear layers adds squares: sqrt((1 + 2 kappa^2)^L - 1), or sqrt(2 L)
// kappa while that is small. On random, independent errors instead of worst-case bounds: Higham, Mary, "A New Approach
// to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41(5), 2019.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <iterator>
#include <numbers>
#include <string>
#include <vector>

#include "core/tensor/philox.h"
#include "tests/experiments/weight_rounding.h"

namespace mantissa {
namespace {

using testing::kWeightFormats;

// A standard deviation at which no format underflows or overflows much, as scales ensure.
constexpr double kDeviation = 16;

std::vector<float> normals(uint32_t stream, int count) {
  std::vector<float> values(count);
  for (int i = 0; i < count; i += 2) {
    const PhiloxCounter words = philox(11, {static_cast<uint32_t>(i), stream, 0, 0});
    const auto [a, b] = normal_pair(words[0], words[1]);
    values[i] = static_cast<float>(kDeviation * a);
    if (i + 1 < count) values[i + 1] = static_cast<float>(kDeviation * b);
  }
  return values;
}

std::vector<float> rounded(Format format, const std::vector<float>& values) {
  std::vector<float> result;
  for (const float value : values) result.push_back(quantize(format, value, Saturation::kYes));
  return result;
}

// sqrt(E[step^2] / 12) / s, by binades of the normal distribution, including subnormals.
double kappa(Format format) {
  const FormatInfo& of = info(format);
  double squares = 0;
  const auto below = [](double magnitude) { return std::erf(magnitude / kDeviation / std::sqrt(2.0)); };
  squares += below(of.min_normal) * of.min_subnormal * of.min_subnormal;
  for (double binade = of.min_normal; binade < of.max && binade < 100 * kDeviation; binade *= 2) {
    const double step = binade * of.epsilon;
    squares += (below(2 * binade) - below(binade)) * step * step;
  }
  return std::sqrt(squares / 12) / kDeviation;
}

double dot_in_double(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(x[i]) * y[i];
  return sum;
}

float dot(const std::vector<float>& x, const std::vector<float>& y) {
  float sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// The factor is 1.1. The root mean square of the errors of 2000 products is known to within 1.6 %. The rest covers
// errors that are not quite independent of the numbers.
TEST(ErrorPropagation, OfADotProductIsTheSameForAllLengths) {
  constexpr int kProducts = 2000;
  for (const int length : {16, 128, 1024}) {
    std::vector<double> errors(std::size(kWeightFormats), 0);
    for (int i = 0; i < kProducts; ++i) {
      const std::vector<float> x = normals(2 * i, length), y = normals(2 * i + 1, length);
      const double exact = dot_in_double(x, y);
      for (size_t f = 0; f < errors.size(); ++f) {
        const double error = dot(rounded(kWeightFormats[f], x), rounded(kWeightFormats[f], y)) - exact;
        errors[f] += error * error / kProducts;
      }
    }
    for (size_t f = 0; f < errors.size(); ++f) {
      const FormatInfo& of = info(kWeightFormats[f]);
      const double measured = std::sqrt(errors[f] / length) / (kDeviation * kDeviation);
      const double predicted = std::sqrt(2.0) * kappa(kWeightFormats[f]);
      std::printf("%-5s n %-5d relative error %.4e, sqrt(2) kappa %.4e = %.4f eps, ratio %.3f\n",
                  std::string(of.name).c_str(), length, measured, predicted, predicted / of.epsilon,
                  measured / predicted);
      EXPECT_LT(measured / predicted, 1.1);
      EXPECT_GT(measured / predicted, 1 / 1.1);
    }
  }
}

constexpr int kWidth = 64, kLayers = 64, kChains = 8;
using Matrix = std::vector<float>;  // (kWidth, kWidth)

// Independent normal numbers; for kOrthogonal, the Gram-Schmidt process then makes the rows orthogonal.
enum class Layers : uint8_t { kNormal, kOrthogonal };
Matrix layer_of(Layers layers, int chain, int layer) {
  const std::vector<float> normal = normals(10000 + 100 * chain + layer, kWidth * kWidth);
  std::vector<double> w(normal.begin(), normal.end());
  for (int row = 0; layers == Layers::kOrthogonal && row < kWidth; ++row) {
    double* own = &w[row * kWidth];
    for (int other = 0; other <= row; ++other) {
      const double* unit = &w[other * kWidth];
      double product = 0;
      for (int i = 0; i < kWidth; ++i) product += own[i] * unit[i];
      const double factor = other < row ? 0 : 1 / std::sqrt(product);
      for (int i = 0; i < kWidth; ++i) own[i] = other < row ? own[i] - product * unit[i] : own[i] * factor;
    }
  }
  if (layers == Layers::kNormal) return normal;
  Matrix result(w.size());
  for (size_t i = 0; i < w.size(); ++i) result[i] = static_cast<float>(w[i] * kDeviation * std::sqrt(kWidth));
  return result;
}

// x <- W x, layer by layer, both rounded and exact. Returns squares of the relative error by layer.
std::vector<double> chain_errors(Layers layers, Format format) {
  std::vector<double> errors(kLayers + 1, 0);
  for (int chain = 0; chain < kChains; ++chain) {
    std::vector<float> exact = normals(1000 + chain, kWidth), low = exact;
    for (int layer = 1; layer <= kLayers; ++layer) {
      const Matrix w = layer_of(layers, chain, layer), w_low = rounded(format, w);
      const std::vector<float> x_low = rounded(format, low);
      double norm = 0, error = 0;
      std::vector<float> y, y_low;
      for (int row = 0; row < kWidth; ++row) {
        const auto begin = row * kWidth, end = begin + kWidth;
        const double sum = dot_in_double({w.begin() + begin, w.begin() + end}, exact);
        const float sum_low = dot({w_low.begin() + begin, w_low.begin() + end}, x_low);
        y.push_back(static_cast<float>(sum));
        y_low.push_back(sum_low);
        norm += sum * sum;
        error += (sum_low - sum) * (sum_low - sum);
      }
      errors[layer] += error / norm / kChains;
      // A common factor keeps the magnitude of the exact vector.
      const auto factor = static_cast<float>(kDeviation * std::sqrt(kWidth / norm));
      for (int row = 0; row < kWidth; ++row) {
        exact[row] = y[row] * factor;
        low[row] = y_low[row] * factor;
      }
    }
  }
  return errors;
}

double predicted_chain_error(Format format, int layers) {
  return std::sqrt(std::pow(1 + 2 * kappa(format) * kappa(format), layers) - 1);
}

void print_chain(const char* layers, Format format, int count, double measured) {
  const double predicted = predicted_chain_error(format, count);
  std::printf("%-5s %-10s L %-3d relative error %.4e predicted %.4e ratio %.3f\n",
              std::string(info(format).name).c_str(), layers, count, measured, predicted, measured / predicted);
}

// Layers that keep lengths. The factor is 1.15: a relative error from 8 chains of 64 numbers is known to within 3 %,
// and the layers of one chain share their numbers. The formula assumes small errors. Errors above half of the numbers
// (e5m2, 64 layers) get 1.3.
TEST(ErrorPropagation, OfAChainOfLayersGoesLikeTheRootOfTheirNumber) {
  for (const Format format : kWeightFormats) {
    const std::vector<double> errors = chain_errors(Layers::kOrthogonal, format);
    for (const int layers : {1, 4, 16, 64}) {
      const double measured = std::sqrt(errors[layers]), predicted = predicted_chain_error(format, layers);
      print_chain("orthogonal", format, layers, measured);
      const double factor = predicted < 0.5 ? 1.15 : 1.3;
      EXPECT_LT(measured / predicted, factor);
      EXPECT_GT(measured / predicted, 1 / factor);
    }
  }
}

// Exception: layers that shorten some directions and lengthen others. After many of them, vectors lie in few directions
// and lengths spread ever further. A chain that got short in exact arithmetic has a large relative error. The formula
// holds while the layers are few relative to their width.
TEST(ErrorPropagation, OfManyNormalLayersGrowsFaster) {
  for (const Format format : {Format::kF16, Format::kBF16}) {
    const std::vector<double> errors = chain_errors(Layers::kNormal, format);
    for (const int layers : {4, 64}) print_chain("normal", format, layers, std::sqrt(errors[layers]));
    EXPECT_NEAR(std::sqrt(errors[4]) / predicted_chain_error(format, 4), 1, 0.25);
    EXPECT_GT(std::sqrt(errors[64]) / predicted_chain_error(format, 64), 1.2);
  }
}

// Exception: sums of one sign. Products grow like n and random errors like sqrt(n), so relative errors fall like 1 /
// sqrt(n). A bias remains, because rounding to nearest reduces magnitudes: a power of two attracts values from half a
// step above it and from a quarter of one below. For density f, the bias over all binades is -1/32 sum over k of
// step_k^2 f(2^k). For smooth f that is eps^2 / (32 ln 2) of the mean magnitude. So is kappa^2.
TEST(ErrorPropagation, OfNumbersOfOneSignFallsToWhatIsNotRandom) {
  struct Moments {
    double mean = 0;
    double deviation = 0;
  };
  const auto relative_error = [](int length) {
    constexpr int kProducts = 800;
    double sum = 0, squares = 0;
    for (int i = 0; i < kProducts; ++i) {
      std::vector<float> x = normals(2 * i, length), y = normals(2 * i + 1, length);
      for (float& value : x) value = std::abs(value);
      for (float& value : y) value = std::abs(value);
      // The mean product is n E|x| E|y|.
      const double product = length * kDeviation * kDeviation * 2 / std::numbers::pi;
      const double error = dot(rounded(Format::kE4M3, x), rounded(Format::kE4M3, y)) - dot_in_double(x, y);
      sum += error / product / kProducts;
      squares += error * error / (product * product) / kProducts;
    }
    return Moments{sum, std::sqrt(squares - sum * sum)};
  };
  const Moments at_16 = relative_error(16), at_1024 = relative_error(1024);
  const double second_order = 2 * kappa(Format::kE4M3) * kappa(Format::kE4M3);
  std::printf("e4m3, one sign: n 16 %.3e +- %.3e, n 1024 %.3e +- %.3e, quotient %.2f (sqrt(64) = 8), -2 kappa^2 %.3e\n",
              at_16.mean, at_16.deviation, at_1024.mean, at_1024.deviation, at_16.deviation / at_1024.deviation,
              -second_order);
  EXPECT_NEAR(at_16.deviation / at_1024.deviation, 8, 0.8);
  EXPECT_NEAR(at_1024.mean, -second_order, 0.2 * second_order);
}

}  // namespace
}  // namespace mantissa
