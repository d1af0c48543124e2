#include "core/data/data_kind.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

constexpr const char* kArrow = "is an Arrow file: write it as Parquet, as to_parquet() of Hugging Face's datasets does";

struct Magic {
  std::string_view bytes;
  const char* meaning;
};
constexpr Magic kMagics[] = {
    {"\x1f\x8b\x08", "is compressed by gzip: unpack it first (gunzip)"},
    {"\x28\xb5\x2f\xfd", "is compressed by zstd: unpack it first (unzstd)"},
    {std::string_view("\xfd\x37zXZ\0", 6), "is compressed by xz: unpack it first (unxz)"},
    {"PK\x03\x04", "is a zip archive: unpack it first (unzip)"},
    {"PAR1", "is a Parquet file: write its texts or tokens to a plain file"},
    {"ARROW1", kArrow},
    {"FEA1", kArrow},
    {"\x93NUMPY", "is a NumPy file with a header: write the tokens with ndarray.tofile()"},
};
constexpr std::string_view kBzip2 = "BZh", kBzip2Block = "1AY&SY";  // a digit between the two

bool is_control(unsigned char c) {
  constexpr std::string_view kInTexts = "\b\t\n\v\f\r\x1b";
  return (c < 0x20 && kInTexts.find(static_cast<char>(c)) == std::string_view::npos) || c == 0x7f;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string why_packed(std::span<const std::byte> start) {
  const std::string_view text = text_of(start);
  for (const Magic& magic : kMagics) {
    if (text.starts_with(magic.bytes)) return magic.meaning;
  }
  constexpr size_t kTarMagic = 257;
  if (text.size() > kTarMagic && text.substr(kTarMagic).starts_with("ustar")) {
    return "is a tar archive: unpack it first (tar -x)";
  }
  // A stream: -1, the size of the first message, and where in it the root table is.
  const bool is_arrow =
      text.starts_with("\xff\xff\xff\xff") && text.size() > 12 && text.substr(9, 3) == std::string_view("\0\0\0", 3);
  if (is_arrow) return kArrow;
  const bool is_bzip2 = text.starts_with(kBzip2) && text.find(kBzip2Block, kBzip2.size()) == kBzip2.size() + 1;
  return is_bzip2 ? "is compressed by bzip2: unpack it first (bunzip2)" : "";
}

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  return text.substr(text.starts_with(kMark) ? kMark.size() : 0);
}

std::string why_no_text(std::span<const std::byte> sample) {
  constexpr double kFewZeros = 0.01;   // such as between documents
  constexpr double kFewStrange = 0.1;  // letters of an older encoding, in a western language
  const std::string_view text = text_of(sample);
  size_t zeros = 0, strange = 0;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_length_at(text, i);
    zeros += lead == 0;
    strange += length == 0 || is_control(lead);
    i += length == 0 ? 1 : length;
  }
  const auto size = static_cast<double>(text.size());
  const auto percent = [size](size_t count) { return 100.0 * static_cast<double>(count) / size; };
  if (static_cast<double>(zeros) > kFewZeros * size) {
    return fmt::format("{:.0f} % of its bytes are 0: it is not text, or text in UTF-16", percent(zeros));
  }
  if (static_cast<double>(strange) <= kFewStrange * size) return "";
  return fmt::format("{:.0f} % of its bytes are control characters or not UTF-8: it is not text", percent(strange));
}

bool looks_like_json(std::span<const std::byte> start) {
  std::string text(without_byte_order_mark(text_of(start).substr(0, 256)));
  std::erase_if(text, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; });
  return text.starts_with("{\"") || text.starts_with("[{\"");
}

size_t wide_token_bytes(std::span<const std::byte> sample) {
  constexpr uint16_t kSmall = 16;       // vocabularies of wide tokens are below 16 * 65536
  constexpr size_t kFewestTokens = 32;  // fewer may be so by chance
  for (const size_t bytes : {size_t{8}, size_t{4}}) {
    const size_t tokens = sample.size() / bytes;
    size_t small_low = 0, small_high = 0;
    for (size_t token = 0; token < tokens; ++token) {
      uint16_t parts[4] = {};
      std::memcpy(parts, sample.data() + bytes * token, bytes);
      small_low += parts[0] < kSmall;
      small_high += std::max({parts[1], parts[2], parts[3]}) < kSmall;
    }
    if (tokens >= kFewestTokens && 100 * small_high >= 99 * tokens && 2 * small_low < tokens) return bytes;
  }
  return 0;
}

}  // namespace mantissa
