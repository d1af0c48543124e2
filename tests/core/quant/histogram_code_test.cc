#include "core/quant/histogram_code.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace mantissa {
namespace {

TEST(HistogramCode, GivesBackWhatWasEncoded) {
  ExponentHistogram histogram;
  EXPECT_EQ(decode_histogram(encode_histogram(histogram)), histogram);
  histogram.amax = 0x7f7fffffu;
  histogram.counts[0] = 1;
  histogram.counts[1] = 127;
  histogram.counts[128] = 128;
  histogram.counts[1000] = (int64_t{1} << 62) + 12345;
  histogram.counts[kFiniteBins - 1] = 300;
  histogram.counts[kZeroBin] = 1 << 20;
  histogram.counts[kInfinityBin] = 2;
  histogram.counts[kNanBin] = 3;
  EXPECT_EQ(decode_histogram(encode_histogram(histogram)), histogram);
}

TEST(HistogramCode, EmptyBinsTakeNothing) {
  ExponentHistogram histogram;
  EXPECT_EQ(encode_histogram(histogram).size(), 4u);
  histogram.counts[100] = 5;
  histogram.counts[101] = 6;
  EXPECT_EQ(encode_histogram(histogram).size(), 8u);
}

TEST(HistogramCode, RefusesWhatIsNoCode) {
  ExponentHistogram histogram;
  histogram.counts[kNanBin] = 1 << 20;
  const auto code = encode_histogram(histogram);
  for (size_t size = 0; size < code.size(); ++size) {
    if (size == 4) continue;  // an empty histogram
    EXPECT_THROW(decode_histogram(std::span(code).first(size)), DataError) << size;
  }
  auto longer = code;
  longer.push_back(std::byte{0});
  longer.push_back(std::byte{1});
  EXPECT_THROW(decode_histogram(longer), DataError) << "a bin behind the last";
  EXPECT_THROW(decode_histogram(std::vector<std::byte>(30, std::byte{0xff})), DataError) << "a number without an end";
}

}  // namespace
}  // namespace mantissa
