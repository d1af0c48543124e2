// The binding of the section `test`.
#include <algorithm>

#include "tools/config/config_binding.h"

namespace mantissa {
namespace config_names {
namespace {

constexpr Name<FaultKind> kFault[] = {
    {"inf", FaultKind::kInf},          {"nan", FaultKind::kNan},         {"flip", FaultKind::kFlip},
    {"sleep", FaultKind::kSleep},      {"stop", FaultKind::kStop},       {"deadlock", FaultKind::kDeadlock},
    {"kill", FaultKind::kKill},        {"exit", FaultKind::kExit},       {"short_write", FaultKind::kShortWrite},
    {"no_space", FaultKind::kNoSpace}, {"corrupt", FaultKind::kCorrupt}, {"read_error", FaultKind::kReadError}};
constexpr Name<FaultTarget> kTarget[] = {{"gradient", FaultTarget::kGradient},
                                         {"wire", FaultTarget::kWire},
                                         {"master", FaultTarget::kMaster},
                                         {"first_moment", FaultTarget::kFirstMoment},
                                         {"second_moment", FaultTarget::kSecondMoment},
                                         {"weight", FaultTarget::kWeight}};
constexpr Name<std::string_view> kPhase[] = {
    {"none", "none"},         {"data", "data"},     {"forward", "forward"},      {"backward", "backward"},
    {"reduce", "reduce"},     {"decide", "decide"}, {"update", "update"},        {"wait", "wait"},
    {"evaluate", "evaluate"}, {"sample", "sample"}, {"checkpoint", "checkpoint"}};
constexpr Name<FileOperation> kOperation[] = {{"none", FileOperation::kNone},    {"open", FileOperation::kOpen},
                                              {"read", FileOperation::kRead},    {"write", FileOperation::kWrite},
                                              {"sync", FileOperation::kSync},    {"close", FileOperation::kClose},
                                              {"rename", FileOperation::kRename}};
constexpr Name<InjectedValue> kInjected[] = {{"inf", InjectedValue::kInf}, {"nan", InjectedValue::kNan}};
constexpr Name<Pass> kInjectedPass[] = {{"forward", Pass::kForward}, {"backward", Pass::kBackward}};

}  // namespace
}  // namespace config_names

namespace names = config_names;

void bind_test(ConfigVisitor& v, TestConfig& c) {
  v.list("faults", list_field(c.faults, [](ConfigVisitor& w, Fault& fault) {
           w.scalar("step", integer_field<int64_t>(fault.step, 1));
           w.scalar("rank", integer_field(fault.rank, 0));
           w.scalar("kind", choice_field(fault.kind, names::kFault));
           w.scalar("target", choice_field(fault.target, names::kTarget));
           w.scalar("parameter", text_field(fault.parameter));
           w.scalar("element", integer_field<int64_t>(fault.element, 0));
           w.scalar("bit", integer_field(fault.bit, 0, 31));
           w.scalar("phase", choice_field(fault.phase, names::kPhase));
           w.scalar("operation", choice_field(fault.operation, names::kOperation));
           w.scalar("file", text_field(fault.file));
           w.scalar("seconds", real_field(fault.seconds, RealRange{.min = 0.0, .max = 1e6}));
           w.scalar("steps", integer_field<int64_t>(fault.steps, 1));
           w.scalar("code", integer_field(fault.code, 0, 255));
         }));
  v.section("random", [&] {
    v.scalar("seed", integer_field(c.random.seed));
    v.scalar("count", integer_field(c.random.count, 0, 10000));
    v.texts("kinds", c.random.kinds);
  });
  v.list("activations", list_field(c.activations, [](ConfigVisitor& w, ActivationInjection& fault) {
           w.scalar("step", integer_field<int64_t>(fault.step, 1));
           w.scalar("rank", integer_field(fault.rank, 0));
           w.scalar("layer", text_field(fault.layer));
           w.scalar("op", op_field(fault.op));
           w.scalar("pass", choice_field(fault.pass, names::kInjectedPass));
           w.scalar("value", choice_field(fault.value, names::kInjected));
         }));
}

std::optional<FaultKind> parse_fault_kind(std::string_view word) {
  const auto* const found = std::ranges::find(names::kFault, word, &names::Name<FaultKind>::first);
  return found == std::end(names::kFault) ? std::nullopt : std::optional(found->second);
}
std::string_view name(FaultKind kind) {
  return std::ranges::find(names::kFault, kind, &names::Name<FaultKind>::second)->first;
}
std::string_view name(FaultTarget target) {
  return std::ranges::find(names::kTarget, target, &names::Name<FaultTarget>::second)->first;
}
std::string_view name(FileOperation operation) {
  return std::ranges::find(names::kOperation, operation, &names::Name<FileOperation>::second)->first;
}

}  // namespace mantissa
