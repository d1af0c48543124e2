// TestConfig: faults to inject, for tests of fault handling only (configs/reference_test.yaml).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/autograd/precision.h"
#include "core/autograd/tape.h"
#include "core/io/files.h"

namespace mantissa {

enum class FaultKind : uint8_t {
  kInf,
  kNan,
  kFlip,  // of a bit
  kSleep,
  kStop,  // by SIGSTOP
  kDeadlock,
  kKill,
  kExit,
  kShortWrite,
  kNoSpace,
  kCorrupt,
  kReadError,
};

// The tensor that kInf, kNan and kFlip change.
enum class FaultTarget : uint8_t { kGradient, kWire, kMaster, kFirstMoment, kSecondMoment, kWeight };

struct Fault {
  int64_t step = 1;  // the first is 1
  int rank = 0;
  FaultKind kind = FaultKind::kInf;
  // Values.
  FaultTarget target = FaultTarget::kGradient;
  std::string parameter;
  int64_t element = 0;
  int bit = 0;  // 0: the lowest
  // Processes: where in the step.
  std::string_view phase = "none";  // of static storage
  FileOperation operation = FileOperation::kNone;
  std::string file;  // a part of the path
  double seconds = 1.0;
  int64_t steps = 1;
  int code = 1;

  bool changes_value() const { return kind == FaultKind::kInf || kind == FaultKind::kNan || kind == FaultKind::kFlip; }
  // Whether the file decides when it strikes: at the first operation that fits, from the step on.
  bool is_of_files() const {
    return operation != FileOperation::kNone || kind == FaultKind::kShortWrite || kind == FaultKind::kNoSpace ||
           kind == FaultKind::kCorrupt || kind == FaultKind::kReadError;
  }
};

// Faults that are drawn from a seed.
struct RandomFaults {
  uint64_t seed = 0;
  int count = 0;
  std::vector<std::string> kinds = {"flip"};
};

enum class InjectedValue : uint8_t { kInf, kNan };

struct ActivationInjection {
  int64_t step = 1;  // the first is 1
  int rank = 0;
  std::string layer;  // path: "blocks.1.mlp.up"
  Op op = Op::kLinear;
  Pass pass = Pass::kForward;  // backward: into the gradient that the op gives its first input
  InjectedValue value = InjectedValue::kInf;
};

struct TestConfig {
  std::vector<Fault> faults;
  RandomFaults random;
  std::vector<ActivationInjection> activations;
};

}  // namespace mantissa
