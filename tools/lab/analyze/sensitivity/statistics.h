// Statistics of the sensitivity analysis: means of measurements, rank correlation, mutual information, entropy.
#pragma once

#include <limits>
#include <span>

namespace mantissa {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// The mean of repeated measurements. All are unknown if a value is not finite.
inline constexpr double kConfidence = 0.95;
struct Estimate {
  double mean = kUnknown;
  double half_width = kUnknown;  // of the confidence interval by Student's t; unknown for fewer than two values
  double error = kUnknown;       // standard error of the mean; unknown for fewer than two values
};
Estimate estimate(std::span<const double> values, double level = kConfidence);

// Spearman's rank correlation, -1 to 1: Pearson's for the ranks, where equal values share their mean rank. Leaves out
// pairs with a NaN; Inf ranks above all numbers. NaN for fewer than three pairs, and if a variable is constant.
double rank_correlation(std::span<const double> x, std::span<const double> y);

// I(x; y) in bits from pairs of samples: the sum of p log2(p / (p_x p_y)) over a histogram of their ranks, with
// kInformationBins classes of equally many samples in each variable, minus the bias of this plug-in estimate,
//   (cells - cells_x - cells_y + 1) / (2 n ln 2),   cells: the occupied cells
// (Miller, "Note on the bias of information estimates", 1955). Ranks keep the mutual information of continuous
// variables. At most log2(kInformationBins), never below 0. Equal values, which rounding makes frequent, are in the
// same class. 0 for fewer than two pairs; NaN if a value is.
inline constexpr int kInformationBins = 32;
double mutual_information(std::span<const float> x, std::span<const float> y);

// The differential entropy in bits of a variable in units of its standard deviation s, from a histogram with bins of
// width s / kBinsPerDeviation:
//   - sum p log2 p - log2(kBinsPerDeviation) + (occupied bins - 1) / (2 n ln 2)
// (the last term is Miller's). The maximum, log2(sqrt(2 pi e)) = 2.05, belongs to a normal distribution; a few large
// values among many small ones make it small. Values made equal by rounding count as spread over their bin. At least
// -log2(kBinsPerDeviation). NaN for fewer than two samples, if a value is not finite, and if all are equal.
inline constexpr int kBinsPerDeviation = 16;
double entropy_in_deviations(std::span<const float> x);

}  // namespace mantissa
