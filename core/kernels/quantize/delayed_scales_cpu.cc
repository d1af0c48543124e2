#include "core/kernels/quantize/args.h"

#include <cstring>

#include "core/kernels/check_args.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa::cpu {

void run(const DelayedScalesArgs& args) {
  const auto [ranks, tensors] = check_args(args);
  std::memset(args.mine.raw(), 0, args.mine.size_bytes());
  if (args.decision.defined() && read_record<UpdateDecision>(args.decision).held) return;
  const auto* const records = reinterpret_cast<const QuantizeRecord*>(args.records.raw());
  auto* const total = reinterpret_cast<QuantizeRecord*>(args.total.raw());
  auto* const history = reinterpret_cast<uint32_t*>(args.history.data<int32_t>());
  float* const scales = args.scales.data<float>();
  int32_t& entries = *args.entries.data<int32_t>();
  for (int64_t i = 0; i < tensors; ++i) {
    total[i] = fold_records(records + i, ranks, tensors);
    scales[i] = next_delayed_scale(args.options, history + i * args.options.history, entries, total[i].amax,
                                   args.maxima.data<float>()[i], scales[i]);
  }
  ++entries;
}

}  // namespace mantissa::cpu
