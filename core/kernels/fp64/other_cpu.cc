// Kernels without a form of their own in fp64: see fp64_cpu.h.
#include "core/kernels/fp64/fp64_cpu.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/reduction/args.h"

namespace mantissa::cpu::fp64 {
namespace {

template <typename Args>
[[noreturn]] void refuse(const Args&) {
  throw ContractError(fmt::format("[{}] has no kernel for fp64 operands", Args::kName));
}

}  // namespace

// These take any dtype, and an fp64 reference.
void run(const DigestArgs& args) { cpu::run(args); }
void run(const CompareArgs& args) { cpu::run(args); }

// These serve narrower dtypes only.
void run(const SplitArgs& args) { refuse(args); }
void run(const AmaxArgs& args) { refuse(args); }
void run(const TensorScaleArgs& args) { refuse(args); }
void run(const QuantizeArgs& args) { refuse(args); }
void run(const FromCodesArgs& args) { refuse(args); }
void run(const HadamardArgs& args) { refuse(args); }
void run(const DelayedScalesArgs& args) { refuse(args); }
void run(const SettleDigestsArgs& args) { refuse(args); }
void run(const DecideUpdateArgs& args) { refuse(args); }
void run(const UpdateStagnationArgs& args) { refuse(args); }
void run(const RoundingLossesArgs& args) { refuse(args); }

}  // namespace mantissa::cpu::fp64
