// Event files are read back by a reader of their own, which knows only the framing and the wire types.
#include "tools/run/metrics/metrics_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace mantissa {
namespace {

// By the definition: a remainder of polynomials, bit by bit.
uint32_t crc_by_bits(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

uint32_t unmasked(std::string_view bytes) {
  const auto rotated = static_cast<uint32_t>(little_endian(bytes)) - 0xa282ead8U;
  return rotated >> 17 | rotated << 15;
}

// The data of the records in a file.
std::vector<std::string> records_of(std::string_view file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    const auto length = static_cast<size_t>(little_endian(file.substr(0, 8)));
    EXPECT_GE(file.size(), length + 16);
    EXPECT_EQ(unmasked(file.substr(8, 4)), crc_by_bits(file.substr(0, 8)));
    records.emplace_back(file.substr(12, length));
    EXPECT_EQ(unmasked(file.substr(12 + length, 4)), crc_by_bits(records.back()));
    file.remove_prefix(length + 16);
  }
  return records;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(0));
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return value;
  }
}

// The fields of a message, by number, in their order; numbers as 8 bytes or less.
std::multimap<uint64_t, std::string> fields_of(std::string_view message) {
  std::multimap<uint64_t, std::string> fields;
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    size_t size = 0;
    switch (key & 7) {
      case 0: {
        const uint64_t value = take_varint(message);
        std::string bytes(8, '\0');
        std::memcpy(bytes.data(), &value, 8);
        fields.emplace(key >> 3, bytes);
        continue;
      }
      case 1:
        size = 8;
        break;
      case 5:
        size = 4;
        break;
      default:
        EXPECT_EQ(key & 7, 2u);
        size = static_cast<size_t>(take_varint(message));
    }
    fields.emplace(key >> 3, message.substr(0, size));
    message.remove_prefix(size);
  }
  return fields;
}

// The one field on a path of field numbers.
std::string at(std::string_view message, std::initializer_list<uint64_t> path) {
  std::string found(message);
  for (const uint64_t field : path) {
    const auto fields = fields_of(found);
    EXPECT_EQ(fields.count(field), 1u) << field;
    if (fields.count(field) == 0) return "";
    found = fields.find(field)->second;
  }
  return found;
}
double real_at(std::string_view message, std::initializer_list<uint64_t> path) {
  return std::bit_cast<double>(little_endian(at(message, path)));
}

TEST(TensorboardEvents, TheChecksumIsThatOfISCSI) {
  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

TEST(TensorboardEvents, ARecordHoldsTheScalarsOfAStep) {
  const TensorboardEvent event =
      TensorboardEvent(12.5, 300).scalar("train/loss", 0.25).scalar("nan", std::numeric_limits<double>::quiet_NaN());
  const auto records = records_of(TensorboardEvent::file_version(1.5) + event.record());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(real_at(records[0], {1}), 1.5);
  EXPECT_EQ(at(records[0], {3}), "brain.Event:2");
  EXPECT_EQ(real_at(records[1], {1}), 12.5);
  EXPECT_EQ(little_endian(at(records[1], {2})), 300u);
  const auto values = fields_of(at(records[1], {5}));
  ASSERT_EQ(values.count(1), 2u);
  const std::string first = values.begin()->second, second = std::next(values.begin())->second;
  EXPECT_EQ(at(first, {1}), "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(little_endian(at(first, {2})))), 0.25f);
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(static_cast<uint32_t>(little_endian(at(second, {2}))))));
}

TEST(TensorboardEvents, ARestartDropsItsStepAndThoseBehind) {
  const std::string record = records_of(TensorboardEvent::restart(2.0, 41)).at(0);
  EXPECT_EQ(little_endian(at(record, {2})), 41u);
  EXPECT_EQ(little_endian(at(record, {7, 1})), 1u);  // SessionLog.START
}

TEST(TensorboardEvents, TextsAreTensorsOfOneString) {
  const std::string long_text(300, 'a');
  const std::string value = at(records_of(TensorboardEvent(0.0, 1).text("samples", long_text).record()).at(0), {5, 1});
  EXPECT_EQ(at(value, {1}), "samples");
  EXPECT_EQ(at(value, {9, 1, 1}), "text");
  EXPECT_EQ(little_endian(at(value, {9, 4})), 2u);  // tensors
  EXPECT_EQ(little_endian(at(value, {8, 1})), 7u);  // of strings
  EXPECT_EQ(little_endian(at(value, {8, 2, 2, 1})), 1u);
  EXPECT_EQ(at(value, {8, 8}), long_text);
}

TEST(TensorboardEvents, HistogramsHaveABucketForEachUnit) {
  const int64_t counts[] = {3, 0, 1};
  const std::string value = at(records_of(TensorboardEvent(0.0, 1).histogram("h", -2, counts).record()).at(0), {5, 1});
  const std::string histogram = at(value, {5});
  EXPECT_EQ(real_at(histogram, {1}), -2.0);
  EXPECT_EQ(real_at(histogram, {2}), 1.0);
  EXPECT_EQ(real_at(histogram, {3}), 4.0);
  EXPECT_EQ(real_at(histogram, {4}), 3 * -1.5 + 0.5);
  EXPECT_EQ(real_at(histogram, {5}), 3 * 2.25 + 0.25);
  const auto reals = [](const std::string& packed) {
    std::vector<double> values(packed.size() / 8);
    std::memcpy(values.data(), packed.data(), packed.size());
    return values;
  };
  EXPECT_EQ(reals(at(histogram, {6})), (std::vector<double>{-1.0, 0.0, 1.0}));
  EXPECT_EQ(reals(at(histogram, {7})), (std::vector<double>{3.0, 0.0, 1.0}));
}

TEST(TensorboardEvents, HyperparametersHaveTheTypeOfTheirText) {
  TensorboardEvent event(7.0, 0);
  event.session_start({{"a", "3e-4"}, {"b", "true"}, {"c", "bf16"}}, {"validation/loss"});
  event.session_end(TensorboardEvent::SessionEnd::kFailure);
  const auto values = fields_of(at(records_of(event.record()).at(0), {5}));
  ASSERT_EQ(values.count(1), 3u);
  std::map<std::string, std::string> contents;
  for (const auto& [number, value] : values) {
    EXPECT_EQ(at(value, {9, 1, 1}), "hparams");
    EXPECT_EQ(little_endian(at(value, {8, 1})), 1u) << "a value, or readers refuse the tag";
    contents[at(value, {1})] = at(value, {9, 1, 2});
  }
  const std::string experiment = at(contents.at("_hparams_/experiment"), {2});
  EXPECT_EQ(at(experiment, {5, 1, 2}), "validation/loss");
  std::string types;
  const auto fields = fields_of(experiment);
  const auto infos = fields.equal_range(4);
  for (auto info = infos.first; info != infos.second; ++info) {
    types += at(info->second, {1}) + std::to_string(little_endian(at(info->second, {4})));
  }
  EXPECT_EQ(types, "a3b2c1");  // a number, a truth value, a text
  const auto session = fields_of(at(contents.at("_hparams_/session_start_info"), {3}));
  const auto settings = session.equal_range(1);
  EXPECT_EQ(real_at(settings.first->second, {2, 2}), 3e-4);
  EXPECT_EQ(little_endian(at(std::next(settings.first)->second, {2, 4})), 1u);
  EXPECT_EQ(at(std::next(settings.first, 2)->second, {2, 3}), "bf16");
  EXPECT_EQ(little_endian(at(contents.at("_hparams_/session_end_info"), {4, 1})), 2u);
  EXPECT_EQ(real_at(contents.at("_hparams_/session_end_info"), {4, 2}), 7.0);
}

}  // namespace
}  // namespace mantissa
