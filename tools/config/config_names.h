// The words of settings that are one of a few.
#pragma once

#include <string_view>
#include <utility>

#include "tools/config/config.h"

namespace mantissa::config_names {

template <typename Enum>
using Name = std::pair<std::string_view, Enum>;

inline constexpr Name<NormKind> kNorm[] = {{"layer_norm", NormKind::kLayerNorm}, {"rms_norm", NormKind::kRmsNorm}};
inline constexpr Name<Position> kPosition[] = {{"learned", Position::kLearned}, {"rope", Position::kRope}};
inline constexpr Name<DataFormat> kDataFormat[] = {{"bytes", DataFormat::kBytes}, {"tokens", DataFormat::kTokens}};
inline constexpr Name<TokenLayout> kTokenLayout[] = {{"auto", TokenLayout::kAuto},
                                                     {"llmc", TokenLayout::kLlmc},
                                                     {"u16", TokenLayout::kRawU16},
                                                     {"u32", TokenLayout::kRawU32}};
inline constexpr Name<Recompute> kRecompute[] = {
    {"none", Recompute::kNone}, {"selective", Recompute::kSelective}, {"full", Recompute::kFull}};
inline constexpr Name<PackedWeights> kPackedWeights[] = {{"auto", PackedWeights::kAuto},
                                                         {"none", PackedWeights::kNone}};
inline constexpr Name<ThreadPinning> kPinning[] = {{"auto", ThreadPinning::kAuto}, {"none", ThreadPinning::kNone}};
inline constexpr Name<ScheduleKind> kSchedule[] = {{"constant", ScheduleKind::kConstant},
                                                   {"linear", ScheduleKind::kLinear},
                                                   {"cosine", ScheduleKind::kCosine},
                                                   {"wsd", ScheduleKind::kWarmupStableDecay}};
inline constexpr Name<ClipOptions::Kind> kClip[] = {{"none", ClipOptions::Kind::kOff},
                                                    {"fixed", ClipOptions::Kind::kFixed},
                                                    {"adaptive", ClipOptions::Kind::kAdaptive}};
inline constexpr Name<DType> kFloat[] = {{"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}};
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
inline constexpr Name<WeightRounding> kRounding[] = {{"nearest", WeightRounding::kNearest},
                                                     {"stochastic", WeightRounding::kStochastic}};
inline constexpr Name<WorkingWeights> kWeights[] = {{"low", WorkingWeights::kLow}, {"fp32", WorkingWeights::kFp32}};
inline constexpr Name<PrecisionPattern> kPattern[] = {{"none", PrecisionPattern::kNone},
                                                      {"all_low", PrecisionPattern::kAllLow},
                                                      {"fp32_ends_low_core", PrecisionPattern::kFp32EndsLowCore},
                                                      {"attention_high", PrecisionPattern::kAttentionHigh},
                                                      {"first_last_k_high", PrecisionPattern::kFirstLastKHigh}};
inline constexpr Name<AmaxChoice> kAmaxChoice[] = {{"max", AmaxChoice::kMax}, {"most_recent", AmaxChoice::kMostRecent}};
inline constexpr Name<AttentionChoice> kAttention[] = {
    {"auto", AttentionChoice::kAuto}, {"own", AttentionChoice::kOwn}, {"cudnn", AttentionChoice::kCudnn}};
inline constexpr Name<GemmSelection> kGemmSelection[] = {{"timed", GemmSelection::kTimed},
                                                         {"deterministic", GemmSelection::kDeterministic}};
inline constexpr Name<NarrowMath> kNarrowMath[] = {{"auto", NarrowMath::kAuto}, {"emulated", NarrowMath::kEmulated}};
inline constexpr Name<Sharding> kSharding[] = {{"sharded", Sharding::kSharded}, {"replicated", Sharding::kReplicated}};
inline constexpr Name<Accumulation> kAccumulation[] = {{"fp32", Accumulation::kFp32}, {"wire", Accumulation::kWire}};
inline constexpr Name<WeightGather> kGather[] = {{"working", WeightGather::kWorking}, {"fp8", WeightGather::kF8}};
inline constexpr Name<ScalerChoice> kScalerMode[] = {{"auto", ScalerChoice::kAuto},
                                                     {"none", ScalerChoice::kNone},
                                                     {"static", ScalerChoice::kStatic},
                                                     {"dynamic", ScalerChoice::kDynamic}};
inline constexpr Name<HysteresisRefill> kRefill[] = {{"growth", HysteresisRefill::kOnGrowth},
                                                     {"clean_step", HysteresisRefill::kOnCleanStep}};
inline constexpr Name<FloorPolicy> kFloor[] = {{"fault", FloorPolicy::kFault},
                                               {"clamp", FloorPolicy::kClamp},
                                               {"lift", FloorPolicy::kLift},
                                               {"bf16", FloorPolicy::kBf16}};
inline constexpr Name<InjectedValue> kInjected[] = {{"inf", InjectedValue::kInf}, {"nan", InjectedValue::kNan}};
inline constexpr Name<Pass> kInjectedPass[] = {{"forward", Pass::kForward},
                                                       {"backward", Pass::kBackward}};

}  // namespace mantissa::config_names
