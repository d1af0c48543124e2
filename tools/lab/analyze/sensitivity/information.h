// What a variable tells of another, from samples.
#pragma once

#include <span>

namespace mantissa {

// I(x; y) in bits of pairs of samples, from a histogram of their ranks: kInformationBins classes of equally many
// samples of each, and the sum of p log2(p / (p_x p_y)), less the bias of a plug-in estimate,
//   (cells - cells_x - cells_y + 1) / (2 n ln 2),   cells: those that are not empty
// (Miller, "Note on the bias of information estimates", 1955). Ranks leave the mutual information of continuous
// variables as it is. At most log2(kInformationBins); never below 0. Equal values, of which rounding makes many, are in
// one class. 0 of fewer than two pairs; NaN where a value is.
inline constexpr int kInformationBins = 32;
double mutual_information(std::span<const float> x, std::span<const float> y);

// The differential entropy in bits of a variable in units of its standard deviation s, from a histogram with bins of
// width s / kBinsPerDeviation:
//   - sum p log2 p - log2(kBinsPerDeviation) + (bins that are not empty - 1) / (2 n ln 2)
// (the last term is Miller's). A normal distribution has log2(sqrt(2 pi e)) = 2.05, which is the most that there is:
// few large values among many small ones make it small. Values that rounding has made equal count as spread over their
// bin. At least -log2(kBinsPerDeviation). NaN of fewer than two samples, of a value that is not finite, and where all
// are equal.
inline constexpr int kBinsPerDeviation = 16;
double entropy_in_deviations(std::span<const float> x);

}  // namespace mantissa
