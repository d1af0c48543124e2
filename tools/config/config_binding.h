// Gives every setting its key, type and range, once. Reading, printing, comparing and the check of
// configs/reference.yaml all use it.
#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include "tools/config/config.h"
#include "tools/config/config_reader.h"

namespace mantissa {

void bind_config(ConfigVisitor& visitor, Config& config);
// The sections `precision` and `test`: precision_binding.cc.
void bind_precision(ConfigVisitor& visitor, Config& config);
void bind_test(ConfigVisitor& visitor, TestConfig& test);

// Step numbers are 32-bit counters of the random generator. With this bound and that of global_batch, numbers of
// samples stay far below 2^63.
inline constexpr int64_t kMaxSteps = (int64_t{1} << 32) - 1;

// Names that other programs use for our settings.
ConfigSynonyms config_synonyms();
// ConfigError for a setting of another program that mantissa lacks. It names the alternative.
void refuse_unavailable(const ConfigNode& root);
// Removes settings of earlier versions, which are constants now, if they have the constant's value. Another value is a
// ConfigError with the alternative; in a configuration `written` by a run or checkpoint it is a warning.
void drop_fixed_settings(ConfigNode& root, bool written);

// Path to printed value of every setting.
std::map<std::string, std::string> flatten(const Config& config);

// The words of faults.
std::optional<FaultKind> parse_fault_kind(std::string_view word);
std::string_view name(FaultKind kind);
std::string_view name(FaultTarget target);
std::string_view name(FileOperation operation);

// The words of formats that others than the binding need.
namespace config_names {

template <typename Enum>
using Name = std::pair<std::string_view, Enum>;

inline constexpr Name<DType> kFloat[] = {{"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}};
inline constexpr Name<DType> kWireDType[] = {{"fp32", DType::kF32},
                                             {"bf16", DType::kBF16},
                                             {"fp16", DType::kF16},
                                             {"e4m3", DType::kE4M3},
                                             {"e5m2", DType::kE5M2}};
inline constexpr Name<DType> kCompute[] = {
    {"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp64", DType::kF64}};
inline constexpr Name<MomentFormat> kFirstMoment[] = {
    {"fp32", MomentFormat::kF32}, {"bf16", MomentFormat::kBF16}, {"8bit", MomentFormat::kBlockwise8Bit}};
// bf16 is read so that it can be refused with the reason.
inline constexpr Name<MomentFormat> kSecondMoment[] = {{"fp32", MomentFormat::kF32},
                                                       {"bf16_stochastic", MomentFormat::kBF16Stochastic},
                                                       {"8bit", MomentFormat::kBlockwise8Bit},
                                                       {"bf16", MomentFormat::kBF16}};
inline constexpr Name<MasterWeights> kMaster[] = {{"fp32", MasterWeights::kF32},
                                                  {"none_stochastic", MasterWeights::kNoneStochastic},
                                                  {"kahan", MasterWeights::kKahan}};
inline constexpr Name<PrecisionPattern> kPattern[] = {{"none", PrecisionPattern::kNone},
                                                      {"all_low", PrecisionPattern::kAllLow},
                                                      {"fp32_ends_low_core", PrecisionPattern::kFp32EndsLowCore},
                                                      {"attention_high", PrecisionPattern::kAttentionHigh},
                                                      {"first_last_k_high", PrecisionPattern::kFirstLastKHigh}};

}  // namespace config_names
}  // namespace mantissa
