#include "tools/probe/probe_row.h"

#include <algorithm>

namespace mantissa {
namespace {

void add(ExponentHistogram& histogram, const ExponentHistogram& other) {
  for (int bin = 0; bin < kHistogramBins; ++bin) histogram.counts[bin] += other.counts[bin];
  histogram.amax = std::max(histogram.amax, other.amax);
}

void add(FormatLosses& losses, const FormatLosses& other) {
  losses.elements += other.elements;
  losses.zeros += other.zeros;
  losses.underflowed += other.underflowed;
  losses.subnormal += other.subnormal;
  losses.overflowed += other.overflowed;
  losses.non_finite += other.non_finite;
}

void add(UpdateStagnation& stagnation, const UpdateStagnation& other) {
  stagnation.elements += other.elements;
  stagnation.zero += other.zero;
  stagnation.non_finite += other.non_finite;
  for (int format = 0; format < kStagnationFormatCount; ++format) {
    stagnation.stagnant[format] += other.stagnant[format];
  }
}

}  // namespace

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return Format::kBF16;
    case DType::kF16:
      return Format::kF16;
    default:
      return Format::kF32;
  }
}

void add(ProbeRow& row, const ProbeRow& other) {
  add(row.histogram, other.histogram);
  add(row.losses, other.losses);
  row.error += other.error;
  row.batch_noise += other.batch_noise;
  add(row.stagnation, other.stagnation);
}

}  // namespace mantissa
