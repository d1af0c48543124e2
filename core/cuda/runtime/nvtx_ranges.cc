// Ranges (core/profile/range.h) for NVIDIA's profilers.
#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <unordered_map>

#include "core/cuda/runtime/runtime.h"
#include "core/profile/range.h"

namespace mantissa::cuda {
namespace {

constexpr uint32_t category(RangeKind kind) { return kind == RangeKind::kPhase ? 1 : 2; }

class NvtxSink final : public RangeSink {
 public:
  explicit NvtxSink(nvtxDomainHandle_t domain) : domain_(domain) {
    nvtxDomainNameCategoryA(domain, category(RangeKind::kPhase), "phase");
    nvtxDomainNameCategoryA(domain, category(RangeKind::kOp), "op");
  }

  void begin(RangeKind kind, const char* name) override {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.category = category(kind);
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = registered(name);
    nvtxDomainRangePushEx(domain_, &attributes);
  }

  void end(RangeKind, const char*) override { nvtxDomainRangePop(domain_); }

 private:
  // A registered string is a number in each event, where another would be copied into it.
  nvtxStringHandle_t registered(const char* name) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = strings_.try_emplace(name);
    if (is_new) entry->second = nvtxDomainRegisterStringA(domain_, name);
    return entry->second;
  }

  const nvtxDomainHandle_t domain_;
  std::mutex mutex_;
  std::unordered_map<const char*, nvtxStringHandle_t> strings_;  // by address: see RangeSink::begin()
};

}  // namespace

void send_ranges_to_profiler() {
  static std::once_flag once;
  std::call_once(once, [] {
    // The first call into NVTX loads the profiler's library, which the profiler names in the environment.
    const nvtxDomainHandle_t domain = nvtxDomainCreateA("mantissa");
    if (domain == nullptr) return;
    static NvtxSink& sink = *new NvtxSink(domain);  // never destroyed: other threads may still be in a range at exit
    set_range_sink(&sink);
  });
}

}  // namespace mantissa::cuda
