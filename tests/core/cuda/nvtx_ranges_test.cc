// Ranges reach a profiler that is linked into the test. NVTX finds it by a symbol reserved for such profilers.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/runtime/runtime.h"
#include "core/profile/range.h"

// The definition at the end of this file replaces NVTX's own, which is weak.
extern "C" {
extern int (*InitializeInjectionNvtx2_fnptr)(const void* (*get_export_table)(uint32_t));
}
#define NVTX_STATIC_INJECTION_IMPL
#include <nvtx3/nvToolsExt.h>

namespace mantissa::testing {

// NVTX's calls: "domain mantissa", "category 1 phase", "string forward", "push forward in 1", "pop".
std::vector<std::string>& profiler_calls() {
  static std::vector<std::string> calls;
  return calls;
}

namespace {

void note(const std::string& call) { profiler_calls().push_back(call); }

nvtxDomainHandle_t create_domain(const char* name) {
  note(std::string("domain ") + name);
  static int domain;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

void name_category(nvtxDomainHandle_t, uint32_t category, const char* name) {
  note("category " + std::to_string(category) + " " + name);
}

// A handle is the address of a copy of the text, so that push() can read it.
nvtxStringHandle_t register_string(nvtxDomainHandle_t, const char* text) {
  note(std::string("string ") + text);
  static std::vector<std::unique_ptr<std::string>> strings;
  strings.push_back(std::make_unique<std::string>(text));
  return reinterpret_cast<nvtxStringHandle_t>(strings.back().get());
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if (domain == nullptr || event->version != NVTX_VERSION || event->size != NVTX_EVENT_ATTRIB_STRUCT_SIZE ||
      event->messageType != NVTX_MESSAGE_TYPE_REGISTERED) {
    note("a malformed event");
    return 0;
  }
  note("push " + *reinterpret_cast<const std::string*>(event->message.registered) + " in " +
       std::to_string(event->category));
  return 0;
}

int pop(nvtxDomainHandle_t) {
  note("pop");
  return 0;
}

// Connects a tool to NVTX through a table of the slots that NVTX calls.
int attach(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  const auto replace = [&](NvtxCallbackIdCore2 id, auto* function) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
  };
  replace(NVTX_CBID_CORE2_DomainCreateA, create_domain);
  replace(NVTX_CBID_CORE2_DomainNameCategoryA, name_category);
  replace(NVTX_CBID_CORE2_DomainRegisterStringA, register_string);
  replace(NVTX_CBID_CORE2_DomainRangePushEx, push);
  replace(NVTX_CBID_CORE2_DomainRangePop, pop);
  return 1;
}

TEST(NvtxRanges, ReachAProfilerWithTheirNamesRegisteredOnce) {
  cuda::send_ranges_to_profiler();
  cuda::send_ranges_to_profiler();
  for (int i = 0; i < 2; ++i) {
    const Range phase(RangeKind::kPhase, "forward");
    const Range op(RangeKind::kOp, "gemm");
  }
  const std::vector<std::string> expected = {"domain mantissa",
                                             "category 1 phase",
                                             "category 2 op",
                                             "string forward",
                                             "push forward in 1",
                                             "string gemm",
                                             "push gemm in 2",
                                             "pop",
                                             "pop",
                                             "push forward in 1",
                                             "push gemm in 2",
                                             "pop",
                                             "pop"};
  EXPECT_EQ(profiler_calls(), expected);
}

}  // namespace
}  // namespace mantissa::testing

NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = mantissa::testing::attach;
