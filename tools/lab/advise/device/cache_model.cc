#include "tools/lab/advise/device/cache_model.h"

#include <unistd.h>

namespace mantissa {
namespace {

constexpr uintptr_t kPageBytes = 4096;
constexpr double kUsualCacheBytes = 32.0 * 1024 * 1024;

class LastTouch {
 public:
  explicit LastTouch(double cache_bytes) : cache_bytes_(cache_bytes) {}

  bool is_cold(const Operand& operand) const {
    int64_t pages = 0, cold = 0;
    for_each_page(operand, [&](uintptr_t page) {
      const auto found = touched_.find(page);
      ++pages;
      if (found == touched_.end() || bytes_ - found->second > cache_bytes_) ++cold;
    });
    return 2 * cold > pages;
  }

  void touch(const Operand& operand) {
    bytes_ += static_cast<double>(operand.bytes());
    for_each_page(operand, [&](uintptr_t page) { touched_[page] = bytes_; });
  }

 private:
  template <typename Visit>
  static void for_each_page(const Operand& operand, const Visit& visit) {
    if (operand.bytes() == 0) return;
    const uintptr_t last = (operand.address + operand.bytes() - 1) / kPageBytes;
    for (uintptr_t page = operand.address / kPageBytes; page <= last; ++page) visit(page);
  }

  const double cache_bytes_;
  double bytes_ = 0.0;  // touched so far
  std::unordered_map<uintptr_t, double> touched_;
};

}  // namespace

std::vector<std::vector<bool>> cold_operands(const StepCalls& step, double cache_bytes) {
  LastTouch cache(cache_bytes);
  std::vector<std::vector<bool>> cold;
  for (int pass = 0; pass < 2; ++pass) {  // the second finds what the first has left
    cold.clear();
    for (const KernelCall& call : step.calls) {
      std::vector<bool>& of_call = cold.emplace_back();
      for (const Operand& operand : call.operands) of_call.push_back(operand.defined && cache.is_cold(operand));
      for (const Operand& operand : call.operands) cache.touch(operand);
    }
  }
  return cold;
}

double last_level_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<double>(bytes) : kUsualCacheBytes;
}

}  // namespace mantissa
