#include "core/kernels/gemm/bf16_cpu.h"

#include <dnnl.hpp>

#include "core/kernels/gemm/micro_cpu.h"

namespace mantissa::cpu {

Bf16Gemm preferred_bf16_gemm() {
  static const Bf16Gemm preferred = [] {
    if (dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx) return Bf16Gemm::kLibrary;
    if (!is_possible(Bf16Gemm::kDotProducts)) return Bf16Gemm::kWidened;
    // VDPBF16PS runs at twice the fp32 rate on AMD's Zen 4 and Intel's Cooper Lake, but at half of it on Intel's cores
    // since Sapphire Rapids: those are meant to use AMX, which a virtual machine may hide.
    const bool half_rate = __builtin_cpu_is("intel") && !__builtin_cpu_is("cooperlake");
    return half_rate ? Bf16Gemm::kWidened : Bf16Gemm::kDotProducts;
  }();
  return preferred;
}

bool is_possible(Bf16Gemm way) {
  switch (way) {
    case Bf16Gemm::kDotProducts:
      return has_bf16_micro_kernel();
    case Bf16Gemm::kLibrary:
      switch (dnnl::get_effective_cpu_isa()) {
        case dnnl::cpu_isa::avx512_core:
        case dnnl::cpu_isa::avx512_core_vnni:
        case dnnl::cpu_isa::avx512_core_bf16:
        case dnnl::cpu_isa::avx512_core_amx:
          return true;
        default:
          return false;
      }
    case Bf16Gemm::kWidened:
      return true;
  }
  return false;
}

}  // namespace mantissa::cpu
