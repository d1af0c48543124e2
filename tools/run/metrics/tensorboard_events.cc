#include <array>
#include <bit>
#include <charconv>
#include <concepts>

#include "tools/run/metrics/metrics_file.h"

namespace mantissa {
namespace {

constexpr std::array<uint32_t, 256> kCrcOfByte = [] {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // its bits from the lowest power on
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}();

// The lowest byte first.
template <std::unsigned_integral Bits>
std::string bytes_of(Bits bits) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Bits); ++i) bytes += static_cast<char>(bits >> (8 * i));
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// A message under construction, by field numbers.
class ProtoMessage {
 public:
  ProtoMessage& integer(int field, int64_t value) { return add(field, 0, varint(static_cast<uint64_t>(value))); }
  ProtoMessage& real(int field, double value) { return add(field, 1, bytes_of(std::bit_cast<uint64_t>(value))); }
  ProtoMessage& single(int field, float value) { return add(field, 5, bytes_of(std::bit_cast<uint32_t>(value))); }
  // A text, or another message.
  ProtoMessage& bytes(int field, std::string_view value) { return add(field, 2, varint(value.size()).append(value)); }
  ProtoMessage& reals(int field, std::span<const double> values) {
    std::string packed;
    for (const double value : values) packed += bytes_of(std::bit_cast<uint64_t>(value));
    return bytes(field, packed);
  }
  operator std::string_view() const { return text_; }  // NOLINT(google-explicit-constructor)

 private:
  ProtoMessage& add(int field, uint64_t wire_type, std::string_view value) {
    text_ += varint(static_cast<uint64_t>(field) << 3 | wire_type);
    text_ += value;
    return *this;
  }

  std::string text_;
};

std::string framed(std::string_view data) {
  const auto masked = [](std::string_view bytes) {
    const uint32_t crc = crc32c(bytes);
    return bytes_of(std::rotr(crc, 15) + 0xa282ead8U);
  };
  const std::string length = bytes_of(uint64_t{data.size()});
  return length + masked(length) + std::string(data) + masked(data);
}

ProtoMessage event(double time, int64_t step) { return ProtoMessage().real(1, time).integer(2, step); }

// A value of a tag, with metadata that name its tab of TensorBoard.
ProtoMessage tensor_value(std::string_view tag, std::string_view plugin, std::string_view content,
                          const ProtoMessage& tensor) {
  constexpr int kTensorClass = 2;
  const ProtoMessage metadata =
      ProtoMessage().bytes(1, ProtoMessage().bytes(1, plugin).bytes(2, content)).integer(4, kTensorClass);
  return ProtoMessage().bytes(1, ProtoMessage().bytes(1, tag).bytes(9, metadata).bytes(8, tensor));
}

// The value of a setting, in one of the types of hyperparameters.
struct SettingValue {
  int type;            // of `DataType`
  ProtoMessage value;  // `Value` of Protocol Buffers
};
SettingValue setting_value(const std::string& text) {
  if (text == "true" || text == "false") return {2, ProtoMessage().integer(4, text == "true" ? 1 : 0)};
  double number = 0.0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end) return {3, ProtoMessage().real(2, number)};
  return {1, ProtoMessage().bytes(3, text)};
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) crc = (crc >> 8) ^ kCrcOfByte[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

std::string TensorboardEvent::file_version(double time) {
  return framed(ProtoMessage().real(1, time).bytes(3, "brain.Event:2").bytes(10, ProtoMessage().bytes(1, "mantissa")));
}

std::string TensorboardEvent::restart(double time, int64_t step) {
  constexpr int kStart = 1;
  return framed(event(time, step).bytes(7, ProtoMessage().integer(1, kStart)));
}

TensorboardEvent& TensorboardEvent::scalar(std::string_view tag, double value) {
  values_ += ProtoMessage().bytes(1, ProtoMessage().bytes(1, tag).single(2, static_cast<float>(value)));
  return *this;
}

TensorboardEvent& TensorboardEvent::text(std::string_view tag, std::string_view markdown) {
  constexpr int kString = 7;
  const ProtoMessage one_element = ProtoMessage().bytes(2, ProtoMessage().integer(1, 1));
  const ProtoMessage tensor = ProtoMessage().integer(1, kString).bytes(2, one_element).bytes(8, markdown);
  values_ += tensor_value(tag, "text", "", tensor);
  return *this;
}

TensorboardEvent& TensorboardEvent::histogram(std::string_view tag, int64_t least, std::span<const int64_t> counts) {
  std::vector<double> limits, weights;
  double number = 0.0, sum = 0.0, sum_of_squares = 0.0;
  for (const int64_t count : counts) {
    const auto weight = static_cast<double>(count), left = static_cast<double>(least + std::ssize(limits));
    const double middle = left + 0.5;
    limits.push_back(left + 1.0);
    weights.push_back(weight);
    number += weight;
    sum += weight * middle;
    sum_of_squares += weight * middle * middle;
  }
  const auto from = static_cast<double>(least), to = static_cast<double>(least + std::ssize(counts));
  const ProtoMessage histogram = ProtoMessage()
                                     .real(1, from)
                                     .real(2, to)
                                     .real(3, number)
                                     .real(4, sum)
                                     .real(5, sum_of_squares)
                                     .reals(6, limits)
                                     .reals(7, weights);
  values_ += ProtoMessage().bytes(1, ProtoMessage().bytes(1, tag).bytes(5, histogram));
  return *this;
}

// The tab reads the metadata; its values are a scalar without meaning.
TensorboardEvent& TensorboardEvent::hparams(std::string_view tag, std::string_view content) {
  constexpr int kFloat = 1;
  values_ += tensor_value(tag, "hparams", content, ProtoMessage().integer(1, kFloat).bytes(2, ""));
  return *this;
}

TensorboardEvent& TensorboardEvent::session_start(const std::map<std::string, std::string>& settings,
                                                  const std::vector<std::string>& metrics) {
  ProtoMessage experiment, session;
  experiment.real(3, time_);
  for (const auto& [name, text] : settings) {
    const SettingValue setting = setting_value(text);
    experiment.bytes(4, ProtoMessage().bytes(1, name).integer(4, setting.type));
    session.bytes(1, ProtoMessage().bytes(1, name).bytes(2, setting.value));
  }
  for (const std::string& tag : metrics) experiment.bytes(5, ProtoMessage().bytes(1, ProtoMessage().bytes(2, tag)));
  session.real(5, time_);
  hparams("_hparams_/experiment", ProtoMessage().bytes(2, experiment));
  return hparams("_hparams_/session_start_info", ProtoMessage().bytes(3, session));
}

TensorboardEvent& TensorboardEvent::session_end(SessionEnd end) {
  const ProtoMessage info = ProtoMessage().integer(1, static_cast<int64_t>(end)).real(2, time_);
  return hparams("_hparams_/session_end_info", ProtoMessage().bytes(4, info));
}

std::string TensorboardEvent::record() const { return framed(event(time_, step_).bytes(5, values_)); }

}  // namespace mantissa
